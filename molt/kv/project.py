"""The learned map between two rungs: for each destination layer an affine function of several source layers.

It acts on content (RoPE taken out of the keys, see ``features``); this module puts the map between the two
rotations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.kv.features import columns_per_layer, from_rows, layer_columns, to_rows
from molt.kv.rope import Rope
from molt.kv.state import KVState, is_finite


@dataclass(frozen=True, slots=True, eq=False)
class LayerMap:
    """K and V of one destination layer from K and V of ``sources``, layers of the source in rising order."""

    sources: tuple[int, ...]
    weight: Tensor  # (p, 2 * H * D) float32, p = len(sources) * columns of a source layer
    bias: Tensor  # (2 * H * D,) float32


@dataclass(frozen=True, slots=True, eq=False)
class KVMap:
    """A directed map between two geometries, one ``LayerMap`` per destination layer."""

    source: KVLayout
    dest: KVLayout
    layers: tuple[LayerMap, ...]

    @property
    def nbytes(self) -> int:
        """Bytes while resident."""
        return sum(layer.weight.nbytes + layer.bias.nbytes for layer in self.layers)

    def check(self) -> None:
        """Raise ``ValueError``, in one line, unless shapes fit the geometries and all is finite."""
        if len(self.layers) != self.dest.layers:
            raise ValueError(f"the map has {len(self.layers)} layers, the destination {self.dest.layers}")
        width_in, width_out = columns_per_layer(self.source), columns_per_layer(self.dest)
        for number, layer in enumerate(self.layers):
            expected = (len(layer.sources) * width_in, width_out)
            if tuple(layer.weight.shape) != expected or tuple(layer.bias.shape) != expected[1:]:
                raise ValueError(
                    f"layer {number} of the map is {tuple(layer.weight.shape)}, the rungs need {expected}"
                )
            if not layer.sources or not 0 <= min(layer.sources) <= max(layer.sources) < self.source.layers:
                raise ValueError(f"layer {number} of the map reads source layers {layer.sources}")
            if not (is_finite(layer.weight) and is_finite(layer.bias)):
                raise ValueError(f"layer {number} of the map holds values that are not finite")


def project(kv_map: KVMap, state: KVState, source_rope: Rope, dest_rope: Rope) -> KVState:
    """The state (L', H', T, D') of the destination for a source state (L, H, T, D): un-rotate, map, re-
    rotate.
    """
    rows = to_rows(state, source_rope)  # (T, L * 2 * H * D)
    mapped = [_apply(layer, rows, kv_map.source) for layer in kv_map.layers]  # L' of (T, 2 * H' * D')
    return from_rows(torch.cat(mapped, dim=1), state.positions, kv_map.dest, dest_rope)


def _apply(layer: LayerMap, rows: Tensor, source: KVLayout) -> Tensor:
    return torch.addmm(layer.bias, rows[:, _columns(layer.sources, source)], layer.weight)


def _columns(sources: tuple[int, ...], source: KVLayout) -> slice | Tensor:
    """Columns of some layers: a slice, which copies nothing, where the layers are neighbours."""
    width, first, last = columns_per_layer(source), sources[0], sources[-1]
    if sources == tuple(range(first, last + 1)):
        return slice(first * width, (last + 1) * width)
    return layer_columns(sources, source)
