"""Figures over documents: mean, median, bad end, and an interval by resampling whole documents.

Tokens of one document resemble each other, so the document is the unit: it is what is drawn with replacement
(Efron's percentile bootstrap). The same values and seed give the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from molt.evals.result import Figure

RESAMPLES = 2_000
INTERVAL = 0.95
Floats = NDArray[np.float64]


def summarise(values: Sequence[float] | Floats, seed: int, *, more_is_better: bool = False) -> Figure:
    """Summary of one figure a document; percentiles are nearest-rank."""
    array = np.asarray(values, dtype=np.float64)
    low, high = _interval(array, np.ones_like(array), seed)
    return _summary(array, float(array.mean()), low, high, more_is_better)


def summarise_share(
    parts: Sequence[float] | Floats,
    wholes: Sequence[float] | Floats,
    seed: int,
    *,
    more_is_better: bool,
    whole_min: float = 0.0,
) -> Figure:
    """Summary of a share, ``mean`` being the sum of the parts over the sum of the wholes.

    A share of a document whose whole is ``whole_min`` or less means nothing: such documents count in the sums
    and nowhere else.
    """
    part, whole = (np.asarray(values, dtype=np.float64) for values in (parts, wholes))
    low, high = _interval(part, whole, seed)
    total = float(whole.sum())
    mean = float(part.sum()) / total if total else 1.0
    meant = whole > whole_min
    shares = part[meant] / whole[meant] if meant.any() else np.array([mean])
    return _summary(shares, mean, low, high, more_is_better)


def _summary(
    shares: Floats, mean: float, low: float | None, high: float | None, more_is_better: bool
) -> Figure:
    tail = 0.05 if more_is_better else 0.95
    median, end = (float(np.quantile(shares, at, method="inverted_cdf")) for at in (0.5, tail))
    return Figure(n=len(shares), mean=mean, median=median, tail=end, low=low, high=high)


def _interval(parts: Floats, wholes: Floats, seed: int) -> tuple[float | None, float | None]:
    count = len(parts)
    if count < 2:
        return None, None
    drawn = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = parts[drawn].sum(1) / wholes[drawn].sum(1)
    means = means[np.isfinite(means)]
    if not len(means):
        return None, None
    edge = (1 - INTERVAL) / 2
    low, high = np.quantile(means, (edge, 1 - edge))
    return float(low), float(high)
