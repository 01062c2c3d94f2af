"""The attention state of one generation as a value, independent of any library's cache classes.

Shape legend, used everywhere in this package:

    L  layers of the rung          H  KV heads of a layer
    T  cells (cached tokens)       D  dimension of a head

A *cell* is one cached token; its *position* is the index of that token in the text. After a shed the
positions have a gap, and they keep it: RoPE encodes differences of positions, so the distances between
surviving cells, and between them and every later token, stay exactly what they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from molt.core.ladder import KVLayout


@dataclass(frozen=True, slots=True, eq=False)
class KVState:
    """K and V of every layer, with the position of every cell.

    ``keys`` are rotated by ``positions``, as attention consumes them.
    """

    keys: Tensor  # (L, H, T, D) float32
    values: Tensor  # (L, H, T, D) float32
    positions: Tensor  # (T,) int64, strictly increasing, from 0

    @property
    def cells(self) -> int:
        """T."""
        return self.positions.shape[0]

    def check(self, layout: KVLayout) -> None:
        """Raise ``ValueError``, in one line, unless this is a finite state in the geometry of ``layout``."""
        expected = (layout.layers, layout.kv_heads, self.cells, layout.head_dim)
        for name, tensor in (("keys", self.keys), ("values", self.values)):
            if tuple(tensor.shape) != expected:
                raise ValueError(
                    f"{name} of the cache are {tuple(tensor.shape)}, the rung needs {expected} (L, H, T, D)"
                )
            if tensor.dtype != torch.float32:
                raise ValueError(f"{name} of the cache are {tensor.dtype}, a state holds torch.float32")
            if not is_finite(tensor):
                raise ValueError(f"{name} of the cache hold values that are not finite")
        if self.positions.dtype != torch.int64 or self.positions.dim() != 1:
            raise ValueError(
                f"positions are {self.positions.dtype} {tuple(self.positions.shape)}, not int64 (T,)"
            )
        if self.cells and (self.positions[0] < 0 or not (self.positions.diff() > 0).all()):
            raise ValueError("positions of the cache are not increasing from 0")

    def select(self, cells: Tensor | slice) -> KVState:
        """The state of some cells only, in order; ``cells`` indexes T."""
        return KVState(self.keys[:, :, cells], self.values[:, :, cells], self.positions[cells])


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is finite, as the sum shows: NaN and infinity survive it.

    (Thirty times faster than ``isfinite`` on a cache; values whose sum overflows are no cache either.)
    """
    return math.isfinite(tensor.sum())
