"""The bound of ``docs/explanations/the-bound.md``: kept in every world, and reached where it can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given, settings, target

from molt.core.bound import overshoot_bytes_max, reaction_ns_max, usage_bytes_max
from molt.core.costs import StepCost
from molt.core.plan import Plan, Rest, Run
from molt.core.turns import SLICE_NS_MAX
from molt.core.view import View
from molt.jobs.plugins import make_policy
from molt.jobs.scenario import ResolvedScenario
from molt.policies.admission import others_wait
from molt.policies.molt import Molt
from tests import small
from tests.bare import bare_run
from tests.small import COSTS, LADDER, MIB, MS, S
from tests.strategies import worlds
from tests.worst import excess, unkilled


@dataclass(frozen=True, slots=True)
class Clinging:
    """Runs on the smallest rung, parks when pressed, and never lets go of the last 32 cells of any tenant."""

    name: ClassVar[str] = "clinging"
    promises: ClassVar[frozenset[str]] = frozenset({"bounded_overshoot"})
    floor_cells: ClassVar[int] = 32

    def decide(self, view: View) -> Plan:
        """All run if that fits, else each keeps what it must."""
        tenants = [t for t in view.state.tenants.values() if t.cache_rung is not None] or view.waiting()
        running = others_wait(view, {t.name: Run(view.ladder.bottom.name) for t in tenants})
        if view.fits(running):
            return running
        return others_wait(view, {t.name: Rest(min(t.cells, self.floor_cells)) for t in view.admitted()})


def test_the_floor_is_reached_to_the_byte() -> None:
    """A policy with a floor, under a budget below it: usage is the floor, and the overshoot the whole bound."""
    on = small.scenario([(0, 60 * MIB), (3 * S, 1)], [small.tenant(max_tokens=400)])
    ran = small.simulate(Clinging(), on)
    floor = 32 * LADDER.bottom.kv.bytes_per_token
    assert ran.violations == []
    assert ran.overshoot_max() == floor - 1


@pytest.mark.parametrize("policy", [Clinging(), make_policy("molt", {}), make_policy("restart", {})])
@settings(max_examples=10)
@given(on=worlds().map(unkilled))
def test_after_enforcement_usage_is_within_the_bound(policy, on: ResolvedScenario) -> None:  # type: ignore[no-untyped-def]
    """``usage - budget <= max(0, floor - budget)`` after every round, by the books of the world, not by belief."""
    bare = bare_run(policy, on, LADDER, COSTS)
    state = bare.state
    assert bare.memory.usage_bytes <= usage_bytes_max(state, LADDER, policy)
    assert overshoot_bytes_max(state, LADDER, policy) == max(
        0, usage_bytes_max(state, LADDER, policy) - state.budget_bytes
    )
    assert small.simulate(policy, on).violations == []


@pytest.mark.parametrize("name", ["molt", "restart"])
@settings(max_examples=25)
@given(on=worlds().map(unkilled))
def test_enforcement_takes_no_longer_than_the_bound(name: str, on: ResolvedScenario) -> None:
    """Usage is above the budget for at most ``reaction_ns_max`` since the last fall; the search climbs towards that."""
    policy = make_policy(name, {})
    worst = excess(small.simulate(policy, on), on, policy)
    target(float(worst.since_fall_ns))
    assert worst.since_fall_ns <= worst.bound_ns
    assert worst.after_enforcement_bytes <= 0


def test_the_time_is_nearly_reached() -> None:
    """The bound is not loose by much: a fall just after a token began, with the largest rung to be released."""
    policy = make_policy("restart", {})
    release_ns = COSTS.rungs["tier0"].release_ns
    token_ns = COSTS.rungs["tier0"].decode.ns(1, 300)
    on = small.scenario([(0, 60 * MIB), (8 * S, MIB)], [small.tenant()])
    worst = excess(small.simulate(policy, on), on, policy)
    assert release_ns < worst.since_fall_ns <= token_ns + release_ns
    assert reaction_ns_max(COSTS, LADDER, 300, policy) >= token_ns + release_ns


def test_stretches_are_as_short_as_is_written_down() -> None:
    assert SLICE_NS_MAX == 50 * MS


def test_the_time_is_the_sum_that_is_derived() -> None:
    """With 300 cells: one of seven layers of a chunk on the largest rung comes to most, or a token that heals; then
    three releases, and what a policy adds."""
    chunk_ns, releases_ns = -(-(2 * MS + 128 * 8 * MS + 100 * 128 * 300) // 7), 3 * 40 * MS
    assert reaction_ns_max(COSTS, LADDER, 300, make_policy("restart", {})) == chunk_ns + releases_ns
    healing = Molt(heal_stretch=2.0, spill_within_ns=0)
    assert reaction_ns_max(COSTS, LADDER, 300, healing) == 2 * (80 * MS + 500 * 300) + releases_ns
    writing = Molt(heal_stretch=1.0, spill_within_ns=100 * MS)
    assert reaction_ns_max(COSTS, LADDER, 300, writing) == chunk_ns + 100 * MS + releases_ns
    reading_back = Molt(heal_stretch=1.0, spill_within_ns=S)
    assert reaction_ns_max(COSTS, LADDER, 300, reading_back) == S // 2 + S + releases_ns
    free = replace(
        COSTS, rungs={"tier2": replace(COSTS.rungs["tier2"], read=StepCost(0, 1), decode=StepCost(0, 1))}
    )
    alone = replace(LADDER, rungs=LADDER.rungs[2:], routes=())
    assert reaction_ns_max(free, alone, 300, make_policy("restart", {})) == SLICE_NS_MAX + 40 * MS
