"""The bounds are those of the textbook, and hold at the confidence they claim."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.confidence import at_most, lower_bound, upper_bound


@pytest.mark.parametrize(
    ("events", "trials", "expected"),
    [  # quantiles of the beta distribution
        (0, 200, 0.0148672),
        (0, 1000, 0.0029912),
        (1, 10, 0.3941633),
        (7, 10, 0.9127356),
        (10, 10, 1.0),
        (0, 0, 1.0),
    ],
)
def test_known_bounds(events: int, trials: int, expected: float) -> None:
    assert upper_bound(events, trials) == pytest.approx(expected, abs=2e-7)


@given(st.integers(1, 60), st.data())
def test_the_bound_is_where_the_tail_is_a_twentieth(trials: int, data: st.DataObject) -> None:
    """Computed with whole numbers here, and seen from both sides."""
    events = data.draw(st.integers(0, trials - 1))
    bound = upper_bound(events, trials)
    tail = sum(comb(trials, k) * bound**k * (1 - bound) ** (trials - k) for k in range(events + 1))
    assert tail == pytest.approx(0.05, abs=1e-6)
    assert at_most(events, trials, bound) == pytest.approx(tail, abs=1e-9)
    assert lower_bound(events, trials) <= events / trials <= bound
    assert upper_bound(events + 1, trials) >= bound


def test_certain_and_impossible_events() -> None:
    assert (at_most(0, 5, 0.0), at_most(4, 5, 1.0), at_most(5, 5, 1.0)) == (1.0, 0.0, 1.0)
    assert lower_bound(0, 10) == 0.0
