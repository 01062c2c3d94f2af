"""A plan says where every tenant should be; ``requests`` turns the difference to the present into decisions.

A policy states the goal and never the way there. The way is the same for all: park, spill, shed and re-target first,
then release weights (*release first*), then open caches, then load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from molt.core import decisions as d
from molt.core.budget import cache_bytes, landed_bytes, peak_bytes, usage_bytes
from molt.core.costs import CostModel
from molt.core.ladder import Ladder, RouteKind
from molt.core.state import Phase, State, Tenant, after_decision
from molt.core.turns import in_turn

NATIVE_TOKENS = 16
"""The last tokens of a cache that are prefilled natively in a projected switch where a policy says nothing: what comes
next leans on them most."""


@dataclass(frozen=True, slots=True)
class Run:
    """Be active on ``rung``. ``carry`` false prefills the tokens again instead of taking the cache along.

    Of a cache that goes through a map the last ``native`` tokens are prefilled natively; it is healed afterwards by
    ``heal`` tokens with every decode step; 0 pauses that.
    """

    rung: str
    carry: bool = True
    heal: int = 0
    native: int = NATIVE_TOKENS


@dataclass(frozen=True, slots=True)
class Rest:
    """Be parked, with at most ``keep_cells`` cells (``None``: all; 0: prefilled again later), or, with ``spill``, with
    all of them on disk. What is on disk stays there until the tenant runs again."""

    keep_cells: int | None = None
    spill: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Stay out until there is room."""


Placement = Run | Rest | Wait


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every tenant should be. Tenants not named stay as they are.

    ``keep`` are rungs to have although no tenant runs on them: kept if resident, loaded beside the other work if
    not. Every other unused rung is released.
    ``revisit_ns`` is when the policy wants to be asked again even if nothing happens; a time that has passed is none.
    """

    placements: Mapping[str, Placement]
    keep: frozenset[str] = frozenset()
    revisit_ns: int | None = None


def requests(state: State, plan: Plan, ladder: Ladder, costs: CostModel) -> list[d.AnyDecision]:
    """The decisions that lead from ``state`` to ``plan``, in the order in which they must be carried out."""
    asked: list[d.AnyDecision] = []
    for decision in _changes(state, plan, ladder):
        predicted = _with_prediction(state, decision, ladder, costs)
        asked.append(predicted)
        state = after_decision(state, predicted)
    return asked


def outcome(state: State, plan: Plan, ladder: Ladder) -> State:
    """The state that would be believed once every decision towards ``plan`` has gone out."""
    for decision in _changes(state, plan, ladder):
        state = after_decision(state, decision)
    return state


def _changes(state: State, plan: Plan, ladder: Ladder) -> Iterator[d.AnyDecision]:
    grows: list[d.AnyDecision] = []
    needed = set(plan.keep)
    for tenant in in_turn(state):  # so that the switch at work is given up before any cache grows
        placement = plan.placements.get(tenant.name)
        needed |= _rungs_needed(tenant, placement)
        now: list[d.AnyDecision] = []
        for decision in _tenant_changes(tenant, placement, ladder):
            (grows if _grows(state, decision, ladder) else now).append(decision)
        yield from now
    for rung in ladder.rungs:
        if rung.name in state.occupied and rung.name not in needed:
            yield d.Release(rung=rung.name)
    yield from grows
    for rung in ladder.rungs:
        if rung.name in needed and rung.name not in state.occupied:
            yield d.Load(rung=rung.name)


def _grows(state: State, decision: d.AnyDecision, ladder: Ladder) -> bool:
    """Whether a decision about a tenant makes its cache larger at once; such ones wait for the releases."""
    match decision:
        case d.Admit() | d.Unpark():
            return True
        case d.Demote() | d.Promote():
            before, after = (
                state.tenants[decision.tenant],
                after_decision(state, decision).tenants[decision.tenant],
            )
            return cache_bytes(after, ladder) > cache_bytes(before, ladder)
        case _:
            return False


def _rungs_needed(tenant: Tenant, placement: Placement | None) -> set[str]:
    match placement:
        case Run():
            return {placement.rung}
        case None if tenant.target is not None:
            return {tenant.target}
        case _:
            return set()


def _tenant_changes(tenant: Tenant, placement: Placement | None, ladder: Ladder) -> Iterator[d.AnyDecision]:
    match placement:
        case Run() if tenant.phase is Phase.WAITING:
            yield d.Admit(tenant=tenant.name, rung=placement.rung, capacity=tenant.full_capacity)
        case Run() if tenant.target != placement.rung or (tenant.switching and not placement.carry):
            yield _retarget(tenant, placement, ladder)
        case Run() if (
            tenant.settled < tenant.cells and not tenant.switching and tenant.heal != placement.heal
        ):
            yield d.Heal(tenant=tenant.name, tokens=placement.heal)
        case Rest() if tenant.phase is not Phase.WAITING:
            if tenant.phase is Phase.ACTIVE:
                yield d.Park(tenant=tenant.name)
            if placement.spill and tenant.cells > 0 and not tenant.spilled:
                yield d.Spill(tenant=tenant.name)
            if placement.keep_cells is not None and placement.keep_cells < tenant.cells:
                yield d.Shed(tenant=tenant.name, keep_cells=placement.keep_cells)
        case Wait() if tenant.phase is Phase.WAITING and not tenant.deferred:
            yield d.Defer(tenant=tenant.name)


def _retarget(tenant: Tenant, placement: Run, ladder: Ladder) -> d.AnyDecision:
    dest = placement.rung
    route = route_kind(tenant, dest, ladder, carry=placement.carry)
    dropped = tenant.dropped if route is RouteKind.REREAD else 0
    lever = _direction(tenant, dest, ladder)
    assert tenant.cache_rung is not None
    return lever(
        tenant=tenant.name,
        source=tenant.cache_rung,
        dest=dest,
        route=route,
        capacity=tenant.full_capacity + dropped,
        native=min(placement.native, tenant.cells) if route is RouteKind.PROJECT else 0,
    )


def _direction(
    tenant: Tenant, dest: str, ladder: Ladder
) -> type[d.Demote] | type[d.Promote] | type[d.Unpark]:
    if tenant.phase is Phase.PARKED:
        return d.Unpark
    assert tenant.target is not None
    assert tenant.cache_rung is not None
    before = tenant.target if tenant.target != dest else tenant.cache_rung
    return d.Demote if ladder.index(dest) > ladder.index(before) else d.Promote


def route_kind(tenant: Tenant, dest: str, ladder: Ladder, *, carry: bool) -> RouteKind | None:
    """How a tenant's cache gets to ``dest``: ``None`` when it is there, ``REREAD`` when it is empty or not carried."""
    assert tenant.cache_rung is not None
    if tenant.cache_rung == dest and carry:
        return None
    if tenant.cells == 0 or not carry:
        return RouteKind.REREAD
    return ladder.route(tenant.cache_rung, dest).kind


def _with_prediction(
    state: State, decision: d.AnyDecision, ladder: Ladder, costs: CostModel
) -> d.AnyDecision:
    after = after_decision(state, decision)
    freed = usage_bytes(state, ladder) - usage_bytes(after, ladder)
    duration, kl = _duration_and_kl(after, decision, ladder, costs)
    if isinstance(decision, d.Retarget):
        tenant = after.tenants[decision.tenant]
        if tenant.switching:
            freed = cache_bytes(state.tenants[decision.tenant], ladder) - landed_bytes(tenant, ladder)
    prediction = d.Prediction(
        freed_bytes=freed, peak_bytes=peak_bytes(after, ladder), duration_ns=duration, kl=kl
    )
    return replace(decision, prediction=prediction)


def _duration_and_kl(
    after: State, decision: d.AnyDecision, ladder: Ladder, costs: CostModel
) -> tuple[int, float]:
    match decision:
        case d.Load():
            return costs.rungs[decision.rung].load_ns, 0.0
        case d.Release():
            return costs.rungs[decision.rung].release_ns, 0.0
        case d.Spill():
            return costs.spill_ns(_held_bytes(after.tenants[decision.tenant], ladder)), 0.0
        case d.Retarget():
            tenant = after.tenants[decision.tenant]
            back_ns = costs.restore_ns(_held_bytes(tenant, ladder)) if tenant.spilled else 0
            if tenant.switching:
                duration, kl = _switch_costs(tenant, decision, costs)
                return back_ns + duration, kl
            if tenant.spilled:
                return back_ns, 0.0
            unread = tenant.backlog
            return (costs.rungs[decision.dest].read.ns(unread, unread // 2) if unread else 0), 0.0
        case _:
            return 0, 0.0


def _switch_costs(tenant: Tenant, decision: d.Retarget, costs: CostModel) -> tuple[int, float]:
    assert tenant.cache_rung is not None
    route = costs.route(tenant.cache_rung, decision.dest)
    if route is None:
        return 0, 0.0
    duration = costs.switch_ns(tenant.cache_rung, decision.dest, tenant.cells, decision.native)
    return duration, route.expected_kl(tenant.cells, decision.native)


def _held_bytes(tenant: Tenant, ladder: Ladder) -> int:
    """Bytes of the cells that a tenant's cache holds, wherever they are."""
    assert tenant.cache_rung is not None
    return ladder.rung(tenant.cache_rung).kv_bytes(tenant.cells)
