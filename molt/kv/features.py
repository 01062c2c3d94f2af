"""Attention states as rows of a regression: one row per cell, RoPE taken out of the keys.

Column order, for features and targets alike: layer by layer, within a layer K before V, within each head by
head.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.kv.key_rotation import rotate, unrotate
from molt.kv.kv_state import KVState
from molt.models.rope import Rope


def columns_per_layer(layout: KVLayout) -> int:
    """Columns of one layer: K and V of all its heads."""
    return 2 * layout.kv_heads * layout.head_dim


def nearest_layers(dest_layer: int, dest_layers: int, source_layers: int, count: int) -> tuple[int, ...]:
    """The ``count`` source layers nearest in relative depth to a destination layer, in order.

    Depth of layer l of n is ``l / (n - 1)``; of two equally near layers the lower one is taken, of
    fewer than ``count`` layers all.
    """
    depth = dest_layer / max(1, dest_layers - 1) * (source_layers - 1)  # in units of source layers
    return tuple(sorted(sorted(range(source_layers), key=lambda layer: (abs(layer - depth), layer))[:count]))


def layer_columns(layers: Iterable[int], layout: KVLayout) -> Tensor:
    """Indices (p,) int64 of the columns of some layers."""
    width = columns_per_layer(layout)
    starts = torch.tensor(list(layers), dtype=torch.int64) * width
    return (starts[:, None] + torch.arange(width)).flatten()


def to_rows(state: KVState, rope: Rope) -> Tensor:
    """Content of a state as rows (T, L * 2 * H * D) float32: un-rotated keys and values."""
    layers, heads, cells, head_dim = state.keys.shape
    rows = torch.empty(cells, layers, 2, heads, head_dim)
    by_cell = rows.permute(2, 1, 3, 0, 4)  # (2, L, H, T, D), the same memory
    unrotate(state.keys, state.positions, rope, out=by_cell[0])
    by_cell[1] = state.values
    return rows.view(cells, -1)


def from_rows(rows: Tensor, positions: Tensor, layout: KVLayout, rope: Rope) -> KVState:
    """The state whose content is ``rows`` (T, L * 2 * H * D), rotated to ``positions`` (T,)."""
    shape = (len(positions), layout.layers, 2, layout.kv_heads, layout.head_dim)
    keys, values = rows.reshape(shape).permute(2, 1, 3, 0, 4)  # (L, H, T, D) each
    return KVState(rotate(keys, positions, rope), values, positions)
