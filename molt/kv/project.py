"""The learned map between two rungs: each destination layer is affine in what is known of a token.

Known are K and V of several source layers, with RoPE taken out of the keys (see ``features``), and the input
of the first mapped layer of the destination, which the destination computes itself: it runs its first
``native_layers`` layers on the tokens. With none of them that input is the token's embedding, which costs a
table look-up and already makes the first layer exact; every layer more costs its share of a prefill. This
module puts the map between the two rotations.

A map comes in one of two forms. In *float32* every layer takes the features of its own source layers as they
are. In a *shared* map all layers but the first mapped one take the same ``rank`` numbers of a token, its code,
which is affine in K and V of all source layers and in the input: as many operations as for a few source layers
each, and more seen. Both steps have weights that are whole numbers up to 127 times a scale per output, on operands in
bfloat16: half the memory, and several times faster on a processor with bfloat16 matrix units. Products of
such operands and weights are exact, so what is rounded is the operands (by at most 1 part in 256 of a feature's
distance from its mean, and of the code) and the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.kv.features import columns_per_layer, from_rows, layer_columns, to_rows
from molt.kv.kv_state import KVState, is_finite
from molt.models.rope import Rope

WHOLE_MAX = 127
SCALE_MIN = 1e-30  # of an output that no feature moves


@dataclass(frozen=True, slots=True, eq=False)
class LayerMap:
    """K and V of one destination layer, from K and V of ``sources``, rising, and from the input.

    With a ``scale`` it is part of a shared map and takes the code instead: p = rank, and ``sources`` are all
    layers. Without one p = len(sources) * 2 * H * D + hidden'.
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
class Code:
    """The numbers of a token that a shared map gives to its layers.

    They are made of p = L * 2 * H * D + hidden' features, standardised: the source's layers, then the input.
    """

    centre: Tensor  # (p,) float32
    spread: Tensor  # (p,) float32, positive
    weight: Tensor  # (p, rank) bfloat16 whole numbers
    scale: Tensor  # (rank,) float32

    @property
    def rank(self) -> int:
        """How many numbers a token has."""
        return len(self.scale)

    @property
    def nbytes(self) -> int:
        """Bytes while resident."""
        return sum(tensor.nbytes for tensor in (self.centre, self.spread, self.weight, self.scale))

    def of(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """The code (T, rank) bfloat16 of rows (T, L * 2 * H * D) and inputs (T, hidden')."""
        standardised = torch.cat((rows, inputs), dim=1).sub_(self.centre).div_(self.spread).bfloat16()
        return (standardised @ self.weight).float().mul_(self.scale).bfloat16()


@dataclass(frozen=True, slots=True, eq=False)
class KVMap:
    """A directed map between two geometries: a ``LayerMap`` for each destination layer from ``native_layers``
    on.

    ``hidden`` is the width of the input that the maps are given. With a ``code`` the map is a shared one: every
    layer map that reads a source layer takes the code.
    """

    source: KVLayout
    dest: KVLayout
    hidden: int
    native_layers: int
    layers: tuple[LayerMap, ...]
    code: Code | None = None

    @property
    def nbytes(self) -> int:
        """Bytes while resident."""
        code = 0 if self.code is None else self.code.nbytes
        return code + sum(layer.nbytes for layer in self.layers)

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
        if self.code is not None:
            self._check_code(self.code)

    def _check_code(self, code: Code) -> None:
        width = self.source.layers * columns_per_layer(self.source) + self.hidden
        expected = {
            "centre": (width,),
            "spread": (width,),
            "weight": (width, code.rank),
            "scale": (code.rank,),
        }
        for name, shape in expected.items():
            tensor = getattr(code, name)
            if tuple(tensor.shape) != shape or not is_finite(tensor):
                raise ValueError(
                    f"the {name} of the map's code is {tuple(tensor.shape)}, not {shape}, or not finite"
                )
        if not bool((code.spread > 0).all()):
            raise ValueError("the spread of the map's code has values that are not positive")

    def _check_layer(self, number: int, layer: LayerMap) -> None:
        if bool(layer.sources) and (layer.scale is None) != (self.code is None):
            raise ValueError(f"layer {number} of the map is not in the form of the others")
        features = len(layer.sources) * columns_per_layer(self.source) + self.hidden
        rows = features if self.code is None or layer.scale is None else self.code.rank
        expected = (rows, columns_per_layer(self.dest))
        vectors = (layer.bias,) if layer.scale is None else (layer.bias, layer.scale)
        if tuple(layer.weight.shape) != expected or any(tuple(one.shape) != expected[1:] for one in vectors):
            raise ValueError(
                f"layer {number} of the map is {tuple(layer.weight.shape)}, the rungs need {expected}"
            )
        if any(not 0 <= source < self.source.layers for source in layer.sources):
            raise ValueError(f"layer {number} of the map reads source layers {layer.sources}")
        if not all(is_finite(tensor) for tensor in (layer.weight, *vectors)):
            raise ValueError(f"layer {number} of the map holds values that are not finite")


def sharpened(kv_map: KVMap, gains: Tensor, means: Tensor) -> KVMap:
    """The map whose outputs are ``gains`` times as far from their ``means``, both (L' - native, 2 * H' * D').

    Least squares gives the expected K, and attention to expected keys is flatter than attention to keys: what cannot
    be explained is missing from every product of query and key. A little more of what is explained makes up for some.
    """
    return replace(
        kv_map,
        layers=tuple(
            _sharpened(layer, gain, mean)
            for layer, gain, mean in zip(kv_map.layers, gains.float(), means.float(), strict=True)
        ),
    )


def _sharpened(layer: LayerMap, gain: Tensor, mean: Tensor) -> LayerMap:
    bias = gain * layer.bias + (1.0 - gain) * mean
    if layer.scale is not None:
        return replace(layer, bias=bias, scale=layer.scale * gain)
    return replace(layer, bias=bias, weight=layer.weight * gain)


def whole_numbers(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (p, q) as bfloat16 whole numbers of the same shape and a float32 scale (q,)."""
    scale = weight.abs().amax(0).div_(WHOLE_MAX).clamp_min_(SCALE_MIN)
    return (weight / scale).round_().bfloat16(), scale.float()


def project(kv_map: KVMap, state: KVState, inputs: Tensor, source_rope: Rope, dest_rope: Rope) -> KVState:
    """The mapped layers (L' - native, H', T, D') for a source state (L, H, T, D): un-rotate, map, re-rotate.

    ``inputs`` (T, hidden') is the input of the first mapped layer of the destination for the same tokens.
    """
    mapped = map_rows(kv_map, to_rows(state, source_rope), inputs)
    return from_rows(mapped, state.positions, kv_map.mapped, dest_rope)


def map_rows(kv_map: KVMap, rows: Tensor, inputs: Tensor) -> Tensor:
    """The mapped layers (T, L' - native, 2 * H' * D') of rows (T, L * 2 * H * D) and inputs."""
    known = rows if kv_map.code is None else kv_map.code.of(rows, inputs)
    mapped = torch.empty(len(rows), len(kv_map.layers), columns_per_layer(kv_map.dest))
    for number, layer in enumerate(kv_map.layers):
        _apply(layer, known, inputs, kv_map.source, mapped[:, number])
    return mapped


def _apply(layer: LayerMap, known: Tensor, inputs: Tensor, source: KVLayout, out: Tensor) -> None:
    """Write K and V of one destination layer into ``out`` (T, 2 * H' * D'), from rows or from their code."""
    if layer.scale is not None:
        out.copy_(known @ layer.weight)
        out.mul_(layer.scale).add_(layer.bias)
        return
    from_source, from_inputs = layer.weight.split((len(layer.weight) - inputs.shape[1], inputs.shape[1]))
    torch.addmm(layer.bias, inputs, from_inputs, out=out)
    if layer.sources:
        out.addmm_(known[:, _columns(layer.sources, source)], from_source)


def _columns(sources: tuple[int, ...], source: KVLayout) -> slice | Tensor:
    """Columns of some layers: a slice, which copies nothing, where the layers are neighbours."""
    width, first = columns_per_layer(source), min(sources, default=0)
    if sources == tuple(range(first, first + len(sources))):
        return slice(first * width, (first + len(sources)) * width)
    return layer_columns(sources, source)
