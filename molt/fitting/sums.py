"""Sums over rows whose columns come in blocks: one layer of one model each.

Only the products of blocks that some regression needs are summed, so memory grows with the layers that a map may
read and not with the square of all layers of all models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Regression:
    """Which blocks of columns are the features, in order, and which one is the target."""

    features: tuple[int, ...]
    target: int


def products(regressions: Iterable[Regression]) -> frozenset[tuple[int, int]]:
    """The pairs of blocks, lower number first, whose products some regressions need."""
    pairs: set[tuple[int, int]] = set()
    for one in regressions:
        pairs |= set(combinations_with_replacement(sorted({*one.features, one.target}), 2))
    return frozenset(pairs)


@dataclass(slots=True, eq=False)
class BlockSums:
    """Sums over rows, given as blocks of columns b of (n, w_b), taken about fixed origins.

    Products within one call of ``add`` are in the type of the rows, the sums over calls in float64.
    """

    origins: tuple[Tensor, ...]  # of (w_b,)
    pairs: frozenset[tuple[int, int]]
    rows: int = 0
    totals: list[Tensor] = field(init=False)  # of (w_b,) float64
    grams: dict[tuple[int, int], Tensor] = field(init=False)  # of (w_b, w_c) float64

    def __post_init__(self) -> None:
        self.totals = [torch.zeros(len(origin), dtype=torch.float64) for origin in self.origins]
        self.grams = {
            (one, other): torch.zeros(len(self.origins[one]), len(self.origins[other]), dtype=torch.float64)
            for one, other in sorted(self.pairs)
        }

    def add(self, blocks: Sequence[Tensor]) -> None:
        """Take in rows: every block (n, w_b) of them, in order."""
        centred = [block - origin for block, origin in zip(blocks, self.origins, strict=True)]
        self.rows += len(centred[0])
        for total, block in zip(self.totals, centred, strict=True):
            total += block.sum(0, dtype=torch.float64)
        for (one, other), gram in self.grams.items():
            gram += centred[one].T @ centred[other]

    def mean(self, blocks: Sequence[int]) -> Tensor:
        """Mean (w,) float64 of the columns of some blocks, side by side."""
        return torch.cat([self.origins[block].double() + self.totals[block] / self.rows for block in blocks])

    def covariance(self, left: Sequence[int], right: Sequence[int]) -> Tensor:
        """Covariance (l, r) float64 of the columns of some blocks with those of others, side by side.

        Raises ``KeyError`` for a pair that was not summed.
        """
        heights, widths = ([len(self.origins[block]) for block in blocks] for blocks in (left, right))
        made = torch.empty(sum(heights), sum(widths), dtype=torch.float64)
        for one, rows in zip(left, made.split(heights), strict=True):
            for other, part in zip(right, rows.split(widths, dim=1), strict=True):
                torch.div(self._gram(one, other), self.rows, out=part)
                part.addr_(self.totals[one], self.totals[other], alpha=-1 / self.rows**2)
        return made

    def variance(self, block: int) -> Tensor:
        """Variance (w,) float64 of the columns of a block."""
        squares = self._gram(block, block).diagonal()
        return squares / self.rows - (self.totals[block] / self.rows) ** 2

    def _gram(self, left: int, right: int) -> Tensor:
        return self.grams[left, right] if left <= right else self.grams[right, left].T
