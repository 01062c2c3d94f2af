"""FLOPs of a decoder's steps, counted by hand: two for every multiply-add of a matrix product.

Per layer of a dense decoder (t tokens, T cells at the end of the chunk, H heads, G KV heads, D their dimension):

- projections: queries, keys and values ``t hidden (H + 2 G) D``, output ``t H D hidden``;
- attention: scores ``t T H D`` and as much again for the values. The kernel computes masked scores too, so a
  chunk of t tokens after c cells counts ``T = c + t`` for every one of its tokens;
- MLP: gate, up and down, ``3 t hidden ff``.

Left out, because they are a few operations a value where the products are hundreds: norms, rotations, softmax,
activations, and the embedding, which is a look-up. INT8 products count like others. A prefill computes no logits.
"""

from __future__ import annotations

from dataclasses import dataclass

from molt.models.model_config import ModelShape

PER_MULTIPLY_ADD = 2
CHUNK_TOKENS = 256
"""Most tokens in one forward pass, unless the caller wants fewer: bounds the activations, which grow with them."""


@dataclass(frozen=True, slots=True)
class MapSize:
    """A map between two rungs as FLOPs see it: weights, and layers that the destination runs itself before them."""

    weights: int
    native_layers: int


def prefill_flops(
    shape: ModelShape, tokens: int, cells: int = 0, layers: int | None = None, chunk: int = CHUNK_TOKENS
) -> int:
    """Prefilling ``tokens`` after ``cells`` cells, through the first ``layers`` layers (default: all)."""
    width = shape.heads * shape.head_dim
    projections = shape.hidden * (width + 2 * shape.kv_heads * shape.head_dim) + width * shape.hidden
    dense = tokens * (projections + 3 * shape.hidden * shape.ff)
    attention = 0
    for first in range(0, tokens, chunk):
        part = min(chunk, tokens - first)
        attention += 2 * part * (cells + first + part) * width
    return PER_MULTIPLY_ADD * (shape.layers if layers is None else layers) * (dense + attention)


def carry_flops(size: MapSize, dest: ModelShape, cells: int, first: int, last: int) -> int:
    """A transplant of ``cells`` cells through a map, with islands of ``first`` and ``last`` tokens.

    The first ones are prefilled with nothing before them, the last ones after all others; for the cells between, the
    layers that the destination runs natively are counted, and the map. Every weight of a map counts once a cell.
    """
    first = min(first, cells)
    last = min(last, cells - first)
    between = cells - first - last
    return (
        prefill_flops(dest, first)
        + PER_MULTIPLY_ADD * between * size.weights
        + prefill_flops(dest, between, first, size.native_layers)
        + prefill_flops(dest, last, cells - last)
    )
