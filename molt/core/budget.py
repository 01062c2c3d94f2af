"""How many bytes a state takes, now and on its way to rest.

A *reservation* is memory that is not in use yet but must stay free: the transient of a switch (the destination's
cache and the map live beside the source's cache until the switch has landed). ``peak_bytes`` is usage plus
reservation; keeping it within the budget is what makes a switch safe before it begins.
"""

from __future__ import annotations

from molt.core.ladder import Ladder
from molt.core.state import State, Tenant
from molt.core.turns import in_turn


def usage_bytes(state: State, ladder: Ladder) -> int:
    """Bytes believed to be allocated: weights and scratch of occupied rungs, what released ones withhold, caches."""
    rungs = sum(ladder.rung(name).resident_bytes for name in state.occupied) + sum(state.withheld.values())
    return rungs + sum(cache_bytes(tenant, ladder) for tenant in state.tenants.values())


def cache_bytes(tenant: Tenant, ladder: Ladder) -> int:
    """Bytes of one tenant's cache as allocated."""
    return 0 if tenant.cache_rung is None else ladder.rung(tenant.cache_rung).kv_bytes(tenant.capacity)


def peak_bytes(state: State, ladder: Ladder) -> int:
    """Usage at the worst moment until every switch under way has landed, one after the other in turn."""
    usage = peak = usage_bytes(state, ladder)
    for tenant in in_turn(state):
        if tenant.switching:
            peak = max(peak, usage + switch_bytes(tenant, ladder))
            usage += landed_bytes(tenant, ladder) - cache_bytes(tenant, ladder)
    return max(peak, usage)


def reserved_bytes(state: State, ladder: Ladder) -> int:
    """Memory that must stay free for the switches under way."""
    return peak_bytes(state, ladder) - usage_bytes(state, ladder)


def switch_bytes(tenant: Tenant, ladder: Ladder) -> int:
    """What a tenant's switch takes beside its old cache: the new cache and the map of the route."""
    assert tenant.cache_rung is not None
    assert tenant.target is not None
    return landed_bytes(tenant, ladder) + ladder.route(tenant.cache_rung, tenant.target).map_bytes


def landed_bytes(tenant: Tenant, ladder: Ladder) -> int:
    """Bytes of a tenant's cache once its switch has landed."""
    assert tenant.target is not None
    return ladder.rung(tenant.target).kv_bytes(tenant.full_capacity)


def floor_bytes(state: State, ladder: Ladder, floor_cells: int) -> int:
    """The least a state can be brought to at once without losing a tenant.

    Every weight released, every admitted tenant parked and shed to ``floor_cells`` cells (or what it has, if less).
    What released rungs withhold stays.
    """
    return sum(state.withheld.values()) + sum(
        ladder.rung(tenant.cache_rung).kv_bytes(min(tenant.cells, floor_cells))
        for tenant in state.tenants.values()
        if tenant.cache_rung is not None
    )
