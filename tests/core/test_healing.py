"""The schedule of healing: how many cells each step heals, and when everything is exact."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.core import decisions as d
from molt.core import events as e
from molt.core.costs import HealingFactor, RungCosts, StepCost
from molt.core.events import TenantKind
from molt.core.healing import CHUNKS, chunk, most_within, settled_after
from molt.core.state import State, after_decision, after_event
from molt.core.turns import DecodeStep, next_step
from molt.policies.molt import Molt
from tests.small import COSTS, MIB, S, scenario, simulate, tenant

COST = COSTS.rungs["tier1"]


@given(st.integers(0, 300), st.integers(0, 300), st.integers(2, 64))
def test_healing_catches_up_with_the_answer(cells: int, settled: int, heal: int) -> None:
    """Every step adds a cell, so each gains ``heal - 1``; once level, the cells to come are exact by themselves."""
    settled = min(settled, cells)
    steps = 0
    while settled < cells:
        healed = chunk(cells, settled, heal)
        assert 0 < healed <= heal
        before, settled = settled, settled_after(cells, settled, healed)
        assert settled > before
        cells, steps = cells + 1, steps + 1
    assert steps <= -(-(cells - steps) // (heal - 1)) + 1
    assert settled_after(cells, settled, chunk(cells, settled, heal)) == cells + 1


@given(st.integers(1, 300), st.integers(0, 300))
def test_without_healing_nothing_settles(cells: int, settled: int) -> None:
    settled = min(settled, cells - 1)
    assert settled_after(cells, settled, chunk(cells, settled, 0)) == settled


@given(st.floats(1.0, 20.0), st.integers(0, 2000), st.integers(0, 64))
def test_a_step_stays_within_the_stretch(stretch: float, context: int, at_most: int) -> None:
    tokens = most_within(COST, stretch, context, at_most)
    bare_ns = COST.decode.ns(1, context)
    assert tokens in (0, *CHUNKS)
    assert tokens <= at_most
    assert tokens == 0 or COST.healing_ns(tokens, context) <= stretch * bare_ns
    larger = [n for n in CHUNKS if tokens < n <= at_most]
    assert all(COST.healing_ns(n, context) > stretch * bare_ns for n in larger)
    assert COST.healing_ns(0, context) == bare_ns


@given(st.integers(0, 200))
def test_tokens_are_healed_by_powers_of_two(at_most: int) -> None:
    assert most_within(COST, 1e6, 0, at_most) == (1 << min(at_most, 64).bit_length() >> 1)


@pytest.mark.parametrize(
    ("tokens", "factor"), [(0, 1.0), (4, 1.5), (2, 1.25), (8, 2.5), (6, 2.0), (10, 2.5 + 2 * 0.1)]
)
def test_a_measured_stretch_is_interpolated(tokens: int, factor: float) -> None:
    measured = RungCosts(
        1, 1, StepCost(0, 90, 0.2), StepCost(0, 1000), (HealingFactor(4, 1.5), HealingFactor(8, 2.5))
    )
    assert measured.healing_ns(tokens, 50) == round(1000 * factor)
    assert [most_within(measured, stretch, 50, 64) for stretch in (1.5, 2.0, 2.49, 2.5)] == [4, 4, 4, 8]


def carried() -> State:
    """One tenant of 100 prompt tokens whose cache came over from tier0; four cells of it are exact."""
    state = after_event(State(), e.BudgetChanged(at_ns=0, budget_bytes=64 * MIB))
    state = after_event(
        state,
        e.TenantArrived(
            at_ns=0, tenant="chat", tenant_kind=TenantKind.FOREGROUND, prompt_tokens=100, max_tokens=50
        ),
    )
    state = after_decision(state, d.Admit(tenant="chat", rung="tier1", capacity=149))
    state = after_decision(state, d.Load(rung="tier1"))
    state = after_event(state, e.RungLoaded(at_ns=1, rung="tier1"))
    state = after_event(state, e.PromptRead(at_ns=2, tenant="chat", rung="tier1", tokens=99))
    assert state.tenants["chat"].settled == 99
    switched = e.Switched(
        at_ns=3,
        tenant="chat",
        source="tier0",
        dest="tier1",
        route="project",
        cells=99,
        duration_ns=1,
        settled=4,
    )
    return after_event(state, switched)


def produced(count: int, heal: int, healed: int) -> e.TokensProduced:
    return e.TokensProduced(at_ns=4, tenant="chat", rung="tier1", count=count, heal=heal, healed=healed)


def test_the_belief_follows_the_steps() -> None:
    state = carried()
    assert next_step(state) == DecodeStep("chat", "tier1", 50, 99, settled=4, heal=0)
    state = after_event(state, produced(3, 0, 0))
    assert state.tenants["chat"].settled == 4
    state = after_decision(state, d.Heal(tenant="chat", tokens=30))
    assert next_step(state) == DecodeStep("chat", "tier1", 47, 102, settled=4, heal=30)
    state = after_event(state, produced(2, 30, 60))
    assert (state.tenants["chat"].settled, state.tenants["chat"].cells) == (64, 104)
    state = after_event(state, produced(4, 30, 41))  # 30 of 40, 11 of 11, and then there is nothing to heal
    assert state.tenants["chat"].settled == state.tenants["chat"].cells == 108


def test_parking_keeps_what_is_exact_and_shedding_ends_healing() -> None:
    state = after_event(after_decision(carried(), d.Heal(tenant="chat", tokens=16)), produced(1, 16, 16))
    parked = after_decision(state, d.Park(tenant="chat"))
    assert parked.tenants["chat"].settled == 20
    shed = after_decision(parked, d.Shed(tenant="chat", keep_cells=40))
    assert shed.tenants["chat"].settled == shed.tenants["chat"].cells == 40
    gone = after_decision(parked, d.Shed(tenant="chat", keep_cells=0))
    assert gone.tenants["chat"].settled == gone.tenants["chat"].cells == 0


BUDGETS = ((0, 60 * MIB), (10 * S, 14 * MIB))
"""Down after ten seconds, and no way back up."""


def test_molt_heals_after_a_switch_and_no_token_waits_longer_than_the_stretch() -> None:
    on = scenario(BUDGETS, [tenant(prompt_tokens=400, max_tokens=400)])
    ran = simulate(Molt(), on)
    assert not ran.violations
    assert [r["tokens"] for r in ran.of("Heal")] == [8]
    after = [r for r in ran.of("TokensProduced") if r["heal"]]
    assert sum(r["healed"] for r in after) > ran.of("Switched")[0]["cells"] - 4  # and what came meanwhile
    for run in after:
        gaps = [later - sooner for sooner, later in pairwise(run["stamps_ns"])]
        assert all(gap <= 2 * COSTS.rungs[run["rung"]].decode.ns(1, 800) for gap in gaps)
    assert gaps[-1] == COST.decode.ns(1, 798)  # at the end there is nothing left to heal
    assert ran.tokens("chat") == 400


def test_healing_can_be_switched_off_and_changes_no_token_count() -> None:
    on = scenario(BUDGETS, [tenant(prompt_tokens=400, max_tokens=400)])
    ran = simulate(Molt(heal_tokens=0), on)
    assert ran.of("Heal") == []
    assert sum(r["healed"] for r in ran.of("TokensProduced")) == 0
    assert ran.tokens("chat") == 400


def test_healing_pauses_while_a_larger_rung_is_brought_in() -> None:
    """What is healed now would be thrown away by the switch up."""
    on = scenario((*BUDGETS, (14 * S, 60 * MIB)), [tenant(prompt_tokens=400, max_tokens=400)])
    slow = {**COSTS.rungs, "tier0": replace(COSTS.rungs["tier0"], load_ns=4 * S)}
    ran = simulate(Molt(), on, costs=replace(COSTS, rungs=slow))
    assert not ran.violations
    asked = [(r["type"], r.get("rung", r.get("tokens"))) for r in ran.of("Heal", "Load", "Promote")]
    paused = asked.index(("Heal", 0))
    assert ("Heal", 8) in asked[:paused]
    assert asked[paused + 1] == ("Load", "tier0")
