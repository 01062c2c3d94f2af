"""What a count of rare events says about how often they happen: exact (Clopper-Pearson) bounds of a proportion."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, lgamma, log, log1p

CONFIDENCE = 0.95
HALVINGS = 60
"""Bisection to 2**-60, below the resolution of a float."""


def upper_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The largest probability with which so few events still come about in ``1 - confidence`` of the cases.

    One-sided; 1 without trials. For no events it is ``1 - (1 - confidence) ** (1 / trials)``. Clopper and Pearson 1934.
    """
    assert 0 <= events <= trials, (events, trials)
    if events == trials:
        return 1.0
    return _largest_true(lambda p: at_most(events, trials, p) > 1 - confidence)


def lower_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The smallest probability with which so many events still come about in ``1 - confidence`` of the cases."""
    return 1 - upper_bound(trials - events, trials, confidence)


def at_most(events: int, trials: int, probability: float) -> float:
    """The probability of at most so many events in so many independent trials."""
    if probability <= 0.0 or probability >= 1.0:
        return float(probability <= 0.0 or events == trials)
    return min(1.0, sum(exp(_log_exactly(k, trials, probability)) for k in range(events + 1)))


def _log_exactly(k: int, trials: int, probability: float) -> float:
    log_choices = lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
    return log_choices + k * log(probability) + (trials - k) * log1p(-probability)


def _largest_true(holds: Callable[[float], bool]) -> float:
    """The largest number in [0, 1] at which a predicate holds that holds at 0 and stops holding once."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high
