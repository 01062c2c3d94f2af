"""The learned map between two rungs: each destination layer is affine in what is known of a token.

Known are K and V of several source layers, with RoPE taken out of the keys (see ``features``), and the input
that the first mapped layer of the destination reads, which the destination computes itself: it runs its first
``native_layers`` layers on the tokens. With none of them that input is the token's embedding, which costs a
table look-up and already makes the first layer exact; every layer more costs its share of a re-read. This
module puts the map between the two rotations.

A map comes in one of two forms. In *float32* it takes the features as they are. In *whole numbers* it takes
standardised ones, rounded to bfloat16, and its weights are whole numbers up to 127 times a scale per output:
half the memory, and several times faster on a processor with bfloat16 matrix units. Products
of such features and weights are exact, so what is rounded is the features (by at most 1 part in 256 of their
distance from the mean) and the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.kv.features import columns_per_layer, from_rows, layer_columns, to_rows
from molt.kv.state import KVState, is_finite
from molt.models.rope import Rope

WHOLE_MAX = 127
SCALE_MIN = 1e-30  # of an output that no feature moves


@dataclass(frozen=True, slots=True, eq=False)
class LayerMap:
    """K and V of one destination layer from K and V of ``sources``, rising, and from the input.

    In whole numbers, there is a ``scale`` and no input: p = len(sources) * 2 * H * D; in float32 p is greater
    by hidden'.
    """

    sources: tuple[int, ...]
    weight: Tensor  # (p, 2 * H' * D') float32, or bfloat16 whole numbers
    bias: Tensor  # (2 * H' * D',) float32
    scale: Tensor | None = None  # (2 * H' * D',) float32

    @property
    def nbytes(self) -> int:
        """Bytes while resident."""
        return sum(tensor.nbytes for tensor in (self.weight, self.bias, self.scale) if tensor is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Standard:
    """Where each feature is measured from and in what unit: its mean and its deviation over the fit."""

    centre: Tensor  # (L * 2 * H * D,) float32
    spread: Tensor  # (L * 2 * H * D,) float32, positive

    @property
    def nbytes(self) -> int:
        """Bytes while resident."""
        return self.centre.nbytes + self.spread.nbytes

    def of(self, rows: Tensor) -> Tensor:
        """Rows (T, L * 2 * H * D) standardised, in bfloat16; those given are used up."""
        return rows.sub_(self.centre).div_(self.spread).bfloat16()


@dataclass(frozen=True, slots=True, eq=False)
class KVMap:
    """A directed map between two geometries: a ``LayerMap`` for each destination layer from ``native_layers``
    on.

    ``hidden`` is the width of the input that the maps are given. With a ``standard``, every layer map that
    reads a source layer is one in whole numbers.
    """

    source: KVLayout
    dest: KVLayout
    hidden: int
    native_layers: int
    layers: tuple[LayerMap, ...]
    standard: Standard | None = None

    @property
    def nbytes(self) -> int:
        """Bytes while resident."""
        standard = 0 if self.standard is None else self.standard.nbytes
        return standard + sum(layer.nbytes for layer in self.layers)

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
            self._check_layer(number, layer)
        if self.standard is not None:
            width = (self.source.layers * columns_per_layer(self.source),)
            for tensor in (self.standard.centre, self.standard.spread):
                if tuple(tensor.shape) != width or not is_finite(tensor):
                    raise ValueError(
                        f"the standard of the features is {tuple(tensor.shape)}, not {width}, or not finite"
                    )
            if not bool((self.standard.spread > 0).all()):
                raise ValueError("the standard of the features has a deviation that is not positive")

    def _check_layer(self, number: int, layer: LayerMap) -> None:
        is_whole = layer.scale is not None
        rows = len(layer.sources) * columns_per_layer(self.source) + (0 if is_whole else self.hidden)
        expected = (rows, columns_per_layer(self.dest))
        vectors = (layer.bias,) if layer.scale is None else (layer.bias, layer.scale)
        if tuple(layer.weight.shape) != expected or any(tuple(one.shape) != expected[1:] for one in vectors):
            raise ValueError(
                f"layer {number} of the map is {tuple(layer.weight.shape)}, the rungs need {expected}"
            )
        if layer.sources and is_whole != (self.standard is not None):
            raise ValueError(f"layer {number} of the map is not in the form of the others")
        if any(not 0 <= source < self.source.layers for source in layer.sources):
            raise ValueError(f"layer {number} of the map reads source layers {layer.sources}")
        if not all(is_finite(tensor) for tensor in (layer.weight, *vectors)):
            raise ValueError(f"layer {number} of the map holds values that are not finite")


def whole_numbers(
    sources: tuple[int, ...], weight: Tensor, bias: Tensor, standard: Standard, source: KVLayout
) -> LayerMap:
    """A layer's map in whole numbers from weight (p, q) and bias (q,) on features as they are."""
    columns = layer_columns(sources, source)
    standardised = weight.double() * standard.spread[columns, None]  # (p, q)
    scale = standardised.abs().amax(0).div_(WHOLE_MAX).clamp_min_(SCALE_MIN)  # (q,)
    return LayerMap(
        sources,
        weight=(standardised / scale).round_().bfloat16(),
        bias=(bias + standard.centre[columns].double() @ weight.double()).float(),
        scale=scale.float(),
    )


def plain(layer: LayerMap, standard: Standard | None, source: KVLayout) -> tuple[Tensor, Tensor]:
    """Weight (p, q) and bias (q,) of a layer's map, float64, on features as they are."""
    if layer.scale is None or standard is None:
        return layer.weight.double(), layer.bias.double()
    columns = layer_columns(layer.sources, source)
    weight = layer.weight.double() * layer.scale / standard.spread[columns, None]
    return weight, layer.bias - standard.centre[columns].double() @ weight


def project(kv_map: KVMap, state: KVState, inputs: Tensor, source_rope: Rope, dest_rope: Rope) -> KVState:
    """The mapped layers (L' - native, H', T, D') for a source state (L, H, T, D): un-rotate, map, re-rotate.

    ``inputs`` (T, hidden') is what the first mapped layer of the destination reads of the same tokens.
    """
    rows = to_rows(state, source_rope)  # (T, L * 2 * H * D)
    if kv_map.standard is not None:
        rows = kv_map.standard.of(rows)
    width = columns_per_layer(kv_map.dest)
    mapped = torch.empty(len(rows), len(kv_map.layers), width)
    for number, layer in enumerate(kv_map.layers):
        _apply(layer, rows, inputs, kv_map.source, mapped[:, number])
    return from_rows(mapped, state.positions, kv_map.mapped, dest_rope)


def _apply(layer: LayerMap, rows: Tensor, inputs: Tensor, source: KVLayout, out: Tensor) -> None:
    """Write K and V of one destination layer into ``out`` (T, 2 * H' * D')."""
    if layer.scale is not None:
        out.copy_(rows[:, _columns(layer.sources, source)] @ layer.weight)
        out.mul_(layer.scale).add_(layer.bias)
        return
    from_source, from_inputs = layer.weight.split((len(layer.weight) - inputs.shape[1], inputs.shape[1]))
    torch.addmm(layer.bias, inputs, from_inputs, out=out)
    if layer.sources:
        out.addmm_(rows[:, _columns(layer.sources, source)], from_source)


def _columns(sources: tuple[int, ...], source: KVLayout) -> slice | Tensor:
    """Columns of some layers: a slice, which copies nothing, where the layers are neighbours."""
    width, first = columns_per_layer(source), min(sources, default=0)
    if sources == tuple(range(first, first + len(sources))):
        return slice(first * width, (first + len(sources)) * width)
    return layer_columns(sources, source)
