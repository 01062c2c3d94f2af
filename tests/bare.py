"""A second world, in one file: no simpy, no engine, nothing collapsed, and what goes wrong in it is chosen.

It exists to disagree. Its books are its own: a cache is the list of positions of the tokens in it, an answer the list
of positions produced. It goes from boundary to boundary (one token, one chunk), so it is the simulator expanded. With
the simulator it shares the scheduler under test, the costs, and the class that adds up memory.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from molt.core import decisions as d
from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.engine_protocol import SINKS
from molt.core.healing import chunk, settled_after
from molt.core.ladder import Ladder, RouteKind
from molt.core.scheduler import Scheduler
from molt.core.state import State, after_event
from molt.core.turns import DecodeStep, LoadStep, PrefillStep, RestoreStep, Step, SwitchStep, prefill_slice_ns
from molt.core.view import Policy
from molt.formats.log import plain
from molt.jobs.scenario import ResolvedScenario, ResolvedTenant
from molt.worlds.memory_books import MemoryBooks

CHUNK_NS = 50_000_000
Content = tuple[str, tuple[int, ...], int]


@dataclass(slots=True)
class Cache:
    """Positions of the tokens that one tenant's cache holds, in the geometry of ``rung``, in room for ``room``.

    Those of a cache ``on_disk`` have no room, or room to come back to.
    """

    rung: str
    room: int
    positions: list[int] = field(default_factory=list)
    read: int = 0
    settled: int = 0
    on_disk: bool = False

    def content(self) -> Content:
        """What must not change while no step works on it."""
        return self.rung, tuple(self.positions), self.settled

    def drop(self) -> None:
        """Forget every token; they will be prefilled again."""
        self.positions, self.read, self.settled, self.on_disk = [], 0, 0, False


@dataclass(slots=True)
class Faults:
    """What goes wrong next: so many loads, switches, writings to disk or readings back fail, loads take so many times
    longer, and a release keeps a share of its bytes for itself."""

    failing_loads: int = 0
    failing_switches: int = 0
    failing_spills: int = 0
    failing_restores: int = 0
    slowness: int = 1
    withheld_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What was decided on a fact, the belief on which it was, and the one it led to."""

    fact: e.AnyEvent
    seen: State
    decisions: tuple[d.AnyDecision, ...]
    after: State


class BareWorld:
    """One scheduler's world: ``post`` facts for later, let it ``run``, look at the books at any time.

    ``watch`` is called whenever a round is over: everything asked for has been carried out.
    """

    def __init__(
        self,
        policy: Policy,
        ladder: Ladder,
        costs: CostModel,
        watch: Callable[[BareWorld], None] = lambda world: None,
    ) -> None:
        self.policy, self.ladder, self.costs, self.watch = policy, ladder, costs, watch
        self.scheduler = Scheduler(ladder, costs, policy)
        self.faults = Faults()
        self.now_ns = 0
        self.budget_bytes = 0
        self.reported_bytes = 0
        self.memory = MemoryBooks(self._memory_changed)
        self.caches: dict[str, Cache] = {}
        self.prompts: dict[str, int] = {}
        self.longest: dict[str, int] = {}
        self.sheds: Counter[str] = Counter()
        self.falls_ns: list[int] = []
        self.requests: dict[str, e.TenantArrived] = {}
        self.answers: dict[str, list[int]] = {}
        self.parked: dict[str, Content] = {}
        self.loads: dict[str, int] = {}
        self.moves: dict[str, d.Retarget] = {}
        self.switch_done_ns: dict[str, int] = {}
        self.chunk: tuple[str, int, int] | None = None
        """The chunk of prefill under way: whose, on how many cells, and the time that has gone into it."""
        self.finished: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.records: list[tuple[int, e.AnyEvent | d.AnyDecision, int]] = []
        self.samples: list[tuple[int, int, int]] = []
        self.asked: list[Asked] = []
        self.excursions_ns: list[tuple[int, int]] = []
        """When usage was above the budget, from and to."""
        self.inflicted: list[str] = []
        """When usage grew above the budget, or further above it, by what the world did itself."""
        self._usage_bytes = 0
        self._over_since_ns: int | None = None
        self._agenda: list[tuple[int, int, int | None, e.AnyEvent | None]] = []
        self._posted = 0
        self._inbox: deque[e.AnyEvent] = deque()
        self._pending: deque[tuple[d.AnyDecision, int]] = deque()
        self._asked_under_bytes = 0
        self._deadline_ns: int | None = None

    @property
    def state(self) -> State:
        """What the scheduler believes."""
        return self.scheduler.state

    # What happens by itself.

    def post(self, fact: e.AnyEvent) -> None:
        """A fact that will be reported when its time has come."""
        self._post(fact.at_ns, None, fact)

    def post_budget(self, at_ns: int, budget_bytes: int, reported_after_ns: Iterable[int] = (0,)) -> None:
        """A budget that holds from ``at_ns`` and is reported as often, and as late, as said."""
        self._post(at_ns, budget_bytes, None)
        for late_ns in reported_after_ns:
            fact = e.BudgetChanged(at_ns=at_ns, budget_bytes=budget_bytes)
            self._post(at_ns + late_ns, None, fact)

    def _post(self, at_ns: int, budget_bytes: int | None, fact: e.AnyEvent | None) -> None:
        assert at_ns >= self.now_ns, "nothing is posted into the past"
        self._posted += 1
        heapq.heappush(self._agenda, (at_ns, self._posted, budget_bytes, fact))

    def _next_ns(self) -> int | None:
        times = [self._agenda[0][0]] if self._agenda else []
        return min([*times, self._deadline_ns] if self._deadline_ns is not None else times, default=None)

    def _elapse(self, ns: int) -> None:
        """Let time go by; what happens meanwhile waits in the inbox."""
        assert ns >= 0, "time does not go back"
        end_ns = self.now_ns + ns
        while (next_ns := self._next_ns()) is not None and next_ns <= end_ns:
            self.now_ns = max(self.now_ns, next_ns)
            if self._deadline_ns == next_ns and not (self._agenda and self._agenda[0][0] == next_ns):
                self._deadline_ns = None
                self._inbox.append(e.TimerFired(at_ns=next_ns))
                continue
            _, _, budget_bytes, fact = heapq.heappop(self._agenda)
            if budget_bytes is not None:
                if budget_bytes < self.budget_bytes:
                    self.falls_ns.append(next_ns)
                self.budget_bytes = budget_bytes
                self._memory_changed()
            if fact is not None and not self._comes_too_late(fact):
                self._inbox.append(fact)
        self.now_ns = end_ns

    def _comes_too_late(self, fact: e.AnyEvent) -> bool:
        """A request that is withdrawn once the answer is there is not reported."""
        return isinstance(fact, e.TenantCancelled) and fact.tenant in self.finished

    def jump(self, ns: int) -> None:
        """The clock goes on by ``ns`` while nothing works, as when a lid is closed."""
        self._elapse(ns)

    # Rounds and steps.

    def run(self, until_ns: int) -> None:
        """Live until ``until_ns``, or the boundary after it."""
        self._elapse(0)
        while self.now_ns < until_ns:
            if not self.live() and self.now_ns < until_ns:
                next_ns = self._next_ns()
                idle_ns = (until_ns if next_ns is None else min(next_ns, until_ns)) - self.now_ns
                self._elapse(max(0, idle_ns))  # what was due meanwhile is reported now
        self.settle()

    def settle(self) -> None:
        """Carry out what was asked for by now."""
        self._round()

    def live(self) -> bool:
        """A round and a step to its boundary; whether there was a step to take."""
        self._round()
        step = self.scheduler.next_step()
        if step is None:
            return False
        self._execute(step)
        return True

    def _round(self) -> None:
        if not self._inbox and not self._pending:
            return
        while self._inbox or self._pending:
            if self._inbox:
                self._feed(self._inbox.popleft())
            else:
                decision, self._asked_under_bytes = self._pending.popleft()
                self._carry_out(decision)
                self._asked_under_bytes = 0
        self.samples.append((self.now_ns, self.memory.usage_bytes, self.budget_bytes))
        self.watch(self)

    def _feed(self, fact: e.AnyEvent) -> None:
        match fact:
            case e.TenantArrived():
                self.requests[fact.tenant] = fact
                self.answers[fact.tenant] = []
                self.prompts[fact.tenant] = fact.prompt_tokens
                self.longest[fact.tenant] = fact.prompt_tokens + fact.max_tokens
            case e.TenantCancelled():
                if fact.tenant not in self.requests:
                    return  # the answer was complete before
                self._forget(fact.tenant)
                self.cancelled.add(fact.tenant)
            case e.BudgetChanged():
                self.reported_bytes = fact.budget_bytes
            case _:
                pass
        self._record(fact, fact.at_ns)
        before = self.state
        decisions = self.scheduler.handle(fact)
        if decisions:
            self.asked.append(Asked(fact, after_event(before, fact), decisions, self.state))
        for decision in decisions:
            self._record(decision, fact.at_ns)
        self._pending.extend((decision, self.reported_bytes) for decision in decisions)
        self._deadline_ns = self.scheduler.next_deadline_ns()

    def _record(self, fact: e.AnyEvent | d.AnyDecision, at_ns: int) -> None:
        self.records.append((self.now_ns, fact, at_ns))

    def _carry_out(self, decision: d.AnyDecision) -> None:
        tenant = getattr(decision, "tenant", None)
        if tenant is not None and tenant not in self.requests:
            return  # cancelled after this was asked
        if not isinstance(decision, d.Admit | d.Defer | d.Heal | d.Load):
            self.chunk = None
        match decision:
            case d.Defer() | d.Heal():
                pass
            case d.Admit():
                self.caches[decision.tenant] = Cache(decision.rung, decision.capacity)
                self._put_cache(decision.tenant)
            case d.Demote() | d.Promote() | d.Unpark():
                self._retarget(decision)
            case d.Park():
                freed = self._trim(decision.tenant)
                self.parked[decision.tenant] = self.caches[decision.tenant].content()
                self._feed(e.TenantParked(at_ns=self.now_ns, tenant=decision.tenant, freed_bytes=freed))
            case d.Spill():
                self._spill(decision.tenant)
            case d.Shed():
                self._shed(decision.tenant, decision.keep_cells)
            case d.Release():
                self._release(decision.rung)
            case d.Load():
                self.loads[decision.rung] = 0
                size = self.ladder.rung(decision.rung).resident_bytes
                self.memory.put("transient", f"withheld {decision.rung}", 0)
                self.memory.put("transient", f"load {decision.rung}", size)
            case _:
                assert_never(decision)

    def _retarget(self, decision: d.Retarget) -> None:
        cache = self.caches[decision.tenant]
        self.parked.pop(decision.tenant, None)
        self._abandon(decision.tenant)
        lost = not cache.positions and not cache.on_disk
        match RouteKind.REREAD if lost else decision.route:
            case RouteKind.REREAD:
                self._begin_anew(decision.tenant, decision.dest)
            case None:
                cache.room = decision.capacity
            case _:
                cache.room = len(cache.positions)
                self.moves[decision.tenant] = decision
        self._put_cache(decision.tenant)

    def _trim(self, tenant: str) -> int:
        self._abandon(tenant)
        before = self._cache_bytes(tenant)
        cache = self.caches[tenant]
        cache.room = 0 if cache.on_disk else len(cache.positions)
        self._put_cache(tenant)
        return before - self._cache_bytes(tenant)

    def _spill(self, tenant: str) -> None:
        cache, size = self.caches[tenant], self._cache_bytes(tenant)
        self._elapse(self.costs.spill_ns(size))
        failed = self.faults.failing_spills > 0
        self.faults.failing_spills -= failed
        cells = len(cache.positions)
        if failed:
            cache.drop()
            self.parked[tenant] = cache.content()
        cache.on_disk, cache.room = not failed, 0
        self._put_cache(tenant)
        where = {"at_ns": self.now_ns, "tenant": tenant, "freed_bytes": size}
        if failed:
            self._feed(e.SpillFailed(**where, reason="chosen"))
        else:
            took_ns = self.costs.spill_ns(size)
            self._feed(e.CacheSpilled(**where, cells=cells, duration_ns=took_ns))

    def _restore(self, step: RestoreStep) -> None:
        cache = self.caches[step.tenant]
        assert cache.on_disk
        assert cache.room >= step.cells == len(cache.positions), "what comes back needs its room"
        took_ns = self.costs.restore_ns(self.ladder.rung(step.rung).kv_bytes(step.cells))
        self._elapse(took_ns)
        cache.on_disk = False
        if not self.faults.failing_restores:
            self._feed(
                e.CacheRestored(at_ns=self.now_ns, tenant=step.tenant, cells=step.cells, duration_ns=took_ns)
            )
            return
        self.faults.failing_restores -= 1
        move = self.moves.get(step.tenant)
        self._abandon(step.tenant)
        dest = step.rung if move is None else move.dest
        self._begin_anew(step.tenant, dest)
        self._put_cache(step.tenant)
        self._feed(e.RestoreFailed(at_ns=self.now_ns, tenant=step.tenant, dest=dest, reason="chosen"))

    def _begin_anew(self, tenant: str, dest: str) -> None:
        cache, request = self.caches[tenant], self.requests[tenant]
        cache.drop()
        cache.rung, cache.room = dest, request.prompt_tokens + request.max_tokens - 1

    def _shed(self, tenant: str, keep: int) -> None:
        cache = self.caches[tenant]
        before, cells = self._cache_bytes(tenant), len(cache.positions)
        if keep == 0:
            cache.drop()
        else:
            sinks = min(SINKS, keep)
            cache.positions = cache.positions[:sinks] + cache.positions[cells - (keep - sinks) :]
            cache.settled = keep
        cache.room = keep
        self.sheds[tenant] += 1
        self._put_cache(tenant)
        self.parked[tenant] = cache.content()
        freed = before - self._cache_bytes(tenant)
        self._feed(
            e.ContextShed(
                at_ns=self.now_ns,
                tenant=tenant,
                kept_cells=keep,
                dropped_cells=cells - keep,
                freed_bytes=freed,
            )
        )

    def _release(self, rung: str) -> None:
        size, kept = self.ladder.rung(rung), 0
        if rung in self.loads:
            del self.loads[rung]
            self.memory.put("transient", f"load {rung}", 0)
        else:
            self._elapse(self.costs.rungs[rung].release_ns)
            kept = round(size.weight_bytes * self.faults.withheld_share)
            parts = {("scratch", rung): 0, ("transient", f"withheld {rung}"): kept}
            self.memory.move("weights", rung, parts)
        freed = size.resident_bytes - kept
        self._feed(e.RungReleased(at_ns=self.now_ns, rung=rung, freed_bytes=freed, withheld_bytes=kept))

    def _abandon(self, tenant: str) -> None:
        self.moves.pop(tenant, None)
        self._suspend(tenant)

    def _suspend(self, tenant: str) -> None:
        self.switch_done_ns.pop(tenant, None)
        self.memory.put("transient", f"switch {tenant}", 0)

    def _forget(self, tenant: str) -> None:
        self.chunk = None
        self._abandon(tenant)
        self.requests.pop(tenant, None)
        self.caches.pop(tenant, None)
        self.parked.pop(tenant, None)
        self.memory.put("kv", tenant, 0)

    def _execute(self, step: Step) -> None:
        for tenant in [
            t for t in self.switch_done_ns if not isinstance(step, SwitchStep) or t != step.tenant
        ]:
            self._suspend(tenant)
        if not isinstance(step, LoadStep | PrefillStep):
            self.chunk = None
        match step:
            case LoadStep():
                self._load(step)
            case RestoreStep():
                self._restore(step)
            case SwitchStep():
                self._switch(step)
            case PrefillStep():
                self._prefill(step)
            case DecodeStep():
                self._decode(step)
            case _:
                assert_never(step)

    def _load(self, step: LoadStep) -> None:
        rung, total_ns = step.rung, self.costs.rungs[step.rung].load_ns * self.faults.slowness
        stretch_ns = min(CHUNK_NS, max(1, total_ns - self.loads[rung]))
        self._elapse(stretch_ns)
        self.loads[rung] += stretch_ns
        if self.loads[rung] < total_ns:
            if step.aside:
                self._feed(e.LoadProgressed(at_ns=self.now_ns, rung=rung))
            return
        del self.loads[rung]
        size = self.ladder.rung(rung)
        if self.faults.failing_loads:
            self.faults.failing_loads -= 1
            self.memory.put("transient", f"load {rung}", 0)
            self._feed(e.LoadFailed(at_ns=self.now_ns, rung=rung, reason="chosen"))
            return
        parts = {("weights", rung): size.weight_bytes, ("scratch", rung): size.scratch_bytes}
        self.memory.move("transient", f"load {rung}", parts)
        self._feed(e.RungLoaded(at_ns=self.now_ns, rung=rung))

    def _switch(self, step: SwitchStep) -> None:
        move, cache = self.moves[step.tenant], self.caches[step.tenant]
        assert move.route is not None
        assert (step.source, step.cells) == (cache.rung, len(cache.positions))
        total_ns = self.costs.switch_ns(step.source, step.dest, step.cells, move.native)
        held = self.ladder.rung(step.dest).kv_bytes(move.capacity)
        held += self.ladder.route(step.source, step.dest).map_bytes
        self.memory.put("transient", f"switch {step.tenant}", held)
        done_ns = self.switch_done_ns.get(step.tenant, 0)
        stretch_ns = min(CHUNK_NS, total_ns - done_ns)
        self._elapse(stretch_ns)
        self.switch_done_ns[step.tenant] = done_ns + stretch_ns
        if done_ns + stretch_ns < total_ns:
            return
        del self.moves[step.tenant], self.switch_done_ns[step.tenant]
        failed = self.faults.failing_switches > 0
        whole = len(cache.positions) == cache.read
        cache.rung, cache.room = step.dest, move.capacity
        if failed:
            self.faults.failing_switches -= 1
            self._begin_anew(step.tenant, step.dest)
        elif move.route is RouteKind.PROJECT and whole:
            cache.settled = min(SINKS, step.cells)
        self.memory.move(
            "transient", f"switch {step.tenant}", {("kv", step.tenant): self._cache_bytes(step.tenant)}
        )
        where = {"at_ns": self.now_ns, "tenant": step.tenant, "source": step.source, "dest": step.dest}
        if failed:
            self._feed(e.SwitchFailed(**where, reason="chosen"))
        else:
            self._feed(
                e.Switched(
                    **where,
                    route=move.route,
                    cells=step.cells,
                    duration_ns=total_ns,
                    settled=cache.settled,
                    native=move.native,
                    predicted_kl=move.prediction.kl,
                )
            )

    def _prefill(self, step: PrefillStep) -> None:
        cache = self._ready(step.tenant, step.rung, step.context)
        tokens = min(step.chunk, step.tokens)
        costs, layers = self.costs.rungs[step.rung], self.ladder.rung(step.rung).kv.layers
        total_ns = costs.read.ns(tokens, step.context)
        begun, self.chunk = self.chunk, None
        done_ns = begun[2] if begun is not None and begun[:2] == (step.tenant, step.context) else 0
        stretch_ns = min(prefill_slice_ns(costs, layers, tokens, step.context), total_ns - done_ns)
        self._elapse(stretch_ns)
        if done_ns + stretch_ns < total_ns:
            self.chunk = (step.tenant, step.context, done_ns + stretch_ns)
            return
        cache.settled += tokens if cache.settled == len(cache.positions) else 0
        self._append(cache, tokens)
        assert cache.read < self._known(step.tenant), "a token is read before it is known"
        self._feed(e.PromptRead(at_ns=self.now_ns, tenant=step.tenant, rung=step.rung, tokens=tokens))

    def _decode(self, step: DecodeStep) -> None:
        cache = self._ready(step.tenant, step.rung, step.context)
        known = self._known(step.tenant)
        assert cache.read == known - 1, "all known tokens but the last are in the cache"
        healed = chunk(len(cache.positions), cache.settled, step.heal)
        self._elapse(self.costs.rungs[step.rung].healing_ns(healed, step.context))
        cache.settled = settled_after(len(cache.positions), cache.settled, healed)
        self._append(cache, 1)
        self.answers[step.tenant].append(known)
        self._feed(
            e.TokensProduced(
                at_ns=self.now_ns,
                tenant=step.tenant,
                rung=step.rung,
                count=1,
                stamps_ns=(self.now_ns,),
                heal=step.heal,
                healed=healed,
            )
        )
        if len(self.answers[step.tenant]) == self.requests[step.tenant].max_tokens:
            self.finished[step.tenant] = self.now_ns
            self._forget(step.tenant)
            self._feed(e.TenantFinished(at_ns=self.now_ns, tenant=step.tenant, reason="length"))

    def _ready(self, tenant: str, rung: str, context: int) -> Cache:
        cache = self.caches[tenant]
        assert rung in self.memory.parts["weights"], f"{rung} is not resident"
        assert not cache.on_disk, "a cache on disk is of no use"
        assert cache.rung == rung, f"a cache of {cache.rung} meets {rung}"
        assert len(cache.positions) == context, "a step begins on the cells that there are"
        return cache

    def _append(self, cache: Cache, tokens: int) -> None:
        cache.positions.extend(range(cache.read, cache.read + tokens))
        cache.read += tokens
        assert len(cache.positions) <= cache.room, "a cache outgrows its room"

    def _known(self, tenant: str) -> int:
        return self.requests[tenant].prompt_tokens + len(self.answers[tenant])

    # Books.

    def _cache_bytes(self, tenant: str) -> int:
        cache = self.caches[tenant]
        return self.ladder.rung(cache.rung).kv_bytes(cache.room)

    def _put_cache(self, tenant: str) -> None:
        self.memory.put("kv", tenant, self._cache_bytes(tenant))

    def _memory_changed(self) -> None:
        over = self.memory.usage_bytes > self.budget_bytes
        grown, self._usage_bytes = self.memory.usage_bytes - self._usage_bytes, self.memory.usage_bytes
        overtaken = self._asked_under_bytes > self.budget_bytes  # asked for before the fall was known
        if over and grown > 0 and not overtaken:
            self.inflicted.append(f"at {self.now_ns} ns usage grew by {grown} bytes, above the budget")
        if over and self._over_since_ns is None:
            self._over_since_ns = self.now_ns
        elif not over and self._over_since_ns is not None:
            self.excursions_ns.append((self._over_since_ns, self.now_ns))
            self._over_since_ns = None


def story(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Facts and decisions as they can be compared between worlds: what was done in one go or in many is one.

    Numbers of records are gone; neighbouring tokens, and neighbouring readings, of one tenant are added up.
    """
    lines: list[dict[str, Any]] = []
    for record in records:
        line = {k: v for k, v in record.items() if k not in {"seq", "cause", "decision", "kind"}}
        line = json.loads(json.dumps(line))
        last = lines[-1] if lines else {}
        together = ("type", "tenant", "rung", "heal")
        if line["type"] in {"TokensProduced", "PromptRead"} and all(
            line.get(key) == last.get(key) for key in together
        ):
            for key in {"count", "tokens", "healed", "stamps_ns", "pieces"} & line.keys():
                last[key] += line[key]
            last["at_ns"] = line["at_ns"]
        else:
            lines.append(line)
    return lines


def reported_by_simulator(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The story in a log of the simulator."""
    return story(record for record in records if record["kind"] in {"event", "outcome", "decision"})


def reported_by(world: BareWorld, horizon_ns: int) -> list[dict[str, Any]]:
    """The story of a bare world up to a horizon."""
    return story(
        {"type": type(fact).__name__, **plain(fact), "at_ns": at_ns}
        for now_ns, fact, at_ns in world.records
        if now_ns <= horizon_ns
    )


def bare_run(policy: Policy, on: ResolvedScenario, ladder: Ladder, costs: CostModel) -> BareWorld:
    """A bare world that has lived through a scenario, up to the first boundary after its horizon."""
    world = BareWorld(policy, ladder, costs)
    for at_ns, budget_bytes in on.budgets:
        world.post_budget(at_ns, budget_bytes)
    for tenant in on.tenants:
        world.post(arrival(tenant))
    world.run(on.horizon_ns)
    return world


def arrival(tenant: ResolvedTenant) -> e.TenantArrived:
    """The fact that this tenant has come."""
    return e.TenantArrived(
        at_ns=tenant.arrives_ns,
        tenant=tenant.name,
        tenant_kind=tenant.kind,
        prompt_tokens=len(tenant.request.prompt_ids),
        max_tokens=tenant.request.max_tokens,
    )
