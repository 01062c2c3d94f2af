"""What the scheduler believes, and how facts and its own requests change that belief.

Rules of this module:
- ``State`` is a value; ``after_event`` and ``after_decision`` return a new one and touch nothing else.
- A request is believed to take effect at once. The outcome that arrives later corrects the belief where the world
  did otherwise.
- Of a tenant's ``known`` tokens (prompt and produced so far) all but the last belong into its cache; the last one
  is fed by the decode step that yields the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar, assert_never

from molt.core import decisions as d
from molt.core import events as e
from molt.core.healing import chunk, settled_after
from molt.core.ladder import RouteKind
from molt.core.values import changed

Entry = TypeVar("Entry")


class Phase(StrEnum):
    """Where a tenant stands."""

    WAITING = "waiting"  # arrived, has no cache yet
    ACTIVE = "active"  # has a cache and a rung to run on (the rung may still be loading)
    PARKED = "parked"  # has a cache and no rung


@dataclass(frozen=True, slots=True)
class Tenant:
    """One unfinished answer as the scheduler sees it. Lengths are tokens, capacities cells.

    The first ``settled`` cells need no healing; every decode step heals ``heal`` of the others. The cells of a
    ``spilled`` cache are on disk; once active, there is room for them again, and they have still to be read back.
    """

    name: str
    kind: e.TenantKind
    attempt: int
    order: int
    prompt_tokens: int
    max_tokens: int
    phase: Phase = Phase.WAITING
    deferred: bool = False
    target: str | None = None
    cache_rung: str | None = None
    capacity: int = 0
    read: int = 0
    dropped: int = 0
    settled: int = 0
    heal: int = 0
    spilled: bool = False
    produced: int = 0
    served: int = 0

    @property
    def known(self) -> int:
        """Tokens of the prompt and the answer so far."""
        return self.prompt_tokens + self.produced

    @property
    def cells(self) -> int:
        """Cells of the cache in use."""
        return self.read - self.dropped

    @property
    def backlog(self) -> int:
        """Known tokens still to be prefilled before the next decode step."""
        return self.known - 1 - self.read

    @property
    def full_capacity(self) -> int:
        """Cells that suffice until the end of the answer."""
        return self.prompt_tokens + self.max_tokens - 1 - self.dropped

    @property
    def switching(self) -> bool:
        """Whether the cache has still to be taken to the rung the tenant is to run on."""
        return self.phase is Phase.ACTIVE and self.cache_rung != self.target


RETRY_NS = 1_000_000_000
RETRY_NS_MAX = 32_000_000_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Loads of one rung that failed, ``count`` of them without a good one between, the last at ``at_ns``."""

    count: int
    at_ns: int

    @property
    def again_ns(self) -> int:
        """When the rung may be tried again: after ``RETRY_NS``, and twice as long with every further failure."""
        return self.at_ns + min(RETRY_NS << min(self.count - 1, 8), RETRY_NS_MAX)


@dataclass(frozen=True, slots=True)
class State:
    """Everything the scheduler believes. ``tenants`` are in order of arrival and never mutated in place.

    ``failures`` are of rungs whose last load failed; ``withheld`` are bytes of released rungs that did not come back.
    """

    now_ns: int = 0
    alive: bool = True
    budget_bytes: int = 0
    resident: frozenset[str] = frozenset()
    loading: frozenset[str] = frozenset()
    tenants: dict[str, Tenant] = field(default_factory=dict)
    arrivals: int = 0
    last_down_ns: int | None = None
    last_up_ns: int | None = None
    load_turn: bool = True
    """Whether a load that no tenant waits for has the next turn; it alternates with all other steps."""
    failures: dict[str, Failure] = field(default_factory=dict)
    withheld: dict[str, int] = field(default_factory=dict)

    @property
    def occupied(self) -> frozenset[str]:
        """Rungs whose weights take memory: resident or loading."""
        return self.resident | self.loading

    @property
    def barred(self) -> frozenset[str]:
        """Rungs whose load failed so recently that it is not tried again yet."""
        return frozenset(rung for rung, failure in self.failures.items() if self.now_ns < failure.again_ns)


def after_event(state: State, event: e.AnyEvent) -> State:
    """The belief after a fact. Facts about tenants that are gone change nothing but the time."""
    state = changed(state, now_ns=max(state.now_ns, event.at_ns))
    match event:
        case e.BudgetChanged():
            return changed(state, budget_bytes=event.budget_bytes)
        case e.TenantArrived():
            return _arrived(state, event)
        case e.TenantCancelled() | e.TenantFinished():
            return _without(state, event.tenant)
        case e.ProcessKilled():
            return changed(State(), now_ns=state.now_ns, budget_bytes=state.budget_bytes, alive=False)
        case e.ProcessStarted():
            return changed(state, alive=True)
        case e.RungLoaded():
            if event.rung not in state.loading:
                return state
            return changed(
                state,
                loading=state.loading - {event.rung},
                resident=state.resident | {event.rung},
                failures=_but(state.failures, event.rung),
            )
        case e.LoadFailed():
            before = state.failures.get(event.rung)
            failure = Failure(1 if before is None else before.count + 1, event.at_ns)
            return changed(
                state,
                loading=state.loading - {event.rung},
                failures={**state.failures, event.rung: failure},
            )
        case e.RungReleased():
            withheld = _but(state.withheld, event.rung)
            if (
                event.withheld_bytes and event.rung not in state.occupied
            ):  # else the load asked for takes it over
                withheld[event.rung] = event.withheld_bytes
            return changed(state, withheld=withheld)
        case e.Switched():
            return _change(state, event.tenant, lambda t: _landed(t, event))
        case e.SwitchFailed():
            return _change(state, event.tenant, lambda t: _reset_cache(t, event.dest))
        case e.SpillFailed():
            return _change(state, event.tenant, _lost)
        case e.CacheRestored():
            return _change(state, event.tenant, lambda t: changed(t, spilled=False))
        case e.RestoreFailed():
            return _change(state, event.tenant, lambda t: _reset_cache(t, event.dest))
        case e.LoadProgressed():
            return changed(state, load_turn=False)
        case e.PromptRead():
            state = changed(state, load_turn=True)
            return _change(state, event.tenant, lambda t: _read(t, event.tokens))
        case e.TokensProduced():
            state = changed(state, load_turn=True)
            return _change(state, event.tenant, lambda t: _produced(t, event))
        case e.TimerFired() | e.TenantParked() | e.CacheSpilled() | e.ContextShed():
            return state
        case _:
            assert_never(event)


def after_decision(state: State, decision: d.AnyDecision) -> State:
    """The belief once a request has gone out."""
    match decision:
        case d.Defer():
            return _change(state, decision.tenant, lambda t: changed(t, deferred=True))
        case d.Admit():
            return _change(state, decision.tenant, lambda t: _caught_up(_admitted(t, decision), state))
        case d.Demote():
            return _down(
                _change(state, decision.tenant, lambda t: _retarget(t, decision.dest, decision.route))
            )
        case d.Promote():
            return _up(_change(state, decision.tenant, lambda t: _retarget(t, decision.dest, decision.route)))
        case d.Park():
            return _down(_change(state, decision.tenant, _parked))
        case d.Unpark():
            moved = _change(state, decision.tenant, lambda t: _retarget(t, decision.dest, decision.route))
            return _up(_change(moved, decision.tenant, lambda t: _caught_up(t, state)))
        case d.Spill():
            return _down(_change(state, decision.tenant, lambda t: changed(t, spilled=True, capacity=0)))
        case d.Shed():
            return _down(_change(state, decision.tenant, lambda t: _shed(t, decision.keep_cells)))
        case d.Heal():
            return _change(state, decision.tenant, lambda t: changed(t, heal=decision.tokens))
        case d.Release():
            gone = {decision.rung}
            released = changed(state, resident=state.resident - gone, loading=state.loading - gone)
            return _down(released) if decision.rung in state.loading else released
        case d.Load():
            return changed(
                state,
                loading=state.loading | {decision.rung},
                withheld=_but(state.withheld, decision.rung),
            )
        case _:
            assert_never(decision)


def _arrived(state: State, event: e.TenantArrived) -> State:
    tenant = Tenant(
        name=event.tenant,
        kind=event.tenant_kind,
        attempt=event.attempt,
        order=state.arrivals,
        prompt_tokens=event.prompt_tokens,
        max_tokens=event.max_tokens,
    )
    return changed(state, tenants={**state.tenants, tenant.name: tenant}, arrivals=state.arrivals + 1)


def _without(state: State, name: str) -> State:
    return changed(state, tenants=_but(state.tenants, name))


def _but(entries: dict[str, Entry], name: str) -> dict[str, Entry]:
    return {key: entry for key, entry in entries.items() if key != name}


def _change(state: State, name: str, change: Callable[[Tenant], Tenant]) -> State:
    if name not in state.tenants:
        return state
    return changed(state, tenants={**state.tenants, name: change(state.tenants[name])})


def _down(state: State) -> State:
    return changed(state, last_down_ns=state.now_ns)


def _up(state: State) -> State:
    return changed(state, last_up_ns=state.now_ns)


def _admitted(tenant: Tenant, decision: d.Admit) -> Tenant:
    return changed(
        tenant,
        phase=Phase.ACTIVE,
        target=decision.rung,
        cache_rung=decision.rung,
        capacity=decision.capacity,
    )


def _caught_up(tenant: Tenant, state: State) -> Tenant:
    """A tenant that comes, or comes back, has no claim on turns from before: it begins level with its peers."""
    peers = [
        other.served
        for other in state.tenants.values()
        if other.kind is tenant.kind and other.phase is Phase.ACTIVE
    ]
    return changed(tenant, served=max(tenant.served, min(peers, default=0)))


def _retarget(tenant: Tenant, dest: str, route: RouteKind | None) -> Tenant:
    if route is RouteKind.REREAD:
        return _reset_cache(tenant, dest)
    if route is None:  # the cache is already there
        return changed(tenant, phase=Phase.ACTIVE, target=dest, capacity=tenant.full_capacity)
    return changed(tenant, phase=Phase.ACTIVE, target=dest, capacity=tenant.cells)


def _landed(tenant: Tenant, event: e.Switched) -> Tenant:
    settled = tenant.cells if event.settled is None else event.settled
    return changed(tenant, cache_rung=event.dest, capacity=tenant.full_capacity, settled=settled)


def _reset_cache(tenant: Tenant, dest: str) -> Tenant:
    fresh = changed(
        tenant, phase=Phase.ACTIVE, target=dest, cache_rung=dest, read=0, dropped=0, settled=0, spilled=False
    )
    return changed(fresh, capacity=fresh.full_capacity)


def _parked(tenant: Tenant) -> Tenant:
    capacity = 0 if tenant.spilled else tenant.cells
    return changed(tenant, phase=Phase.PARKED, target=None, capacity=capacity)


def _shed(tenant: Tenant, keep: int) -> Tenant:
    """What is left cannot be healed: its tokens would attend to context that is gone."""
    shed = changed(tenant, read=0, dropped=0) if keep == 0 else changed(tenant, dropped=tenant.read - keep)
    return changed(shed, capacity=shed.cells, settled=shed.cells, spilled=False)


def _lost(tenant: Tenant) -> Tenant:
    """Its cache could not be written and is gone; a tenant that runs again meanwhile prefills its tokens again."""
    return _shed(tenant, 0) if tenant.target is None else _reset_cache(tenant, tenant.target)


def _read(tenant: Tenant, tokens: int) -> Tenant:
    """Tokens prefilled after settled cells are settled themselves."""
    more = tokens if tenant.settled == tenant.cells else 0
    return changed(tenant, read=tenant.read + tokens, settled=tenant.settled + more)


def _produced(tenant: Tenant, event: e.TokensProduced) -> Tenant:
    cells, settled, unhealed = tenant.cells, tenant.settled, event.healed
    for _ in range(event.count):
        healed = min(chunk(cells, settled, event.heal), unhealed)
        settled = settled_after(cells, settled, healed)
        cells, unhealed = cells + 1, unhealed - healed
    return changed(
        tenant,
        produced=tenant.produced + event.count,
        read=tenant.read + event.count,
        served=tenant.served + event.count,
        settled=settled,
    )
