"""Every invariant and every checker can be broken, and then names itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from molt.checkers import CHECKERS, disagreements
from molt.core.events import TenantKind
from molt.core.invariants import INVARIANTS, violations
from molt.core.state import Phase, State, Tenant
from molt.memory import Memory
from molt.plugins import make_policy
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
    "nobody_is_dead": [state(alive=False)],
    "overshoot_is_bounded": [state(budget_bytes=MIB)],
    "transients_are_reserved": [
        state(loading=frozenset({"tier0"}), budget_bytes=20 * MIB),
        replace(tenant(cache_rung="tier0"), budget_bytes=10 * MIB),
    ],
    "caches_are_consistent": [
        tenant(capacity=18),
        tenant(read=31, capacity=40),
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


def test_what_is_fine_breaks_nothing() -> None:
    assert violations(FINE, LADDER, MOLT) == []
    parked = tenant(phase=Phase.PARKED, target=None, spilled=True, capacity=0)
    assert violations(parked, LADDER, MOLT) == []


@pytest.mark.parametrize("name", [rule.__name__ for rule in INVARIANTS])
def test_an_invariant_can_be_broken(name: str) -> None:
    for number, broken in enumerate(BROKEN[name]):
        found = dict(violations(broken, LADDER, MOLT))
        assert name in found, number
        assert found[name]


def test_only_promises_are_held_against_a_policy() -> None:
    for name in ("nobody_is_dead", "overshoot_is_bounded", "transients_are_reserved"):
        assert name not in dict(violations(BROKEN[name][0], LADDER, HOLD))


def books(**changes: int) -> Memory:
    """What a world holds that is as believed, but for the changes: ``kind__owner``."""
    memory = Memory(lambda: None)
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


def miscounted() -> Memory:
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
