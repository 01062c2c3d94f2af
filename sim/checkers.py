"""Compares what the scheduler believes with what the simulated world holds."""

from __future__ import annotations

from molt.core.budget import cache_bytes
from molt.core.ladder import Ladder
from molt.core.state import Phase, State
from sim.memory import Memory


def belief_differs(state: State, ladder: Ladder, memory: Memory) -> str | None:
    """The first part of memory about which belief and truth disagree, once a round is over.

    Rungs: resident or loading ones count in full. Caches: by tenant. Transients of switches are not believed to be
    allocated; they are reserved, and checked to be within that reservation by ``transients_are_reserved``.
    """
    true_rungs = {
        name: size + memory.parts["scratch"].get(name, 0) for name, size in memory.parts["weights"].items()
    }
    true_rungs |= {
        owner.removeprefix("load "): size
        for owner, size in memory.parts["transient"].items()
        if owner.startswith("load ")
    }
    believed_rungs = {name: ladder.rung(name).resident_bytes for name in state.occupied}
    if true_rungs != believed_rungs:
        return f"rungs: believed {believed_rungs}, true {true_rungs}"
    believed_caches = {
        tenant.name: cache_bytes(tenant, ladder)
        for tenant in state.tenants.values()
        if tenant.phase is not Phase.WAITING and cache_bytes(tenant, ladder)
    }
    if memory.parts["kv"] != believed_caches:
        return f"caches: believed {believed_caches}, true {memory.parts['kv']}"
    return None
