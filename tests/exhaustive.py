"""Every state a scheduler can get into, in a small world: ``python -m tests.exhaustive [--depth N] [--policy NAME]``.

The world is a ladder of three rungs and three tenants, one of them foreground, who come once each, in any order, at any
time. It carries everything out at once and takes no time; time passes only when a timer is waited for. At any moment
the budget may go to any of a few levels, a step may be taken (and fail, if it is a load or a switch), a tenant may come
or be cancelled. A rung that is released because of it gives everything back, or keeps half of its weights. States that
differ only in what no rule can notice (absolute time, which of two equal tenants is which, how often a load has failed
before that may be tried again) are one. The search is breadth first, so the first trace to break a rule is a shortest
one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from molt.core import events as e
from molt.core.bound import usage_bytes_max
from molt.core.budget import usage_bytes
from molt.core.costs import CostModel, DiskCosts, RouteCosts, RungCosts, StepCost
from molt.core.events import TenantKind
from molt.core.invariants import violations
from molt.core.ladder import KVLayout, Ladder, Route, RouteKind, Rung
from molt.core.scheduler import Scheduler
from molt.core.state import Failure, State, Tenant, after_event
from molt.core.turns import DecodeStep, LoadStep, PrefillStep, RestoreStep, SwitchStep
from molt.core.values import changed
from molt.core.view import Policy
from molt.jobs.plugins import make_policy
from molt.policies.molt import Molt
from tests.bare import Asked
from tests.rules import DECISION_RULES

_WIDE, _NARROW = KVLayout(1, 1, 2, 1), KVLayout(1, 1, 1, 1)
LADDER = Ladder(
    "tiny",
    (
        Rung("large", "large", "fp32", 240, 10, _WIDE, 64),
        Rung("medium", "medium", "fp32", 80, 5, _NARROW, 64),
        Rung("small", "medium", "int8", 30, 5, _NARROW, 64),
    ),
    (
        Route("large", "medium", RouteKind.PROJECT, 6),
        Route("large", "small", RouteKind.PROJECT, 6),
        Route("medium", "large", RouteKind.PROJECT, 6),
        Route("small", "large", RouteKind.PROJECT, 6),
        Route("medium", "small", RouteKind.CARRY),
        Route("small", "medium", RouteKind.CARRY),
    ),
)
_STEP = StepCost(0, 1)
COSTS = CostModel(
    machine="none",
    ladder="tiny",
    process_start_ns=1,
    disk=DiskCosts(write_byte_ns=4e6, read_byte_ns=1),
    rungs={rung.name: RungCosts(1, 1, _STEP, _STEP) for rung in LADDER.rungs},
    routes={f"{route.source}->{route.dest}": RouteCosts(_STEP) for route in LADDER.routes},
)
"""So slow a disk that a wide cache cannot be written in the time there is, and one narrow cache can."""
PROMPT, ANSWER = 12, 2
CELLS = PROMPT + ANSWER - 1
ALONE = LADDER.bottom.resident_bytes + LADDER.bottom.kv_bytes(CELLS)
TOGETHER = LADDER.bottom.resident_bytes + LADDER.bottom.kv_bytes(3 * CELLS)
PLENTY = 2 * LADDER.top.resident_bytes
LEVELS = (20, ALONE + 4, TOGETHER + 20, 85 + 3 * 2 * CELLS, 250 + 3 * 4 * CELLS, PLENTY)
"""A part of one cache; one tenant on the smallest rung; all three; all on the middle one; all on the largest; enough
for anything."""


@dataclass(frozen=True, slots=True)
class Node:
    """A belief, when a timer is wanted, and how many are still to come of each kind."""

    state: State
    timer_ns: int | None
    left: tuple[int, int]

    def key(self) -> tuple[object, ...]:
        """Equal for two nodes that no rule can tell apart."""
        s = self.state
        tenants = tuple(tuple(getattr(t, name) for name in _TENANT) for t in s.tenants.values())
        return (
            *(s.budget_bytes, s.resident, s.loading, s.load_turn, s.last_down_ns, s.last_up_ns),
            *(
                tuple(sorted(s.failures)),
                tuple(sorted(s.withheld.items())),
                self.timer_ns,
                self.left,
                tenants,
            ),
        )


_TENANT = [name for name in Tenant.__slots__ if name not in {"name", "order", "attempt"}]


@dataclass(slots=True)
class Found:
    """What a search has seen."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    complete: bool = False
    """Whether there was nothing left to look at: then these are all states there are."""
    live: int = 0
    withheld: int = 0
    """Transitions in which a release kept a part."""
    decisions: dict[str, int] = field(default_factory=dict)


class Broken(AssertionError):
    """A rule does not hold; the message has the shortest trace that breaks it."""


class Search:
    """Breadth first over everything that may happen under one policy."""

    def __init__(
        self,
        policy: Policy,
        levels: tuple[int, ...] = LEVELS,
        tenants: tuple[int, int] = (1, 2),
        *,
        withholding: bool = True,
    ) -> None:
        self.policy, self.levels, self.tenants, self.withholding = policy, levels, tenants, withholding
        self.cooldown_ns = getattr(policy, "cooldown_ns", 0)
        self.found = Found()
        self._seen: dict[tuple[object, ...], tuple[tuple[object, ...] | None, str]] = {}
        self._live: set[tuple[object, ...]] = set()

    def run(self, depth: int, *, liveness: bool = True, states_max: int = 10**9) -> Found:
        """Look at every state up to ``depth`` events from the start; ``Broken`` at the first that breaks a rule."""
        start = Node(changed(State(), budget_bytes=self.levels[-1]), None, self.tenants)
        self._seen[start.key()] = (None, "start")
        frontier = [start]
        for level in range(1, depth + 1):
            later = []
            for node in frontier:
                for name, after in self._next(node):
                    self.found.transitions += 1
                    if after.key() not in self._seen:
                        self._seen[after.key()] = (node.key(), name)
                        later.append(after)
                        if liveness:
                            self._check_liveness(after)
                        if len(self._seen) >= states_max:
                            return self._counted(level)
            self.found.depth = level
            frontier = later
            if not frontier:
                self.found.complete = True
                break
        return self._counted(self.found.depth)

    def _counted(self, depth: int) -> Found:
        self.found.states, self.found.depth = len(self._seen), depth
        self.found.live = len(self._live)
        return self.found

    # What may happen.

    def _next(self, node: Node) -> Iterator[tuple[str, Node]]:
        for facts in self._facts(node):
            name, after = self._after(node, *facts)
            yield name, after
            for rung in sorted(node.state.resident - after.state.occupied) if self.withholding else ():
                self.found.withheld += 1
                yield self._after(node, *facts, _keeping(rung))

    def _facts(self, node: Node) -> Iterator[tuple[e.AnyEvent, ...]]:
        for budget in self.levels:
            if budget != node.state.budget_bytes:
                yield (e.BudgetChanged(at_ns=0, budget_bytes=budget),)
        for kind, left in zip(TenantKind, node.left, strict=True):
            if left:
                yield (self._newcomer(node, kind),)
        for tenant in node.state.tenants:
            yield (e.TenantCancelled(at_ns=0, tenant=tenant),)
        if node.timer_ns is not None:
            yield (e.TimerFired(at_ns=node.timer_ns),)
        yield from self._steps(node.state)

    def _newcomer(self, node: Node, kind: TenantKind) -> e.TenantArrived:
        name = f"{kind}{node.left[list(TenantKind).index(kind)]}"
        return e.TenantArrived(
            at_ns=0, tenant=name, tenant_kind=kind, prompt_tokens=PROMPT, max_tokens=ANSWER
        )

    def _steps(self, state: State) -> Iterator[tuple[e.AnyEvent, ...]]:
        """What may come of the step whose turn it is, the good end first."""
        scheduler = Scheduler(LADDER, COSTS, self.policy)
        scheduler.state = state
        match scheduler.next_step():
            case LoadStep() as step:
                yield (e.RungLoaded(at_ns=0, rung=step.rung),)
                yield (e.LoadFailed(at_ns=0, rung=step.rung, reason=""),)
                if step.aside and state.load_turn:
                    yield (e.LoadProgressed(at_ns=0, rung=step.rung),)
            case RestoreStep() as step:
                yield (e.CacheRestored(at_ns=0, tenant=step.tenant, cells=step.cells, duration_ns=1),)
                dest = state.tenants[step.tenant].target
                assert dest is not None
                yield (e.RestoreFailed(at_ns=0, tenant=step.tenant, dest=dest, reason=""),)
            case SwitchStep() as step:
                where = {"at_ns": 0, "tenant": step.tenant, "source": step.source, "dest": step.dest}
                carried = LADDER.route(step.source, step.dest).kind is RouteKind.CARRY
                tenant = state.tenants[step.tenant]
                settled = tenant.settled if carried or tenant.dropped else min(4, tenant.cells)
                yield (e.Switched(**where, route="", cells=step.cells, duration_ns=1, settled=settled),)
                yield (e.SwitchFailed(**where, reason=""),)
            case PrefillStep() as step:
                yield (e.PromptRead(at_ns=0, tenant=step.tenant, rung=step.rung, tokens=step.tokens),)
            case DecodeStep() as step:
                healed = min(step.heal, step.context - step.settled)
                token = e.TokensProduced(
                    at_ns=0, tenant=step.tenant, rung=step.rung, count=1, heal=step.heal, healed=healed
                )
                last = state.tenants[step.tenant].produced + 1 == ANSWER
                yield (token, e.TenantFinished(at_ns=0, tenant=step.tenant, reason="")) if last else (token,)
            case None:
                return

    # One transition, and what must hold of it.

    def _after(self, node: Node, *facts: e.AnyEvent) -> tuple[str, Node]:
        scheduler = Scheduler(LADDER, COSTS, self.policy)
        scheduler.state = node.state
        scheduler._revisit_ns = node.timer_ns
        name = " then ".join(_named(fact) for fact in facts)
        left = node.left
        for fact in facts:
            before = scheduler.state
            decisions = scheduler.handle(fact)
            self._check(
                node, name, Asked(fact, after_event(before, fact), decisions, scheduler.state), scheduler
            )
            if isinstance(fact, e.TenantArrived):
                foreground = fact.tenant_kind is TenantKind.FOREGROUND
                left = (left[0] - foreground, left[1] - (not foreground))
        state = _canonical(scheduler.state, self.cooldown_ns)
        due_ns = scheduler.next_deadline_ns()
        waits = [failure.again_ns for failure in state.failures.values()]
        waits += [] if state.last_down_ns is None else [self.cooldown_ns]
        return name, Node(state, None if due_ns is None else min(waits, default=self.cooldown_ns), left)

    def _check(self, node: Node, name: str, asked: Asked, scheduler: Scheduler) -> None:
        for decision in asked.decisions:
            kind = type(decision).__name__
            self.found.decisions[kind] = self.found.decisions.get(kind, 0) + 1
        state = scheduler.state
        broken = [f"{rule}: {detail}" for rule, detail in violations(state, LADDER, self.policy)]
        if scheduler.refusal is not None:
            broken.append(f"refused: {scheduler.refusal}")
        if usage_bytes(state, LADDER) > usage_bytes_max(state, LADDER, self.policy):
            broken.append(f"killed: usage {usage_bytes(state, LADDER)} of {state.budget_bytes}")
        if asked.seen.tenants.keys() != state.tenants.keys():
            broken.append("a tenant is lost")
        if isinstance(self.policy, Molt) and asked.decisions:
            details = ((rule.__name__, rule(asked, LADDER, self.policy)) for rule in DECISION_RULES)
            broken += [f"{rule}: {detail}" for rule, detail in details if detail is not None]
        if broken:
            raise Broken("; ".join(broken) + "\n" + self.trace(node, name))

    def _check_liveness(self, node: Node) -> None:
        """With plenty from now on, and nothing failing, every tenant that is here finishes."""
        path = []
        _, node = self._after(node, e.BudgetChanged(at_ns=0, budget_bytes=self.levels[-1]))
        begin = node
        while node.state.tenants and node.key() not in self._live:
            path.append(node.key())
            steps = next(self._steps(node.state), None)
            if (steps is None and node.timer_ns is None) or len(path) > 200:
                raise Broken(f"starved under plenty: {node.state}\n" + self.trace(begin, "plenty"))
            if steps is None:
                assert node.timer_ns is not None
                steps = (e.TimerFired(at_ns=node.timer_ns),)
            _, node = self._after(node, *steps)
        self._live.update(path)

    def trace(self, node: Node, last: str) -> str:
        """The events that lead to ``node``, and ``last``."""
        names, key = [last], node.key()
        while key is not None and key in self._seen:
            parent, name = self._seen[key]
            names.append(name)
            key = parent  # type: ignore[assignment]
        return "\n".join(f"  {number}. {name}" for number, name in enumerate(reversed(names)))


def _canonical(state: State, cooldown_ns: int) -> State:
    """Now is 0, and a change or a failed load was just now or long ago; of two equal tenants the first to come has the
    first name."""
    changes = [t for t in (state.last_down_ns, state.last_up_ns) if t is not None]
    cooling = state.now_ns - max(changes, default=-cooldown_ns) < cooldown_ns
    tenants: dict[str, Tenant] = {}
    for order, tenant in enumerate(state.tenants.values()):
        name = f"{tenant.kind}-{order}"
        tenants[name] = changed(tenant, name=name, order=order)
    return changed(
        state,
        now_ns=0,
        last_down_ns=0 if cooling else None,
        last_up_ns=None,
        failures={rung: Failure(1, 0) for rung in sorted(state.barred)},
        tenants=tenants,
        arrivals=len(tenants),
    )


def _keeping(rung: str) -> e.RungReleased:
    kept = LADDER.rung(rung).weight_bytes // 2
    freed = LADDER.rung(rung).resident_bytes - kept
    return e.RungReleased(at_ns=0, rung=rung, freed_bytes=freed, withheld_bytes=kept)


def _named(fact: e.AnyEvent) -> str:
    match fact:
        case e.RungReleased():
            return f"{fact.rung} keeps {fact.withheld_bytes}"
        case e.BudgetChanged():
            return f"budget {fact.budget_bytes}"
        case e.RungLoaded() | e.LoadFailed() | e.LoadProgressed():
            return f"{type(fact).__name__} {fact.rung}"
        case e.TimerFired():
            return "timer"
        case e.TenantFinished():
            return "finished"
        case _:
            return f"{type(fact).__name__} {getattr(fact, 'tenant', '')}"


def main() -> None:
    """Search as deep as asked and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--states", type=int, default=10**9, help="stop after so many states")
    parser.add_argument("--policy", default="molt")
    parser.add_argument("--tenants", default="1,2", help="foreground and batch")
    parser.add_argument("--levels", default=",".join(map(str, LEVELS)))
    asked = parser.parse_args()
    foreground, batch = map(int, asked.tenants.split(","))
    levels = tuple(int(level) for level in asked.levels.split(","))
    begin = time.perf_counter()
    found = Search(make_policy(asked.policy, {}), levels, (foreground, batch)).run(
        asked.depth, states_max=asked.states
    )
    took = time.perf_counter() - begin
    whole = "all there are" if found.complete else f"all to depth {found.depth}"
    print(
        f"{asked.policy}: {found.states} states ({whole}), {found.transitions} transitions, depth {found.depth}, "
        f"{found.live} states on the way to rest, {found.withheld} releases that kept a part; "
        f"no kill, no starvation, no rule broken; {took:.0f} s"
    )
    print("decisions: " + ", ".join(f"{kind} {count}" for kind, count in sorted(found.decisions.items())))


if __name__ == "__main__":
    main()
