"""Which tenant takes the next step: foreground before batch, and within a kind in turns of ``TURN_TOKENS`` tokens.

A step is read off the state, never stored in it. However a world cuts the steps, the turns come out the same:
they depend on the tokens a tenant was served, not on how many steps those took.
"""

from __future__ import annotations

from dataclasses import dataclass

from molt.core.costs import RungCosts
from molt.core.events import TenantKind
from molt.core.state import Phase, State, Tenant

TURN_TOKENS = 8
PREFILL_CHUNK = 128
"""Tokens of one forward pass of prefill: more at a time gain little speed and take more scratch."""
SLICE_NS_MAX = 50_000_000
"""A load, a switch and a chunk of prefill let the world look for news at least so often; a chunk only between two
layers, so a layer is the least."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Bring the weights of ``rung`` in, or a part of them; ``aside`` when no tenant waits for it: then one slice."""

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
    """Prefill the next ``tokens`` known tokens of a tenant, on top of ``context`` cells, ``chunk`` at a time.

    What a finished chunk has added to the cache stays. A chunk under way looks for news as ``prefill_slice_ns``
    says; it is dropped when another step is taken.
    """

    tenant: str
    rung: str
    tokens: int
    chunk: int
    context: int


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Produce up to ``tokens`` tokens, on top of ``context`` cells.

    Each step heals ``heal`` of the cells after the first ``settled``, as long as there are any.
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


def prefill_slice_ns(costs: RungCosts, layers: int, tokens: int, context: int) -> int:
    """The longest time that a chunk of prefill goes on without looking for news: ``SLICE_NS_MAX``, or one layer."""
    return max(SLICE_NS_MAX, -(-costs.read.ns(tokens, context) // layers))


def step_ns_max(costs: RungCosts, layers: int, context: int, heal_stretch: float = 1.0) -> int:
    """The longest time between two boundaries on a rung with ``context`` cells.

    That is a slice of prefill, or one token, which takes ``heal_stretch`` times as long while its cache heals.
    """
    slice_ns = prefill_slice_ns(costs, layers, PREFILL_CHUNK, context)
    token_ns = round(heal_stretch * costs.decode.ns(1, context))
    return max(min(slice_ns, costs.read.ns(PREFILL_CHUNK, context)), token_ns)


def next_step(state: State) -> Step | None:
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
            tokens = tenant.backlog if aside is None else min(PREFILL_CHUNK, tenant.backlog)
            return PrefillStep(tenant.name, tenant.target, tokens, PREFILL_CHUNK, tenant.cells)
        tokens = min(tenant.max_tokens - tenant.produced, _turn_left(tenant, state))
        tokens = tokens if aside is None else 1
        return DecodeStep(tenant.name, tenant.target, tokens, tenant.cells, tenant.settled, tenant.heal)
    return None if aside is None else LoadStep(aside, aside=True)


def _loading_aside(state: State, barred: frozenset[str]) -> str | None:
    """A rung being loaded that no tenant waits for."""
    awaited = {tenant.target for tenant in state.tenants.values()}
    return min(state.loading - awaited - barred, default=None) if state.loading else None


def _turn_left(tenant: Tenant, state: State) -> int:
    rivals = any(
        other.kind is tenant.kind and other.name != tenant.name and other.phase is Phase.ACTIVE
        for other in state.tenants.values()
    )
    return TURN_TOKENS - tenant.served % TURN_TOKENS if rivals else tenant.max_tokens
