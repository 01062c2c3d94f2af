"""Every invariant and every checker can be broken, and then names itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from molt.core.budget import usage_bytes
from molt.core.events import TenantKind
from molt.core.invariants import INVARIANTS, violations
from molt.core.state import Phase, State, Tenant
from molt.jobs.plugins import make_policy
from molt.worlds.checkers import CHECKERS, disagreements
from molt.worlds.memory_books import MemoryBooks
from tests.small import LADDER, MIB

MOLT, HOLD = make_policy("molt", {}), make_policy("hold", {})
ACTIVE = Tenant(
    name="a",
    kind=TenantKind.BATCH,
    attempt=1,
    order=0,
    prompt_tokens=20,
    max_tokens=11,
    phase=Phase.ACTIVE,
    target="tier1",
    cache_rung="tier1",
    capacity=30,
    read=19,
    settled=19,
)
FINE = State(budget_bytes=60 * MIB, resident=frozenset({"tier1"}), tenants={"a": ACTIVE})


def state(**changes: Any) -> State:
    return replace(FINE, **changes)


def tenant(**changes: Any) -> State:
    return replace(FINE, tenants={"a": replace(ACTIVE, **changes)})


BROKEN = {
    "process_is_alive": [state(alive=False)],
    "overshoot_is_bounded": [state(budget_bytes=MIB)],
    "transients_are_reserved": [
        state(loading=frozenset({"tier0"}), budget_bytes=20 * MIB),
        replace(tenant(cache_rung="tier0"), budget_bytes=10 * MIB),
    ],
    "caches_are_consistent": [
        tenant(capacity=18),
        tenant(read=31, capacity=40),
        tenant(read=20),
        tenant(dropped=20),
        tenant(phase=Phase.PARKED, target=None, spilled=True, capacity=5),
    ],
    "phases_are_consistent": [
        state(resident=frozenset()),
        tenant(phase=Phase.PARKED),
        tenant(phase=Phase.WAITING, target=None),
        tenant(phase=Phase.PARKED, target=None, cache_rung=None),
    ],
    "answers_have_room": [tenant(capacity=29)],
    "settled_cells_are_cells": [tenant(settled=20), tenant(settled=-1)],
    "rungs_are_one_thing": [state(loading=frozenset({"tier1"}))],
}


USAGE, PEAK = (usage_bytes(state(loading=frozenset(rungs)), LADDER) for rungs in ((), ("tier0",)))
JUST_FINE = {
    "all is well": FINE,
    "no tenant is there": State(),
    "on disk": tenant(phase=Phase.PARKED, target=None, spilled=True, capacity=0),
    "as much as may be": state(budget_bytes=USAGE),
    "nothing under way": state(budget_bytes=PEAK),
    "a load that just fits": state(budget_bytes=PEAK, loading=frozenset({"tier0"})),
    "waiting": tenant(phase=Phase.WAITING, target=None, cache_rung=None, capacity=0, read=0, settled=0),
    "begun, with nothing known": tenant(prompt_tokens=0, max_tokens=31, read=0, settled=0),
    "full to the last cell": tenant(prompt_tokens=30, max_tokens=1, read=29, settled=29, capacity=30),
    "trimmed while it switches": tenant(cache_rung="tier2", capacity=19),
    "a rung that comes": state(resident=frozenset(), loading=frozenset({"tier1"})),
    "all context gone": tenant(phase=Phase.PARKED, target=None, read=19, dropped=19, capacity=0, settled=0),
}


@pytest.mark.parametrize("fine", JUST_FINE)
def test_what_is_fine_breaks_nothing(fine: str) -> None:
    assert violations(JUST_FINE[fine], LADDER, MOLT) == []


def test_one_byte_less_is_too_little() -> None:
    assert [rule for rule, _ in violations(state(budget_bytes=USAGE - 1), LADDER, MOLT)] == [
        "overshoot_is_bounded"
    ]
    loading = state(budget_bytes=PEAK - 1, loading=frozenset({"tier0"}))
    assert "transients_are_reserved" in dict(violations(loading, LADDER, MOLT))


@pytest.mark.parametrize("name", [rule.__name__ for rule in INVARIANTS])
def test_an_invariant_can_be_broken(name: str) -> None:
    for number, broken in enumerate(BROKEN[name]):
        assert dict(violations(broken, LADDER, MOLT)).get(name), number


def test_only_promises_are_held_against_a_policy() -> None:
    for name in ("process_is_alive", "overshoot_is_bounded", "transients_are_reserved"):
        assert name not in dict(violations(BROKEN[name][0], LADDER, HOLD))


def books(**changes: int) -> MemoryBooks:
    """What a world holds that is as believed, but for the changes: ``kind__owner``."""
    memory = MemoryBooks(lambda: None)
    size = LADDER.rung("tier1")
    parts = {
        "weights__tier1": size.weight_bytes,
        "scratch__tier1": size.scratch_bytes,
        "kv__a": size.kv_bytes(30),
    }
    for key, held in {**parts, **changes}.items():
        kind, owner = key.split("__")
        memory.put(kind, owner.replace("_", " "), held)
    return memory


def miscounted() -> MemoryBooks:
    memory = books()
    memory.usage_bytes += 1
    return memory


UNTRUE = {
    "parts_sum_to_usage": (FINE, miscounted()),
    "rungs_are_as_believed": (FINE, books(weights__tier1=0)),
    "withheld_bytes_are_as_believed": (FINE, books(transient__withheld_tier0=7)),
    "caches_are_as_believed": (FINE, books(kv__a=1)),
    "switches_keep_to_their_reservation": (
        tenant(cache_rung="tier2"),
        books(transient__switch_a=LADDER.rung("tier1").kv_bytes(30) + 1),
    ),
    "true_overshoot_is_bounded": (FINE, books(kv__b=60 * MIB)),
}


def test_what_is_true_is_believed() -> None:
    assert disagreements(FINE, LADDER, MOLT, books()) == []


@pytest.mark.parametrize("name", [checker.__name__ for checker in CHECKERS])
def test_a_checker_notices(name: str) -> None:
    believed, memory = UNTRUE[name]
    found = dict(disagreements(believed, LADDER, MOLT, memory))
    assert found.get(name)
