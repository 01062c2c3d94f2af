"""Exact bytes of a rung, from the shape of its model alone.

Conventions, kept equal by ``molt.models.loader`` and the tests:

- ``weight_bytes`` counts every parameter once: embedding, projections, biases, norms; a tied head is the
  embedding.
- int8: a matrix is one byte a value, and a scale and an offset of four bytes a row; vectors (norms, biases)
  stay float32.
- A map's whole numbers, int8 on disk, are bfloat16 while resident; all else of a map is float32.
- The cache is float32 at every precision, so a cache can be carried between precisions of the same weights.
- Buffers that are recomputed rather than stored (RoPE frequencies) are no weights but scratch.
"""

from __future__ import annotations

from collections.abc import Mapping

from molt.core.ladder import KVLayout
from molt.formats.weights_file import Stored
from molt.models.image import image_bytes
from molt.models.model_config import ModelShape

PREFILL_CHUNK_TOKENS = 128
FLOAT_BYTES = 4
HALF_BYTES = 2
KV_DTYPE_BYTES = 4
SAMPLING_BYTES = 68  # logits in float32; probabilities, ranks and sums in eight bytes each


def weight_bytes(shape: ModelShape, precision: str) -> int:
    """Bytes of the weights while loaded at a precision (``fp32``, ``bf16`` or ``int8``)."""
    return image_bytes(shape, precision)


def kv_layout(shape: ModelShape) -> KVLayout:
    """Geometry of the model's cache."""
    return KVLayout(shape.layers, shape.kv_heads, shape.head_dim, KV_DTYPE_BYTES)


def map_bytes(stored: Mapping[str, Stored]) -> int:
    """Bytes of a map's tensors while resident, from the header of its file."""
    return sum(one.elements * (HALF_BYTES if one.dtype == "I8" else FLOAT_BYTES) for one in stored.values())


def scratch_bytes(shape: ModelShape, precision: str) -> int:
    """The peak of one step's working memory: a chunk of ``PREFILL_CHUNK_TOKENS`` tokens at the end of the context.

    Live at once in ``molt.models.decoder``, in float32 values, with C tokens in the chunk, T positions, Q =
    heads * head_dim, K = KV heads * head_dim, ff wide:

    - throughout: the residual stream C hidden, cosines and sines 2 C head_dim, the mask C T;
    - and the largest of: a norm, C (2 hidden + 1); int8 rows being quantised, C (2.25 hidden + 1); queries and
      keys being turned, C (3 Q + 4 K); the MLP, 3 C ff. (Attention gives its result in the layout of the
      queries, so it stays below the turning.)

    A decoded token needs ``SAMPLING_BYTES`` a vocabulary entry at most, which counts where it is more. In bf16,
    where attention widens the queries, this is an upper bound. Excluded: the cache itself, and what a kernel library
    keeps per thread.
    """
    chunk = PREFILL_CHUNK_TOKENS
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    throughout = shape.hidden + 2 * shape.head_dim + shape.positions
    quarter = -(-shape.hidden // FLOAT_BYTES) if precision == "int8" else 0
    most = max(
        2 * shape.hidden + quarter + 1,
        3 * queries + 4 * keys + (queries if precision == "bf16" else 0),
        3 * shape.ff,
    )
    return max(FLOAT_BYTES * chunk * (throughout + most), SAMPLING_BYTES * shape.vocab)
