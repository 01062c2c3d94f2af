"""Who takes the next step: foreground before batch, and within a kind in turns of ``TURN_TOKENS`` tokens.

A step is read off the state, never stored in it. However a world cuts the steps, the turns come out the same:
they depend on the tokens a tenant was served, not on how many steps those took.
"""

from __future__ import annotations

from dataclasses import dataclass

from molt.core.costs import CostModel, RungCosts, StepCost
from molt.core.events import TenantKind
from molt.core.state import Phase, State, Tenant

TURN_TOKENS = 8
PREFILL_CHUNKS = (128, 64, 32, 16, 8)
"""Tokens read in one step: the most that stay within ``STEP_NS_MAX``, or within ``SLOW_STEP`` times what the fewest
take, where that is longer: on a slow rung tiny chunks would gain little time and read several times slower."""
SLOW_STEP = 1.5
STEP_NS_MAX = 250_000_000
"""A step is a time in which nobody reacts to the OS."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Bring the weights of ``rung`` in, or a part of them; ``aside`` when nobody waits for it: then one chunk."""

    rung: str
    aside: bool = False


@dataclass(frozen=True, slots=True)
class SwitchStep:
    """Take a tenant's cache from the rung it is in to the rung it is to run on."""

    tenant: str
    source: str
    dest: str
    cells: int


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """Read a tenant's spilled cache of ``cells`` cells, in the geometry of ``rung``, back from disk."""

    tenant: str
    rung: str
    cells: int


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """Read the next ``tokens`` known tokens into a tenant's cache, on top of ``context`` cells.

    After every ``chunk`` of them a world looks whether something has happened.
    """

    tenant: str
    rung: str
    tokens: int
    chunk: int
    context: int


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Produce up to ``tokens`` tokens, on top of ``context`` cells.

    Each step re-reads ``heal`` of the cells after the first ``settled``, as long as there are any.
    """

    tenant: str
    rung: str
    tokens: int
    context: int
    settled: int
    heal: int


Step = LoadStep | RestoreStep | SwitchStep | PrefillStep | DecodeStep


def in_turn(state: State) -> list[Tenant]:
    """The tenants in the order in which they would be served."""
    return sorted(
        state.tenants.values(),
        key=lambda t: (t.kind is not TenantKind.FOREGROUND, t.served // TURN_TOKENS, t.order),
    )


def step_ns_max(costs: RungCosts, context: int) -> int:
    """The longest time between two boundaries on a rung with ``context`` cells: a chunk of reading or one token."""
    return max(costs.read.ns(_chunk(costs.read), context), costs.decode.ns(1, context))


def next_step(state: State, costs: CostModel) -> Step | None:
    """The step to take now, or ``None`` when nothing can be done before the next event."""
    barred = state.barred
    aside = _loading_aside(state, barred)
    if aside is not None and state.load_turn:
        return LoadStep(aside, aside=True)
    for tenant in in_turn(state):
        if tenant.target is None or tenant.cache_rung is None:
            continue
        if tenant.target in state.loading - barred:
            return LoadStep(tenant.target)
        if tenant.target not in state.resident:
            continue
        if tenant.spilled:
            return RestoreStep(tenant.name, tenant.cache_rung, tenant.cells)
        if tenant.switching:
            return SwitchStep(tenant.name, tenant.cache_rung, tenant.target, tenant.cells)
        if tenant.backlog > 0:
            chunk = _chunk(costs.rungs[tenant.target].read)
            tokens = tenant.backlog if aside is None else min(chunk, tenant.backlog)
            return PrefillStep(tenant.name, tenant.target, tokens, chunk, tenant.cells)
        tokens = min(tenant.max_tokens - tenant.produced, _turn_left(tenant, state))
        tokens = tokens if aside is None else 1
        return DecodeStep(tenant.name, tenant.target, tokens, tenant.cells, tenant.settled, tenant.heal)
    return None if aside is None else LoadStep(aside, aside=True)


def _loading_aside(state: State, barred: frozenset[str]) -> str | None:
    """A rung on its way that nobody waits for."""
    awaited = {tenant.target for tenant in state.tenants.values()}
    return min(state.loading - awaited - barred, default=None) if state.loading else None


def _turn_left(tenant: Tenant, state: State) -> int:
    rivals = any(
        other.kind is tenant.kind and other.name != tenant.name and other.phase is Phase.ACTIVE
        for other in state.tenants.values()
    )
    return TURN_TOKENS - tenant.served % TURN_TOKENS if rivals else tenant.max_tokens


def _chunk(cost: StepCost) -> int:
    longest_ns = max(STEP_NS_MAX, SLOW_STEP * cost.ns(PREFILL_CHUNKS[-1], 0))
    return next(tokens for tokens in PREFILL_CHUNKS if cost.ns(tokens, 0) <= longest_ns)
