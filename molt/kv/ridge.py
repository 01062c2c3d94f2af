"""Centred ridge regression from sufficient statistics, in float64.

The statistics are sums over rows, so calibration text of any length costs ``width ** 2`` numbers and no more,
and the error on held-out text follows from *its* statistics without keeping or replaying a row. A row holds
every model of a ladder side by side: any directed pair is then a choice of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Statistics:
    """Sums over rows z (w,), taken about a fixed origin.

    With the origin near the mean of the rows, means far from 0 (large key biases) cost no digits.
    """

    origin: Tensor  # (w,) float64
    rows: int = 0
    total: Tensor = field(init=False)  # (w,) float64
    gram: Tensor = field(init=False)  # (w, w) float64

    def __post_init__(self) -> None:
        width = len(self.origin)
        self.origin = self.origin.double()
        self.total = torch.zeros(width, dtype=torch.float64)
        self.gram = torch.zeros(width, width, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows (n, w)."""
        centred = rows.double() - self.origin
        self.rows += len(rows)
        self.total += centred.sum(0)
        self.gram.addmm_(centred.T, centred)

    def mean(self, columns: Tensor) -> Tensor:
        """Mean about the origin (c,) of some columns."""
        return self.total[columns] / self.rows

    def moment(self, left: Tensor, right: Tensor) -> Tensor:
        """Second moments about the origin (l, r) of two sets of columns."""
        return self.gram[left[:, None], right] / self.rows


def solve(statistics: Statistics, features: Tensor, targets: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Ridge estimate of some target columns (q,) from some feature columns (p,).

    Minimises the mean of ``|y - bias - x W|^2`` plus ``penalty |W|^2``, where the penalty is ``ridge`` times
    the mean variance of the features; the bias is free. Returns W (p, q) and bias (q,), float64.
    """
    x_mean, y_mean = statistics.mean(features), statistics.mean(targets)
    xx = statistics.moment(features, features) - x_mean[:, None] * x_mean  # (p, p) covariance
    xy = statistics.moment(features, targets) - x_mean[:, None] * y_mean  # (p, q)
    xx.diagonal().add_(ridge * xx.diagonal().mean())
    weight = torch.cholesky_solve(xy, torch.linalg.cholesky(xx))  # (p, q)
    bias = statistics.origin[targets] + y_mean - (statistics.origin[features] + x_mean) @ weight
    return weight, bias


def unexplained(
    statistics: Statistics, features: Tensor, targets: Tensor, weight: Tensor, bias: Tensor
) -> float:
    """Squared error of a map (p, q), (q,) over the rows of ``statistics`` by their variance: 1 - R^2."""
    weight = weight.double()
    offset = bias.double() + statistics.origin[features] @ weight - statistics.origin[targets]  # (q,)
    x_mean, y_mean = statistics.mean(features), statistics.mean(targets)
    y_squares = statistics.gram.diagonal()[targets] / statistics.rows  # (q,)
    predicted = (weight * (statistics.moment(features, features) @ weight)).sum(0) + 2 * offset * (
        x_mean @ weight
    )
    crossed = (weight * statistics.moment(features, targets)).sum(0) + offset * y_mean
    error = y_squares - 2 * crossed + predicted + offset**2  # (q,)
    return float(error.sum() / (y_squares - y_mean**2).sum())
