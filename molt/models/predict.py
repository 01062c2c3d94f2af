"""Exact bytes of a rung, from the shape of its model alone.

Conventions, kept equal by ``molt.models.loader`` and the tests:

- ``weight_bytes`` counts every parameter once: embedding, projections, biases, norms; a tied head is the
  embedding.
- int8: a matrix is one byte a value and one float32 scale a row; vectors (norms, biases) stay float32.
- The cache is float32 at every precision, so a cache can be carried between precisions of the same weights.
- Buffers that are recomputed rather than stored (RoPE frequencies) are no weights but scratch.
"""

from __future__ import annotations

import math

from molt.core.ladder import KVLayout
from molt.models.model_config import ModelShape

READ_CHUNK_TOKENS = 128
FLOAT_BYTES = 4
KV_DTYPE_BYTES = 4
WIDENED_VALUES_MAX = 1 << 17  # int8 matrices of at most so many values may be widened for a step


def parameters(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model by its name in transformers, with its shape; a tied head is left out."""
    table: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab, shape.hidden)}
    for layer in range(shape.layers):
        table |= {f"model.layers.{layer}.{name}": extents for name, extents in _layer(shape).items()}
    table["model.norm.weight"] = (shape.hidden,)
    if not shape.tied:
        table["lm_head.weight"] = (shape.vocab, shape.hidden)
    return table


def weight_bytes(shape: ModelShape, precision: str) -> int:
    """Bytes of the weights while loaded at a precision (``fp32``, ``bf16`` or ``int8``)."""
    return sum(_parameter_bytes(extents, precision) for extents in parameters(shape).values())


def kv_layout(shape: ModelShape) -> KVLayout:
    """Geometry of the model's cache."""
    return KVLayout(shape.layers, shape.kv_heads, shape.head_dim, KV_DTYPE_BYTES)


def scratch_bytes(shape: ModelShape, precision: str) -> int:
    """An upper bound of one step's working memory, for a chunk of up to ``READ_CHUNK_TOKENS`` tokens.

    With C tokens in the chunk, T positions, Q = heads * head_dim, K = KV heads * head_dim, in float32:

    - the residual stream and a norm's intermediate results: 6 C hidden, once for all layers;
    - the larger of attention (projections and their rotation 6 C (Q + K), keys and values repeated for
      grouped queries 2 T Q, mask 2 C T, output 2 C Q) and MLP (4 C ff);
    - logits of one position and what sampling makes of them: 6 vocab;
    - RoPE: cosines and sines of a chunk 6 C head_dim, frequencies 2 head_dim;
    - int8 only: the quantised rows of a chunk and a product in int32, 3 C times the widest layer, or one small
      matrix widened to float32.

    Excluded: the cache itself, and what a kernel library keeps per thread.
    """
    chunk, positions = READ_CHUNK_TOKENS, shape.positions
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = (
        6 * chunk * (queries + keys) + 2 * positions * queries + 2 * chunk * positions + 2 * chunk * queries
    )
    values = 6 * chunk * shape.hidden + max(attention, 4 * chunk * shape.ff)
    values += 6 * shape.vocab + (6 * chunk + 2) * shape.head_dim
    if precision == "int8":
        values += max(3 * chunk * max(shape.ff, queries, shape.hidden), WIDENED_VALUES_MAX)
    return FLOAT_BYTES * values


def _layer(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    table: dict[str, tuple[int, ...]] = {}
    for name, rows, columns, has_bias in (
        ("self_attn.q_proj", queries, shape.hidden, shape.qkv_bias),
        ("self_attn.k_proj", keys, shape.hidden, shape.qkv_bias),
        ("self_attn.v_proj", keys, shape.hidden, shape.qkv_bias),
        ("self_attn.o_proj", shape.hidden, queries, shape.o_bias),
        ("mlp.gate_proj", shape.ff, shape.hidden, shape.mlp_bias),
        ("mlp.up_proj", shape.ff, shape.hidden, shape.mlp_bias),
        ("mlp.down_proj", shape.hidden, shape.ff, shape.mlp_bias),
    ):
        table[f"{name}.weight"] = (rows, columns)
        if has_bias:
            table[f"{name}.bias"] = (rows,)
    if shape.qk_norm:
        table |= {"self_attn.q_norm.weight": (shape.head_dim,), "self_attn.k_norm.weight": (shape.head_dim,)}
    return table | {
        "input_layernorm.weight": (shape.hidden,),
        "post_attention_layernorm.weight": (shape.hidden,),
    }


def _parameter_bytes(extents: tuple[int, ...], precision: str) -> int:
    match precision, extents:
        case "fp32", _:
            return math.prod(extents) * FLOAT_BYTES
        case "bf16", _:
            return math.prod(extents) * 2
        case "int8", (rows, columns):
            return rows * columns + rows * FLOAT_BYTES
        case "int8", _:
            return math.prod(extents) * FLOAT_BYTES
    raise AssertionError(f"no such precision: {precision}")
