"""What every world does with facts, decisions and steps. How time goes by in it, and where facts come from, is its own.

Rules of a world:

- A round: every fact is handled and every decision carried out, in order; then memory is sampled, and what is believed
  is compared with what is. After it comes one step, to its boundary.
- What a decision asks for happens in order and takes its time; memory changes when the work is done, except that what
  is being brought in counts in full from the start. Whatever is under way is abandoned when a decision contradicts it.
- A world never asks the scheduler what is true. It keeps its own books.

Whatever takes time is a generator: it gives what its world waits for, and a world that does not wait gives nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, assert_never

from molt.core import decisions as d
from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.engine_protocol import Destination, Engine, Request, SpillError, SwitchError
from molt.core.invariants import violations
from molt.core.ladder import Ladder, RouteKind
from molt.core.legality import Refusal
from molt.core.scheduler import Scheduler
from molt.core.state import Phase, State
from molt.core.turns import DecodeStep, LoadStep, PrefillStep, RestoreStep, Step, SwitchStep
from molt.core.view import Policy
from molt.formats.log import Log
from molt.worlds.checkers import disagreements
from molt.worlds.conductor import Conductor
from molt.worlds.memory_books import MemoryBooks
from molt.worlds.refusals import Refusals

T = TypeVar("T")
Wait: TypeAlias = Generator[Any, Any, T]


@dataclass(slots=True)
class RunningTenant:
    """A tenant as a world knows it."""

    name: str
    kind: e.TenantKind
    request: Request
    attempt: int = 1
    rung: str = ""
    admitted: bool = False

    def arrived(self, at_ns: int) -> e.TenantArrived:
        """The fact that it has come, or come again."""
        return e.TenantArrived(
            at_ns=at_ns,
            tenant=self.name,
            tenant_kind=self.kind,
            prompt_tokens=len(self.request.prompt_ids),
            max_tokens=self.request.max_tokens,
            attempt=self.attempt,
        )


@dataclass(slots=True)
class PendingLoad:
    """A rung that is being brought in, for a decision; a world may note how far it is."""

    decision: int
    done_ns: int = 0


@dataclass(slots=True)
class PendingSwitch:
    """A cache that is to go to another rung; a world may note how far that is (``None``: nothing is held for it)."""

    destination: Destination
    predicted_kl: float
    decision: int
    done_ns: int | None = None


class World(ABC):
    """One policy's run. The process that holds models and caches is alive or not.

    The scheduler takes ``costs`` for what everything takes, or what is ``believed`` in their place.
    """

    def __init__(
        self,
        ladder: Ladder,
        costs: CostModel,
        policy: Policy,
        engine: Engine,
        log: Log,
        *,
        believed: CostModel | None = None,
    ) -> None:
        self._ladder = ladder
        self._costs = costs
        self._policy = policy
        self._engine = engine
        self._log = log
        self._scheduler = Scheduler(ladder, believed or costs, policy)
        self._conductor = Conductor(self._scheduler, log, self._enqueue, self._on_refusal)
        self._memory = MemoryBooks(self._memory_changed)
        self._budget_bytes = 0
        self._running: dict[str, RunningTenant] = {}
        self._inbox: deque[e.AnyEvent] = deque()
        self._pending: deque[tuple[d.AnyDecision, int]] = deque()
        self._loads: dict[str, PendingLoad] = {}
        self._switches: dict[str, PendingSwitch] = {}
        self._on_disk: dict[str, int] = {}
        self._deadline_ns: int | None = None
        self._alive = True
        self.violations: list[dict[str, Any]] = []

    @property
    def refusals(self) -> Refusals:
        """What was refused of the policy's plans."""
        return self._conductor.refusals

    def _on_refusal(self, at_ns: int, refusal: Refusal) -> None:  # noqa: B027
        """A plan was refused, for another reason than the one before."""

    # What differs from world to world.

    @property
    @abstractmethod
    def _now_ns(self) -> int:
        """The time in this world."""

    @abstractmethod
    def _spend(self, cost_ns: int, work: Callable[[], T]) -> Wait[tuple[T, int]]:
        """Do work that should cost so much; what came of it, and how long it took here."""

    @abstractmethod
    def _set_timer(self, deadline_ns: int) -> None:
        """The scheduler wants a ``TimerFired`` then, unless ``_deadline_ns`` is another one by that time."""

    @abstractmethod
    def _load(self, step: LoadStep) -> Wait[None]:
        """Bring a rung in, or a part of it."""

    @abstractmethod
    def _switch(self, step: SwitchStep) -> Wait[None]:
        """Take a cache to another rung, or go on with that."""

    @abstractmethod
    def _prefill(self, step: PrefillStep) -> Wait[None]:
        """Prefill known tokens to a boundary."""

    @abstractmethod
    def _decode(self, step: DecodeStep) -> Wait[None]:
        """Produce tokens to a boundary."""

    # A scheduling round: every fact handled, every decision carried out, then the sample.

    def _round(self) -> Wait[None]:
        if not self._inbox and not self._pending:
            return
        while self._inbox or self._pending:
            if self._inbox:
                event = self._inbox.popleft()
                if isinstance(event, e.TenantCancelled) and not self._part_with(event.tenant):
                    continue  # the answer was complete before
                self._feed(event)
            else:
                yield from self._carry_out(*self._pending.popleft())
        self._record_memory(round=True)
        self._check()

    def _part_with(self, tenant: str) -> bool:
        """Free what a tenant holds, and forget what was asked for it; whether it was still here."""
        running = self._forget(tenant)
        if running is not None and running.admitted:
            self._abandon_switch(tenant)
            self._on_disk.pop(tenant, None)
            self._engine.finish(tenant)
            self._memory.put("kv", tenant, 0)
        self._pending = deque(
            (decision, seq) for decision, seq in self._pending if getattr(decision, "tenant", None) != tenant
        )
        return running is not None

    def _forget(self, tenant: str) -> RunningTenant | None:
        """The tenant is no longer here."""
        return self._running.pop(tenant, None)

    def _report(self, event: e.AnyEvent) -> None:
        """A fact that only confirms what is believed, or after which the policy is not asked."""
        self._conductor.feed(event)

    def _feed(self, event: e.AnyEvent) -> None:
        """Any other fact: it may change when a timer is wanted."""
        self._report(event)
        deadline = self._scheduler.next_deadline_ns()
        if deadline is not None and deadline != self._deadline_ns:
            self._set_timer(deadline)
        self._deadline_ns = deadline

    def _enqueue(self, decision: d.AnyDecision, seq: int) -> None:
        self._pending.append((decision, seq))

    def _carry_out(self, decision: d.AnyDecision, seq: int) -> Wait[None]:
        match decision:
            case d.Defer() | d.Heal():
                pass  # nothing to do now: the steps to come are other ones
            case d.Admit():
                running = self._running[decision.tenant]
                running.rung, running.admitted = decision.rung, True
                self._engine.admit(decision.tenant, running.request, decision.rung, decision.capacity)
                self._put_cache(decision.tenant)
            case d.Retarget():
                self._retarget(decision, seq)
            case d.Park():
                self._park(decision.tenant, seq)
            case d.Spill():
                yield from self._spill(decision.tenant, seq)
            case d.Shed():
                self._shed(decision, seq)
            case d.Release():
                yield from self._release(decision.rung, seq)
            case d.Load():
                self._loads[decision.rung] = PendingLoad(seq)
                size = self._ladder.rung(decision.rung).resident_bytes
                self._memory.put("transient", f"withheld {decision.rung}", 0)
                self._memory.put("transient", f"load {decision.rung}", size)
            case _:
                assert_never(decision)

    def _retarget(self, decision: d.Retarget, seq: int) -> None:
        tenant = decision.tenant
        self._abandon_switch(tenant)
        lost = tenant not in self._on_disk and not self._engine.cache_bytes(tenant)  # its spill failed since
        if lost or decision.route is RouteKind.REREAD:
            self._begin_anew(tenant, decision.dest)
        elif decision.route is None:
            self._engine.grow(tenant, decision.capacity)
        else:
            self._engine.park(tenant)
            if tenant in self._on_disk:  # room for what is to come back
                self._engine.grow(tenant, self._on_disk[tenant])
            destination = Destination(decision.dest, decision.route, decision.capacity, decision.native)
            self._switches[tenant] = PendingSwitch(destination, decision.prediction.kl, seq)
        self._put_cache(tenant)

    def _drop_cache(self, tenant: str, dest: str) -> int:
        """Drop a cache whole, wherever it is; returns the bytes of memory freed."""
        self._on_disk.pop(tenant, None)
        self._running[tenant].rung = dest
        return self._engine.shed(tenant, 0, dest)

    def _begin_anew(self, tenant: str, dest: str) -> None:
        """The tokens are still there: an empty cache, with room for all of them, in which to prefill them again."""
        request = self._running[tenant].request
        self._drop_cache(tenant, dest)
        self._engine.grow(tenant, len(request.prompt_ids) + request.max_tokens - 1)

    def _park(self, tenant: str, seq: int) -> None:
        self._abandon_switch(tenant)
        freed = self._engine.park(tenant)
        self._put_cache(tenant)
        self._feed(e.TenantParked(at_ns=self._now_ns, tenant=tenant, freed_bytes=freed, decision=seq))

    def _spill(self, tenant: str, seq: int) -> Wait[None]:
        size = self._engine.cache_bytes(tenant)
        cells = size // self._ladder.rung(self._running[tenant].rung).kv.bytes_per_token
        outcome, took_ns = yield from self._spend(
            self._costs.spill_ns(size), lambda: _or_error(lambda: self._engine.spill(tenant))
        )
        if isinstance(outcome, SpillError):
            freed = self._drop_cache(tenant, self._running[tenant].rung)
            self._put_cache(tenant)
            self._feed(
                e.SpillFailed(
                    at_ns=self._now_ns,
                    tenant=tenant,
                    freed_bytes=freed,
                    reason=str(outcome),
                    decision=seq,
                )
            )
            return
        self._on_disk[tenant] = cells
        self._put_cache(tenant)
        self._feed(
            e.CacheSpilled(
                at_ns=self._now_ns,
                tenant=tenant,
                cells=cells,
                freed_bytes=outcome,
                duration_ns=took_ns,
                decision=seq,
            )
        )

    def _shed(self, decision: d.Shed, seq: int) -> None:
        rung = self._running[decision.tenant].rung
        self._on_disk.pop(decision.tenant, None)
        freed = self._engine.shed(decision.tenant, decision.keep_cells, rung)
        self._put_cache(decision.tenant)
        self._feed(
            e.ContextShed(
                at_ns=self._now_ns,
                tenant=decision.tenant,
                kept_cells=decision.keep_cells,
                dropped_cells=freed // self._ladder.rung(rung).kv.bytes_per_token,
                freed_bytes=freed,
                decision=seq,
            )
        )

    def _release(self, rung: str, seq: int) -> Wait[None]:
        size, withheld = self._ladder.rung(rung), 0
        if rung in self._loads:
            del self._loads[rung]
            self._engine.release(rung)
            self._memory.put("transient", f"load {rung}", 0)
        else:
            freed, _ = yield from self._spend(
                self._costs.rungs[rung].release_ns, lambda: self._engine.release(rung)
            )
            withheld = size.weight_bytes - freed
            self._memory.move(
                "weights", rung, {("scratch", rung): 0, ("transient", f"withheld {rung}"): withheld}
            )
        self._feed(
            e.RungReleased(
                at_ns=self._now_ns,
                rung=rung,
                freed_bytes=size.resident_bytes - withheld,
                withheld_bytes=withheld,
                decision=seq,
            )
        )

    def _abandon_switch(self, tenant: str) -> None:
        self._switches.pop(tenant, None)
        self._memory.put("transient", f"switch {tenant}", 0)

    # Steps: what takes time between two rounds.

    def _execute(self, step: Step) -> Wait[None]:
        self._suspend_switches(but=step.tenant if isinstance(step, SwitchStep) else None)
        match step:
            case LoadStep():
                yield from self._load(step)
            case RestoreStep():
                yield from self._restore(step)
            case SwitchStep():
                yield from self._switch(step)
            case PrefillStep():
                yield from self._prefill(step)
            case DecodeStep():
                yield from self._decode(step)
            case _:
                assert_never(step)

    def _loaded(self, rung: str) -> None:
        """A rung that was being loaded is there."""
        seq, size = self._loads.pop(rung).decision, self._ladder.rung(rung)
        self._memory.move(
            "transient",
            f"load {rung}",
            {("weights", rung): size.weight_bytes, ("scratch", rung): size.scratch_bytes},
        )
        self._feed(e.RungLoaded(at_ns=self._now_ns, rung=rung, decision=seq))

    def _load_failed(self, rung: str, reason: str) -> None:
        seq = self._loads.pop(rung).decision
        self._memory.put("transient", f"load {rung}", 0)
        self._feed(e.LoadFailed(at_ns=self._now_ns, rung=rung, reason=reason, decision=seq))

    def _restore(self, step: RestoreStep) -> Wait[None]:
        size = self._ladder.rung(step.rung).kv_bytes(step.cells)
        outcome, took_ns = yield from self._spend(
            self._costs.restore_ns(size), lambda: _or_error(lambda: self._engine.restore(step.tenant))
        )
        self._on_disk.pop(step.tenant, None)
        if not isinstance(outcome, SpillError):
            self._feed(
                e.CacheRestored(at_ns=self._now_ns, tenant=step.tenant, cells=step.cells, duration_ns=took_ns)
            )
            return
        pending = self._switches.get(step.tenant)
        dest = step.rung if pending is None else pending.destination.dest
        self._abandon_switch(step.tenant)
        self._begin_anew(step.tenant, dest)
        self._put_cache(step.tenant)
        self._feed(e.RestoreFailed(at_ns=self._now_ns, tenant=step.tenant, dest=dest, reason=str(outcome)))

    def _hold_for_switch(self, step: SwitchStep, pending: PendingSwitch) -> None:
        """What a switch takes beside the old cache while it is at work: the new cache and the map."""
        map_bytes = self._ladder.route(step.source, step.dest).map_bytes
        new_cache = self._ladder.rung(step.dest).kv_bytes(pending.destination.capacity)
        self._memory.put("transient", f"switch {step.tenant}", new_cache + map_bytes)

    def _suspend_switches(self, but: str | None) -> None:
        """A switch holds its transient only while it is at work: one that was overtaken begins again later."""
        for tenant, pending in self._switches.items():
            if tenant != but and pending.done_ns is not None:
                pending.done_ns = None
                self._engine.park(tenant)  # the cache is trimmed already; a switch half done is dropped
                self._memory.put("transient", f"switch {tenant}", 0)

    def _do_switch(
        self, step: SwitchStep, pending: PendingSwitch, within_ns: int | None = None
    ) -> e.Handoff | SwitchError | None:
        """Take a cache to its destination, or raise ``Unfinished`` when this time is over."""
        try:
            handoff = self._engine.switch(step.tenant, pending.destination, within_ns)
        except SwitchError as error:
            self._begin_anew(step.tenant, step.dest)
            return error
        self._running[step.tenant].rung = step.dest
        return handoff

    def _switch_done(
        self, step: SwitchStep, pending: PendingSwitch, outcome: e.Handoff | SwitchError | None, took_ns: int
    ) -> None:
        """A switch is done, or has failed."""
        del self._switches[step.tenant]
        self._memory.move(
            "transient",
            f"switch {step.tenant}",
            {("kv", step.tenant): self._engine.cache_bytes(step.tenant)},
        )
        if isinstance(outcome, SwitchError):
            self._feed(
                e.SwitchFailed(
                    at_ns=self._now_ns,
                    tenant=step.tenant,
                    source=step.source,
                    dest=step.dest,
                    reason=str(outcome),
                    decision=pending.decision,
                )
            )
            return
        self._feed(
            e.Switched(
                at_ns=self._now_ns,
                tenant=step.tenant,
                source=step.source,
                dest=step.dest,
                route=pending.destination.route,
                cells=step.cells,
                duration_ns=took_ns,
                settled=self._engine.settled_cells(step.tenant),
                native=pending.destination.native,
                predicted_kl=pending.predicted_kl,
                handoff=outcome,
                decision=pending.decision,
            )
        )

    def _finished(self, tenant: str, reason: str) -> None:
        """An answer is complete."""
        self._engine.finish(tenant)
        self._forget(tenant)
        self._memory.put("kv", tenant, 0)
        self._feed(e.TenantFinished(at_ns=self._now_ns, tenant=tenant, reason=reason))

    # Death, and coming back.

    def _die(self) -> int:
        """Everything is lost at once; returns the usage the process died with."""
        self._record_memory(round=True)  # the round that was not finished in time
        usage = self._memory.usage_bytes
        self._alive = False
        self._engine.kill()
        self._pending.clear()
        self._inbox.clear()
        self._loads.clear()
        self._switches.clear()
        self._on_disk.clear()
        self._deadline_ns = None
        self._report(e.ProcessKilled(at_ns=self._now_ns))
        self._memory.clear()
        self._check()
        return usage

    def _begin_again(self) -> None:
        """The process is there again, cold; tenants that had begun begin anew."""
        self._inbox.clear()
        self._alive = True
        self._report(e.ProcessStarted(at_ns=self._now_ns))
        self._report(e.BudgetChanged(at_ns=self._now_ns, budget_bytes=self._budget_bytes))
        for running in self._running.values():
            running.attempt += running.admitted
            running.admitted = False
            self._inbox.append(running.arrived(self._now_ns))

    # Books.

    def _put_cache(self, tenant: str) -> None:
        self._memory.put("kv", tenant, self._engine.cache_bytes(tenant))

    def _memory_changed(self) -> None:
        self._record_memory()

    def _record_memory(self, *, round: bool = False) -> None:
        self._log.write(
            "memory",
            self._now_ns,
            budget_bytes=self._budget_bytes,
            usage_bytes=self._memory.usage_bytes,
            parts=self._memory.parts,
            round=round,
        )

    def _unsettled(self, state: State) -> list[tuple[str, str]]:
        """Tenants of whose cache another part is exact than is believed."""
        believed = {t.name: t.settled for t in state.tenants.values() if t.phase is not Phase.WAITING}
        true = {name: self._engine.settled_cells(name) for name in believed if self._running[name].admitted}
        return [] if true == believed else [("healing_is_as_believed", f"believed {believed}, true {true}")]

    def _check(self) -> None:
        state = self._scheduler.state
        found = violations(state, self._ladder, self._policy)
        found += disagreements(state, self._ladder, self._policy, self._memory)
        found += self._unsettled(state)
        for invariant, detail in found:
            self._log.write("violation", self._now_ns, invariant=invariant, detail=detail)
            self.violations.append(
                {
                    "policy": self._policy.name,
                    "at_ns": self._now_ns,
                    "invariant": invariant,
                    "detail": detail,
                }
            )


def _or_error(work: Callable[[], T]) -> T | SpillError:
    """What work gives, or the ``SpillError`` it raises."""
    try:
        return work()
    except SpillError as error:
        return error
