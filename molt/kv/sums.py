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

from molt.kv.ridge import Statistics


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

    def dense(self, blocks: Sequence[int]) -> Statistics:
        """The sums of some blocks side by side, in that order; every pair of them must have been summed."""
        statistics = Statistics(torch.cat([self.origins[block] for block in blocks]))
        statistics.rows = self.rows
        statistics.total = torch.cat([self.totals[block] for block in blocks])
        statistics.gram = torch.cat([torch.cat([self._gram(a, b) for b in blocks], dim=1) for a in blocks])
        return statistics

    def _gram(self, left: int, right: int) -> Tensor:
        return self.grams[left, right] if left <= right else self.grams[right, left].T
