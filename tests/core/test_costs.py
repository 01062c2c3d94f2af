"""What a switch is expected to cost, in time and in quality, at every setting of the dial."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.core.costs import Divergence, RouteCosts, RungCosts, StepCost
from molt.core.ladder import RouteKind
from molt.policies.molt import DIAL, Molt
from tests.small import COSTS, MIB, MS, S, scenario, simulate, tenant

MEASURED = RouteCosts(
    StepCost(0, 1),
    (
        Divergence(100, 0, 0.4),
        Divergence(100, 50, 0.2),
        Divergence(400, 0, 0.6),
        Divergence(400, 100, 0.3),
    ),
)


@pytest.mark.parametrize(
    ("cells", "native", "kl"),
    [
        (100, 0, 0.4),
        (100, 50, 0.2),
        (100, 25, 0.3),
        (100, 75, 0.1),  # half of the way from the last measured point to a full prefill
        (100, 100, 0.0),
        (50, 0, 0.4),  # shorter than what was measured
        (900, 0, 0.6),
        (250, 0, 0.5),
        (0, 0, 0.0),
    ],
)
def test_quality_is_interpolated(cells: int, native: int, kl: float) -> None:
    assert MEASURED.expected_kl(cells, native) == pytest.approx(kl)


@given(st.integers(1, 2000), st.integers(0, 2000))
def test_reading_more_natively_is_never_expected_to_be_worse(cells: int, native: int) -> None:
    native = min(native, cells)
    assert (
        0.0
        <= MEASURED.expected_kl(cells, min(native + 1, cells))
        <= MEASURED.expected_kl(cells, native) + 1e-12
    )


@given(st.integers(1, 1500), st.integers(0, 1500))
def test_the_dial_goes_from_the_map_to_a_reread(cells: int, native: int) -> None:
    """What is not prefilled natively goes through the map, and what is prefilled attends to all of that."""
    native = min(native, cells)
    map_, read = COSTS.routes["tier0->tier1"].switch, COSTS.rungs["tier1"].read
    mapped = cells - native
    expected = map_.ns(mapped, 0) + round((read.token_ns + read.pair_ns * mapped) * native)
    assert COSTS.switch_ns("tier0", "tier1", cells, native) == expected
    more_than_all = COSTS.switch_ns("tier0", "tier1", cells, cells + 5)
    assert more_than_all == COSTS.switch_ns("tier0", "tier1", cells, cells)


def test_steps_and_bytes_cost_what_was_measured_and_never_nothing() -> None:
    assert StepCost(10, 2, 0.5).ns(4, 6) == 10 + 2 * 4 + 0.5 * 4 * 6
    assert StepCost(10, 2).ns(4, 6) == 10 + 2 * 4
    assert StepCost(0, 0).ns(1, 1) == 1
    assert (COSTS.spill_ns(1000), COSTS.restore_ns(1000)) == (1000, 500)
    assert (COSTS.spill_ns(0), COSTS.restore_ns(0)) == (1, 1)
    assert RungCosts(1, 1, StepCost(0, 0), StepCost(0, 0)).healing_ns(0, 0) == 1


def test_a_route_that_was_not_measured_has_no_time() -> None:
    with pytest.raises(KeyError):
        COSTS.switch_ns("tier1", "tier9", 10, 0)


def test_molt_spends_the_stall_it_is_given_on_native_tokens() -> None:
    on = scenario(((0, 60 * MIB), (10 * S, 14 * MIB)), [tenant(prompt_tokens=400, max_tokens=200)])
    costs = replace(
        COSTS,
        routes={key: RouteCosts(StepCost(60 * MS, 0.1 * MS), MEASURED.divergences) for key in COSTS.routes},
    )
    natives, predicted = [], []
    for stall_ns in (0, 300 * MS, 10 * S):
        ran = simulate(Molt(stall_ns=stall_ns), on, costs=costs)
        assert not ran.violations
        down = next(r for r in ran.of("Switched") if r["route"] == RouteKind.PROJECT)
        asked = next(r for r in ran.of("Demote") if r["seq"] == down["decision"])
        assert down["duration_ns"] == asked["prediction"]["duration_ns"]
        assert stall_ns == 0 or down["duration_ns"] <= stall_ns
        assert down["predicted_kl"] == asked["prediction"]["kl"]
        natives.append(down["native"])
        predicted.append(down["predicted_kl"])
    assert natives[0] == 16
    assert natives[1] in DIAL
    assert natives[2] == down["cells"]
    assert predicted == sorted(predicted, reverse=True)
    assert predicted[2] == 0.0
