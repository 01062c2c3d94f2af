"""Holds a world against what the scheduler believes and what the policy promises, once a round is over.

A checker returns ``None`` where all is well, else what is wrong; its name is the invariant's.
"""

from __future__ import annotations

from molt.core.bound import usage_bytes_max
from molt.core.budget import cache_bytes, reserved_bytes
from molt.core.ladder import Ladder
from molt.core.state import Phase, State
from molt.core.view import Policy
from molt.worlds.memory_books import MemoryBooks


def rungs_are_as_believed(state: State, ladder: Ladder, policy: Policy, memory: MemoryBooks) -> str | None:
    """The rungs in memory, those being loaded counting in full, are the ones that are believed to be."""
    true = {
        name: size + memory.parts["scratch"].get(name, 0) for name, size in memory.parts["weights"].items()
    }
    true |= _transients(memory, "load ")
    believed = {name: ladder.rung(name).resident_bytes for name in state.occupied}
    return None if true == believed else f"believed {believed}, true {true}"


def withheld_bytes_are_as_believed(
    state: State, ladder: Ladder, policy: Policy, memory: MemoryBooks
) -> str | None:
    """What released rungs did not give back is known, to the byte."""
    true = _transients(memory, "withheld ")
    return None if true == state.withheld else f"believed {state.withheld}, true {true}"


def caches_are_as_believed(state: State, ladder: Ladder, policy: Policy, memory: MemoryBooks) -> str | None:
    """Every admitted tenant's cache has the believed size, and no other tenant has one."""
    believed = {
        tenant.name: cache_bytes(tenant, ladder)
        for tenant in state.tenants.values()
        if tenant.phase is not Phase.WAITING and cache_bytes(tenant, ladder)
    }
    return None if memory.parts["kv"] == believed else f"believed {believed}, true {memory.parts['kv']}"


def switches_keep_to_their_reservation(
    state: State, ladder: Ladder, policy: Policy, memory: MemoryBooks
) -> str | None:
    """What a switch under way holds beside its old cache was reserved before it began."""
    held, reserved = _transients(memory, "switch "), reserved_bytes(state, ladder)
    switching = [tenant.name for tenant in state.tenants.values() if tenant.switching]
    if len(held) > 1 or (len(switching) == 1 and sum(held.values()) > reserved):
        return f"{held} held, {reserved} bytes reserved"
    return None


def true_overshoot_is_bounded(
    state: State, ladder: Ladder, policy: Policy, memory: MemoryBooks
) -> str | None:
    """After enforcement, what is really allocated exceeds the budget by at most what the floor does."""
    if "bounded_overshoot" not in policy.promises:
        return None
    bound = usage_bytes_max(state, ladder, policy)
    return None if memory.usage_bytes <= bound else f"usage {memory.usage_bytes} exceeds {bound} bytes"


def parts_sum_to_usage(state: State, ladder: Ladder, policy: Policy, memory: MemoryBooks) -> str | None:
    """The parts of memory add up to the usage."""
    parts = sum(sum(owners.values()) for owners in memory.parts.values())
    return None if parts == memory.usage_bytes else f"parts of {parts} bytes, usage {memory.usage_bytes}"


CHECKERS = (
    parts_sum_to_usage,
    rungs_are_as_believed,
    withheld_bytes_are_as_believed,
    caches_are_as_believed,
    switches_keep_to_their_reservation,
    true_overshoot_is_bounded,
)


def disagreements(state: State, ladder: Ladder, policy: Policy, memory: MemoryBooks) -> list[tuple[str, str]]:
    """Names and details of the checkers that found something."""
    found = ((checker.__name__, checker(state, ladder, policy, memory)) for checker in CHECKERS)
    return [(name, detail) for name, detail in found if detail is not None]


def _transients(memory: MemoryBooks, purpose: str) -> dict[str, int]:
    return {
        owner.removeprefix(purpose): size
        for owner, size in memory.parts["transient"].items()
        if owner.startswith(purpose)
    }
