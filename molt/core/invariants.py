"""What must hold after every round, one function per rule, each stated in a sentence.

A function returns ``None`` where the rule holds, else what is wrong. They are used by the simulator's checkers, by
the tests, and may be used by any world.
"""

from __future__ import annotations

from collections.abc import Callable

from molt.core.bound import usage_bytes_max
from molt.core.budget import peak_bytes, usage_bytes
from molt.core.ladder import Ladder
from molt.core.state import Phase, State
from molt.core.view import Policy


def process_is_alive(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """A policy that promises it is never killed."""
    if "never_killed" in policy.promises and not state.alive:
        return f"the process was killed under policy {policy.name!r}"
    return None


def overshoot_is_bounded(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """After enforcement, usage exceeds the budget by at most what the floor does."""
    if "bounded_overshoot" not in policy.promises:
        return None
    usage = usage_bytes(state, ladder)
    bound = usage_bytes_max(state, ladder, policy)
    return f"usage {usage} exceeds the bound of {bound} bytes" if usage > bound else None


def transients_are_reserved(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """While something is loading or switching, the worst moment to come fits the budget."""
    if "bounded_overshoot" not in policy.promises:
        return None
    under_way = state.loading or any(tenant.switching for tenant in state.tenants.values())
    peak = peak_bytes(state, ladder)
    if under_way and peak > state.budget_bytes:
        return f"a peak of {peak} bytes is ahead, the budget is {state.budget_bytes}"
    return None


def caches_are_consistent(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """A cache in memory holds no more cells than it has room for, and never a token that is not known yet."""
    for tenant in state.tenants.values():
        on_disk = tenant.spilled and tenant.phase is Phase.PARKED and tenant.capacity == 0
        if tenant.cells < 0 or (tenant.cells > tenant.capacity and not on_disk):
            return f"tenant {tenant.name!r} holds {tenant.cells} cells in room for {tenant.capacity}"
        if tenant.read > max(0, tenant.known - 1) or tenant.dropped > tenant.read:
            return f"tenant {tenant.name!r} has read {tenant.read} of {tenant.known} known tokens"
    return None


def phases_are_consistent(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """An active tenant is to run on exactly one rung whose weights are there or coming; others on none."""
    for tenant in state.tenants.values():
        if tenant.phase is Phase.ACTIVE and tenant.target not in state.occupied:
            return f"tenant {tenant.name!r} is to run on {tenant.target!r}, which is not there"
        if tenant.phase is not Phase.ACTIVE and tenant.target is not None:
            return f"tenant {tenant.name!r} is {tenant.phase} and yet on {tenant.target!r}"
        if (tenant.phase is Phase.WAITING) != (tenant.cache_rung is None):
            return f"tenant {tenant.name!r} is {tenant.phase} with a cache of {tenant.cache_rung!r}"
    return None


def answers_have_room(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """A tenant that runs has room for the whole answer, so that tokens never change memory."""
    for tenant in state.tenants.values():
        runs = tenant.phase is Phase.ACTIVE and not tenant.switching
        if runs and tenant.capacity < tenant.full_capacity:
            return f"tenant {tenant.name!r} has room for {tenant.capacity} of {tenant.full_capacity} cells"
    return None


def settled_cells_are_cells(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """No more cells are exact than there are."""
    for tenant in state.tenants.values():
        if not 0 <= tenant.settled <= tenant.cells:
            return f"tenant {tenant.name!r} has {tenant.settled} settled of {tenant.cells} cells"
    return None


def rungs_are_one_thing(state: State, ladder: Ladder, policy: Policy) -> str | None:
    """A rung is resident or loading or neither, never both."""
    both = state.resident & state.loading
    return f"rung {min(both)!r} is both resident and loading" if both else None


Invariant = Callable[[State, Ladder, Policy], str | None]
INVARIANTS: tuple[Invariant, ...] = (
    process_is_alive,
    overshoot_is_bounded,
    transients_are_reserved,
    caches_are_consistent,
    phases_are_consistent,
    answers_have_room,
    settled_cells_are_cells,
    rungs_are_one_thing,
)


def violations(state: State, ladder: Ladder, policy: Policy) -> list[tuple[str, str]]:
    """Names and details of the invariants that do not hold."""
    found = ((rule.__name__, rule(state, ladder, policy)) for rule in INVARIANTS)
    return [(name, detail) for name, detail in found if detail is not None]
