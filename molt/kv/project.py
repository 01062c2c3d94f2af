"""The learned map between two rungs: each destination layer is affine in what is known of a token.

Known are K and V of several source layers, with RoPE taken out of the keys (see ``features``), and the input
that the first mapped layer of the destination reads, which the destination computes itself: it runs its first
``native_layers`` layers on the tokens. With none of them that input is the token's embedding, which costs a
table look-up and already makes the first layer exact; every layer more costs its share of a re-read. This
module puts the map between the two rotations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.kv.features import columns_per_layer, from_rows, layer_columns, to_rows
from molt.kv.state import KVState, is_finite
from molt.models.rope import Rope


@dataclass(frozen=True, slots=True, eq=False)
class LayerMap:
    """K and V of one destination layer from K and V of ``sources``, rising, and from the input."""

    sources: tuple[int, ...]
    weight: Tensor  # (p, 2 * H' * D') float32, p = len(sources) * 2 * H * D + hidden'
    bias: Tensor  # (2 * H' * D',) float32


@dataclass(frozen=True, slots=True, eq=False)
class KVMap:
    """A directed map between two geometries: a ``LayerMap`` for each destination layer from ``native_layers``
    on.

    ``hidden`` is the width of the input that the maps are given.
    """

    source: KVLayout
    dest: KVLayout
    hidden: int
    native_layers: int
    layers: tuple[LayerMap, ...]

    @property
    def nbytes(self) -> int:
        """Bytes while resident."""
        return sum(layer.weight.nbytes + layer.bias.nbytes for layer in self.layers)

    @property
    def mapped(self) -> KVLayout:
        """Geometry of the destination layers that are mapped."""
        return replace(self.dest, layers=self.dest.layers - self.native_layers)

    def check(self) -> None:
        """Raise ``ValueError``, in one line, unless shapes fit the geometries and all is finite."""
        if not 0 <= self.native_layers < self.dest.layers or len(self.layers) != self.mapped.layers:
            raise ValueError(
                f"{self.native_layers} native and {len(self.layers)} mapped layers, not {self.dest.layers} in all"
            )
        for number, layer in enumerate(self.layers, start=self.native_layers):
            expected = (
                len(layer.sources) * columns_per_layer(self.source) + self.hidden,
                columns_per_layer(self.dest),
            )
            if tuple(layer.weight.shape) != expected or tuple(layer.bias.shape) != expected[1:]:
                raise ValueError(
                    f"layer {number} of the map is {tuple(layer.weight.shape)}, the rungs need {expected}"
                )
            if any(not 0 <= source < self.source.layers for source in layer.sources):
                raise ValueError(f"layer {number} of the map reads source layers {layer.sources}")
            if not (is_finite(layer.weight) and is_finite(layer.bias)):
                raise ValueError(f"layer {number} of the map holds values that are not finite")


def project(kv_map: KVMap, state: KVState, inputs: Tensor, source_rope: Rope, dest_rope: Rope) -> KVState:
    """The mapped layers (L' - native, H', T, D') for a source state (L, H, T, D): un-rotate, map, re-rotate.

    ``inputs`` (T, hidden') is what the first mapped layer of the destination reads of the same tokens.
    """
    rows = to_rows(state, source_rope)  # (T, L * 2 * H * D)
    mapped = [_apply(layer, rows, inputs, kv_map.source) for layer in kv_map.layers]  # of (T, 2 * H' * D')
    return from_rows(torch.cat(mapped, dim=1), state.positions, kv_map.mapped, dest_rope)


def _apply(layer: LayerMap, rows: Tensor, inputs: Tensor, source: KVLayout) -> Tensor:
    from_source, from_inputs = layer.weight.split((len(layer.weight) - inputs.shape[1], inputs.shape[1]))
    mapped = torch.addmm(layer.bias, inputs, from_inputs)
    return mapped.addmm_(rows[:, _columns(layer.sources, source)], from_source)


def _columns(sources: tuple[int, ...], source: KVLayout) -> slice | Tensor:
    """Columns of some layers: a slice, which copies nothing, where the layers are neighbours."""
    width, first = columns_per_layer(source), min(sources, default=0)
    if sources == tuple(range(first, first + len(sources))):
        return slice(first * width, (first + len(sources)) * width)
    return layer_columns(sources, source)
