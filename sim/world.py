"""The simulated world: one device, one process, a moving budget, and tenants who want answers. Simpy is the clock.

Rules of this world:
- Compute is serial. A step runs to its boundary; facts that arrive meanwhile are handled there, before anyone takes
  another step. What a step itself brings about is reported first, as soon as it is done.
- What a decision asks for happens in order and takes its time; memory changes when the work is done, except that
  what is being brought in counts in full from the start.
- A run of tokens that nothing can interrupt is one simpy event; ``TokensProduced`` has the time of each token.
- The world never asks the scheduler what is true. It keeps its own books.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, assert_never

import simpy

from molt.checkers import disagreements
from molt.conductor import Conductor
from molt.core import decisions as d
from molt.core import events as e
from molt.core.bound import CHUNK_NS_MAX
from molt.core.costs import CostModel
from molt.core.healing import chunk, settled_after
from molt.core.invariants import violations
from molt.core.ladder import Ladder, RouteKind
from molt.core.scheduler import Scheduler
from molt.core.state import Phase, State
from molt.core.turns import DecodeStep, LoadStep, ReadStep, RestoreStep, Step, SwitchStep
from molt.core.view import Policy
from molt.engine.protocol import Decoded, Engine, LoadError, SpillError, SwitchError
from molt.log import Log
from molt.memory import Memory
from molt.scenario import ResolvedScenario, ResolvedTenant
from sim.memory import OutOfMemoryKiller

Wait = Generator[simpy.Event, Any, None]


@dataclass(slots=True)
class _Guest:
    """A tenant as the world knows it."""

    tenant: ResolvedTenant
    attempt: int = 1
    rung: str = ""
    admitted: bool = False


@dataclass(frozen=True, slots=True)
class _Move:
    """A cache that is to go to another rung."""

    dest: str
    route: RouteKind
    capacity: int
    native: int
    predicted_kl: float
    decision: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens under way: what the engine made of them, when each is complete, how many tokens each step re-read."""

    tenant: str
    rung: str
    stamps_ns: tuple[int, ...]
    healed: tuple[int, ...]
    heal: int
    decoded: Decoded


def _or_error(work: Callable[[], Any]) -> Any:
    """What work gives, or the ``SpillError`` it raises."""
    try:
        return work()
    except SpillError as error:
        return error


class World:
    """One policy's run of one scenario.

    ``signal_delays`` says how long after each change of the budget the process hears of it: once at once, unless it
    gives something else (nothing: never; several: more than once). ``costs`` are what everything takes;
    ``believed``, what the scheduler takes them for, where that is something else.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        ladder: Ladder,
        costs: CostModel,
        policy: Policy,
        engine: Engine,
        log: Log,
        *,
        believed: CostModel | None = None,
        measured_clock: bool = False,
        signal_delays: Callable[[], tuple[int, ...]] = lambda: (0,),
        on_progress: Callable[[int], None] = lambda now_ns: None,
    ) -> None:
        self._scenario = scenario
        self._ladder = ladder
        self._costs = costs
        self._policy = policy
        self._engine = engine
        self._log = log
        self._measured = measured_clock
        self._signal_delays = signal_delays
        self._on_progress = on_progress

        self._env = simpy.Environment(initial_time=0)
        self._scheduler = Scheduler(ladder, believed or costs, policy)
        self._conductor = Conductor(self._scheduler, log, self._enqueue)
        self._memory = Memory(self._memory_changed)
        self._oom = OutOfMemoryKiller(self._env, scenario.kill_after_ns, self._kill)
        self._budget_bytes = 0
        self._guests: dict[str, _Guest] = {}
        self._inbox: deque[e.AnyEvent] = deque()
        self._pending: deque[tuple[d.AnyDecision, int]] = deque()
        self._wakeup = self._env.event()
        self._loads: dict[str, tuple[int, int]] = {}
        self._moves: dict[str, _Move] = {}
        self._on_disk: dict[str, int] = {}
        self._switch_done_ns: dict[str, int] = {}
        self._run: _Run | None = None
        self._deadline_ns: int | None = None
        self._alive = True
        self.violations: list[dict[str, Any]] = []

    def run(self) -> None:
        """Simulate from 0 to the horizon."""
        self._env.process(self._trace())
        for tenant in self._scenario.tenants:
            self._env.process(self._arrival(tenant))
        self._main = self._env.process(self._life())
        self._env.run(until=self._scenario.horizon_ns)
        self._flush_run()
        self._log.write("end", self._scenario.horizon_ns, reason="horizon")
        self._engine.kill()

    # What happens by itself.

    def _trace(self) -> Wait:
        for at_ns, budget in self._scenario.budgets:
            yield self._env.timeout(at_ns - self._now_ns)
            self._budget_bytes = budget
            self._record_memory()
            self._oom.observe(self._memory.usage_bytes, budget)
            for delay_ns in self._signal_delays():
                if delay_ns:
                    self._env.process(self._late_signal(delay_ns))
                else:
                    self._signal()

    def _signal(self) -> None:
        """Tell the process what it may have; while there is none, nobody hears it."""
        if self._alive:
            self._tell(e.BudgetChanged(at_ns=self._now_ns, budget_bytes=self._budget_bytes))
        else:
            self._wake()

    def _late_signal(self, delay_ns: int) -> Wait:
        yield self._env.timeout(delay_ns)
        self._signal()

    def _arrival(self, tenant: ResolvedTenant) -> Wait:
        yield self._env.timeout(tenant.arrives_ns)
        self._guests[tenant.name] = _Guest(tenant)
        if self._alive:
            self._tell(self._arrived(self._guests[tenant.name]))
        if tenant.leaves_ns is not None:
            yield self._env.timeout(tenant.leaves_ns - tenant.arrives_ns)
            self._leave(tenant.name)

    def _leave(self, tenant: str) -> None:
        """Whoever asked is gone; what the answer holds is freed at the next boundary."""
        if tenant not in self._guests:
            return
        if self._alive:
            self._tell(e.TenantCancelled(at_ns=self._now_ns, tenant=tenant))
        else:
            del self._guests[tenant]

    def _arrived(self, guest: _Guest) -> e.TenantArrived:
        return e.TenantArrived(
            at_ns=self._now_ns,
            tenant=guest.tenant.name,
            tenant_kind=guest.tenant.kind,
            prompt_tokens=len(guest.tenant.request.prompt_ids),
            max_tokens=guest.tenant.request.max_tokens,
            attempt=guest.attempt,
        )

    def _timer(self, deadline_ns: int) -> Wait:
        yield self._env.timeout(max(0, deadline_ns - self._now_ns))
        if self._deadline_ns == deadline_ns and self._alive:
            self._deadline_ns = None
            self._tell(e.TimerFired(at_ns=self._now_ns))

    def _tell(self, event: e.AnyEvent) -> None:
        self._inbox.append(event)
        self._wake()

    def _wake(self) -> None:
        if not self._wakeup.triggered:
            self._wakeup.succeed()

    def _kill(self) -> None:
        self._main.interrupt("killed")

    # The life of the process.

    def _life(self) -> Wait:
        while True:
            try:
                yield from self._alive_loop()
            except simpy.Interrupt:
                needed = self._die()
                yield from self._come_back(needed)

    def _alive_loop(self) -> Wait:
        while True:
            yield from self._round()
            step = self._scheduler.next_step()
            if step is None:
                yield self._sleep()
            else:
                yield from self._execute(step)
            self._on_progress(self._now_ns)

    def _sleep(self) -> simpy.Event:
        self._wakeup = self._env.event()
        if self._inbox:
            self._wakeup.succeed()
        return self._wakeup

    def _die(self) -> int:
        """Everything is lost at once; returns the usage the process died with."""
        self._flush_run()
        self._record_memory(round=True)  # the round that was not finished in time
        usage = self._memory.usage_bytes
        self._alive = False
        self._engine.kill()
        self._pending.clear()
        self._inbox.clear()
        self._loads.clear()
        self._moves.clear()
        self._on_disk.clear()
        self._switch_done_ns.clear()
        self._deadline_ns = None
        self._conductor.feed(e.ProcessKilled(at_ns=self._now_ns))
        self._memory.clear()
        self._check()
        return usage

    def _come_back(self, needed_bytes: int) -> Wait:
        """A killed app is started again, cold, once there is as much memory as it died with."""
        while self._budget_bytes < needed_bytes:
            self._inbox.clear()
            yield self._sleep()
        yield self._env.timeout(self._costs.process_start_ns)
        self._inbox.clear()
        self._alive = True
        self._conductor.feed(e.ProcessStarted(at_ns=self._now_ns))
        self._conductor.feed(e.BudgetChanged(at_ns=self._now_ns, budget_bytes=self._budget_bytes))
        for guest in self._guests.values():
            guest.attempt += guest.admitted
            guest.admitted = False
            self._inbox.append(self._arrived(guest))

    # A scheduling round: every fact handled, every decision carried out, then the sample.

    def _round(self) -> Wait:
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
        guest = self._guests.pop(tenant, None)
        if guest is not None and guest.admitted:
            self._abandon_move(tenant)
            self._on_disk.pop(tenant, None)
            self._engine.finish(tenant)
            self._memory.put("kv", tenant, 0)
        self._pending = deque(
            (decision, seq) for decision, seq in self._pending if getattr(decision, "tenant", None) != tenant
        )
        return guest is not None

    def _feed(self, event: e.AnyEvent) -> None:
        self._conductor.feed(event)
        deadline = self._scheduler.next_deadline_ns()
        if deadline is not None and deadline != self._deadline_ns:
            self._env.process(self._timer(deadline))
        self._deadline_ns = deadline

    def _enqueue(self, decision: d.AnyDecision, seq: int) -> None:
        self._pending.append((decision, seq))

    def _carry_out(self, decision: d.AnyDecision, seq: int) -> Wait:
        match decision:
            case d.Defer() | d.Heal():
                pass  # nothing to do now: the steps to come are other ones
            case d.Admit():
                guest = self._guests[decision.tenant]
                guest.rung, guest.admitted = decision.rung, True
                self._engine.admit(decision.tenant, guest.tenant.request, decision.rung, decision.capacity)
                self._put_cache(decision.tenant)
            case d.Demote() | d.Promote() | d.Unpark():
                self._retarget(decision, seq)
            case d.Park():
                self._abandon_move(decision.tenant)
                freed = self._engine.park(decision.tenant)
                self._put_cache(decision.tenant)
                self._feed(
                    e.TenantParked(
                        at_ns=self._now_ns, tenant=decision.tenant, freed_bytes=freed, decision=seq
                    )
                )
            case d.Spill():
                yield from self._spill(decision.tenant, seq)
            case d.Shed():
                self._shed(decision, seq)
            case d.Release():
                yield from self._release(decision.rung, seq)
            case d.Load():
                self._loads[decision.rung] = (0, seq)
                size = self._ladder.rung(decision.rung).resident_bytes
                self._memory.put("transient", f"withheld {decision.rung}", 0)
                self._memory.put("transient", f"load {decision.rung}", size)
            case _:
                assert_never(decision)

    def _retarget(self, decision: d.Demote | d.Promote | d.Unpark, seq: int) -> None:
        tenant = decision.tenant
        self._abandon_move(tenant)
        if decision.route is RouteKind.REREAD:
            self._drop_cache(tenant, decision.dest)
        if decision.route in (None, RouteKind.REREAD):
            self._engine.grow(tenant, decision.capacity)
        else:
            assert decision.route is not None
            self._engine.park(tenant)
            if tenant in self._on_disk:  # room for what is to come back
                self._engine.grow(tenant, self._on_disk[tenant])
            self._moves[tenant] = _Move(
                decision.dest,
                decision.route,
                decision.capacity,
                decision.native,
                decision.prediction.kl,
                seq,
            )
        self._put_cache(tenant)

    def _drop_cache(self, tenant: str, dest: str) -> int:
        """Drop a cache whole, wherever it is; returns the bytes of memory freed."""
        self._on_disk.pop(tenant, None)
        self._guests[tenant].rung = dest
        return self._engine.shed(tenant, 0, dest)

    def _begin_anew(self, tenant: str, dest: str) -> None:
        """The tokens are still there: an empty cache, with room for all of them, to read them into again."""
        request = self._guests[tenant].tenant.request
        self._drop_cache(tenant, dest)
        self._engine.grow(tenant, len(request.prompt_ids) + request.max_tokens - 1)

    def _spill(self, tenant: str, seq: int) -> Wait:
        size = self._engine.cache_bytes(tenant)
        cells = size // self._ladder.rung(self._guests[tenant].rung).kv.bytes_per_token
        outcome, took_ns = self._timed(
            self._costs.spill_ns(size), lambda: _or_error(lambda: self._engine.spill(tenant))
        )
        yield self._env.timeout(took_ns)
        if isinstance(outcome, SpillError):
            freed = self._drop_cache(tenant, self._guests[tenant].rung)
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

    def _restore(self, step: RestoreStep) -> Wait:
        size = self._ladder.rung(step.rung).kv_bytes(step.cells)
        outcome, took_ns = self._timed(
            self._costs.restore_ns(size), lambda: _or_error(lambda: self._engine.restore(step.tenant))
        )
        yield self._env.timeout(took_ns)
        self._on_disk.pop(step.tenant, None)
        if not isinstance(outcome, SpillError):
            self._feed(
                e.CacheRestored(at_ns=self._now_ns, tenant=step.tenant, cells=step.cells, duration_ns=took_ns)
            )
            return
        move = self._moves.get(step.tenant)
        dest = step.rung if move is None else move.dest
        self._abandon_move(step.tenant)
        self._begin_anew(step.tenant, dest)
        self._put_cache(step.tenant)
        self._feed(e.RestoreFailed(at_ns=self._now_ns, tenant=step.tenant, dest=dest, reason=str(outcome)))

    def _shed(self, decision: d.Shed, seq: int) -> None:
        rung = self._guests[decision.tenant].rung
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

    def _release(self, rung: str, seq: int) -> Wait:
        size, withheld = self._ladder.rung(rung), 0
        if rung in self._loads:
            del self._loads[rung]
            self._memory.put("transient", f"load {rung}", 0)
        else:
            freed, took_ns = self._timed(
                self._costs.rungs[rung].release_ns, lambda: self._engine.release(rung)
            )
            yield self._env.timeout(took_ns)
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

    def _abandon_move(self, tenant: str) -> None:
        self._moves.pop(tenant, None)
        self._switch_done_ns.pop(tenant, None)
        self._memory.put("transient", f"switch {tenant}", 0)

    def _suspend_switches(self, but: str | None) -> None:
        """A switch holds its transient only while it is at work: one that was overtaken begins again later."""
        for tenant in [name for name in self._switch_done_ns if name != but]:
            del self._switch_done_ns[tenant]
            self._memory.put("transient", f"switch {tenant}", 0)

    # Steps: what takes time between two rounds.

    def _execute(self, step: Step) -> Wait:
        self._suspend_switches(but=step.tenant if isinstance(step, SwitchStep) else None)
        match step:
            case LoadStep():
                yield from self._load(step)
            case RestoreStep():
                yield from self._restore(step)
            case SwitchStep():
                yield from self._switch(step)
            case ReadStep():
                yield from self._read(step)
            case DecodeStep():
                yield from self._decode(step)
            case _:
                assert_never(step)

    def _load(self, step: LoadStep) -> Wait:
        rung = step.rung
        done_ns, seq = self._loads[rung]
        total_ns = self._costs.rungs[rung].load_ns
        if self._measured:
            _, total_ns = self._timed(total_ns, lambda: self._engine.load(rung))
            yield self._env.timeout(total_ns)
            done_ns = total_ns
        else:
            stretch_ns = min(CHUNK_NS_MAX, total_ns - done_ns) if step.aside else total_ns - done_ns
            done_ns += yield from self._chunks(stretch_ns)
        self._loads[rung] = (done_ns, seq)
        if done_ns < total_ns:
            if step.aside:
                self._conductor.feed(e.LoadProgressed(at_ns=self._now_ns, rung=rung))
            return
        del self._loads[rung]
        if not self._measured:
            try:
                self._engine.load(rung)
            except LoadError as error:
                self._memory.put("transient", f"load {rung}", 0)
                self._feed(e.LoadFailed(at_ns=self._now_ns, rung=rung, reason=str(error), decision=seq))
                return
        size = self._ladder.rung(rung)
        self._memory.move(
            "transient",
            f"load {rung}",
            {("weights", rung): size.weight_bytes, ("scratch", rung): size.scratch_bytes},
        )
        self._feed(e.RungLoaded(at_ns=self._now_ns, rung=rung, decision=seq))

    def _switch(self, step: SwitchStep) -> Wait:
        move = self._moves[step.tenant]
        total_ns = self._costs.switch_ns(step.source, step.dest, step.cells, move.native)
        map_bytes = self._ladder.route(step.source, step.dest).map_bytes
        new_cache = self._ladder.rung(step.dest).kv_bytes(move.capacity)
        self._memory.put("transient", f"switch {step.tenant}", new_cache + map_bytes)
        done_ns = self._switch_done_ns.get(step.tenant, 0)
        if not self._measured:
            done_ns += yield from self._chunks(total_ns - done_ns)
            self._switch_done_ns[step.tenant] = done_ns
            if done_ns < total_ns:
                return
        outcome, took_ns = self._timed(total_ns, lambda: self._cross(step, move))
        if self._measured:
            yield self._env.timeout(took_ns)
        del self._moves[step.tenant]
        self._switch_done_ns.pop(step.tenant, None)
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
                    decision=move.decision,
                )
            )
            return
        self._feed(
            e.Switched(
                at_ns=self._now_ns,
                tenant=step.tenant,
                source=step.source,
                dest=step.dest,
                route=move.route,
                cells=step.cells,
                duration_ns=took_ns,
                settled=self._engine.settled_cells(step.tenant),
                native=move.native,
                predicted_kl=move.predicted_kl,
                handoff=outcome,
                decision=move.decision,
            )
        )

    def _cross(self, step: SwitchStep, move: _Move) -> e.Handoff | SwitchError | None:
        self._guests[step.tenant].rung = step.dest
        try:
            return self._engine.switch(step.tenant, step.dest, move.route, move.capacity, move.native)
        except SwitchError as error:
            self._begin_anew(step.tenant, step.dest)
            return error

    def _read(self, step: ReadStep) -> Wait:
        tokens, cost_ns = self._stretch_of_reading(step)
        _, took_ns = self._timed(cost_ns, lambda: self._engine.read(step.tenant, tokens, step.chunk))
        yield self._env.timeout(took_ns)
        self._conductor.feed(
            e.PromptRead(at_ns=self._now_ns, tenant=step.tenant, rung=step.rung, tokens=tokens)
        )

    def _stretch_of_reading(self, step: ReadStep) -> tuple[int, int]:
        """Tokens and time of the chunks up to the first boundary after the next event of the world."""
        cost = self._costs.rungs[step.rung].read
        gap_ns = self._env.peek() - self._now_ns
        tokens = cost_ns = 0
        while tokens < step.tokens and (tokens == 0 or cost_ns < gap_ns):
            chunk = min(step.chunk, step.tokens - tokens)
            cost_ns += cost.ns(chunk, step.context + tokens)
            tokens += chunk
            if self._measured:
                break
        return tokens, cost_ns

    def _decode(self, step: DecodeStep) -> Wait:
        stamps, healed = self._stamps(step)
        decoded, took_ns = self._timed(
            stamps[-1] - self._now_ns, lambda: self._engine.decode(step.tenant, len(stamps), step.heal)
        )
        if self._measured:
            stamps = [self._now_ns + took_ns]
        stamps = stamps[: decoded.count]
        self._run = _Run(step.tenant, step.rung, tuple(stamps), tuple(healed), step.heal, decoded)
        yield self._env.timeout(stamps[-1] - self._now_ns)
        self._flush_run()
        if decoded.finish is not None:
            self._engine.finish(step.tenant)
            del self._guests[step.tenant]
            self._memory.put("kv", step.tenant, 0)
            self._feed(e.TenantFinished(at_ns=self._now_ns, tenant=step.tenant, reason=decoded.finish))

    def _stamps(self, step: DecodeStep) -> tuple[list[int], list[int]]:
        """Completion times of the tokens up to the first that ends after the next event of the world, and how many
        tokens each of their steps re-reads."""
        costs = self._costs.rungs[step.rung]
        next_event_ns = self._env.peek()
        at_ns, settled = self._now_ns, step.settled
        stamps: list[int] = []
        re_read: list[int] = []
        for cells in range(step.context, step.context + step.tokens):
            healed = chunk(cells, settled, step.heal)
            settled = settled_after(cells, settled, healed)
            at_ns += costs.healing_ns(healed, cells)
            stamps.append(at_ns)
            re_read.append(healed)
            if self._measured or at_ns >= next_event_ns:
                break
        return stamps, re_read

    def _flush_run(self) -> None:
        """Report the tokens of the run under way that are complete by now."""
        run, self._run = self._run, None
        if run is None:
            return
        count = sum(stamp <= self._now_ns for stamp in run.stamps_ns)
        if count:
            self._conductor.feed(
                e.TokensProduced(
                    at_ns=run.stamps_ns[count - 1],
                    tenant=run.tenant,
                    rung=run.rung,
                    count=count,
                    stamps_ns=run.stamps_ns[:count],
                    pieces=run.decoded.pieces[:count],
                    heal=run.heal,
                    healed=sum(run.healed[:count]),
                )
            )

    def _chunks(self, remaining_ns: int) -> Generator[simpy.Event, Any, int]:
        """Let work of ``remaining_ns`` go on to the first chunk boundary at which something has happened."""
        gap_ns = self._env.peek() - self._now_ns
        whole = (
            remaining_ns if gap_ns >= remaining_ns else max(1, -(-int(gap_ns) // CHUNK_NS_MAX)) * CHUNK_NS_MAX
        )
        stretch_ns = min(remaining_ns, whole)
        yield self._env.timeout(stretch_ns)
        return stretch_ns

    def _timed(self, cost_ns: int, work: Callable[[], Any]) -> tuple[Any, int]:
        """Do the work; how long it takes in this world: as profiled, or as it just did."""
        begin_ns = time.perf_counter_ns()
        result = work()
        took_ns = round((time.perf_counter_ns() - begin_ns) * self._scenario.slowdown)
        return result, max(1, took_ns) if self._measured else cost_ns

    # Books.

    @property
    def _now_ns(self) -> int:
        return int(self._env.now)

    def _put_cache(self, tenant: str) -> None:
        self._memory.put("kv", tenant, self._engine.cache_bytes(tenant))

    def _memory_changed(self) -> None:
        self._record_memory()
        self._oom.observe(self._memory.usage_bytes, self._budget_bytes)

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
        true = {name: self._engine.settled_cells(name) for name in believed if self._guests[name].admitted}
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
