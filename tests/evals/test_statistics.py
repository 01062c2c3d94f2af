"""Figures over documents: what they are, and that the same values give the same interval."""

from __future__ import annotations

import numpy as np
import pytest

from molt.evals.statistics import summarise, summarise_share

VALUES = [float(value) for value in range(1, 21)]


def test_percentiles_are_nearest_rank_and_the_bad_end_depends_on_what_is_good() -> None:
    less, more = summarise(VALUES, seed=0), summarise(VALUES, seed=0, more_is_better=True)
    assert (less.n, less.mean, less.median, less.tail) == (20, 10.5, 10.0, 19.0)
    assert more.tail == 1.0


def test_the_interval_is_that_of_the_mean_and_repeats() -> None:
    one, again, other = (summarise(VALUES, seed=seed) for seed in (3, 3, 4))
    assert one == again != other
    error = np.std(VALUES) / np.sqrt(20)
    assert one.low == pytest.approx(10.5 - 1.96 * error, abs=0.3)
    assert one.high == pytest.approx(10.5 + 1.96 * error, abs=0.3)


def test_equal_documents_leave_no_doubt_and_one_document_gives_no_interval() -> None:
    same = summarise([2.0] * 5, seed=0)
    assert (same.low, same.high) == (2.0, 2.0)
    alone = summarise([2.0], seed=0)
    assert (alone.low, alone.high) == (None, None)


def test_a_share_is_of_the_sums_and_leaves_out_documents_with_nothing_to_share() -> None:
    share = summarise_share([1.0, 3.0, 9.0], [2.0, 4.0, 0.0], seed=0, more_is_better=True)
    assert share.mean == pytest.approx(13 / 6)
    assert (share.n, share.median, share.tail) == (2, 0.5, 0.5)


def test_a_share_of_nothing_at_all_is_whole() -> None:
    assert summarise_share([0.0, 0.0], [0.0, 0.0], seed=0, more_is_better=True).mean == 1.0
