"""A weight matrix at a precision, behind one small interface: the one place with kernels.

float32: torch multiplies with MKL, which on processors that are not its maker's takes 1.1 to 2 times as long as oneDNN
does for several tokens, most for few; for one they are alike (``benchmarks/kernels.py``). So there it is oneDNN, for
large matrices: it keeps half a MiB of code for every shape and number of tokens.

INT8: a matrix is ``weight`` int8 ``(out, in)`` and ``scale`` float32 ``(out,)`` with ``row = weight * scale``;
a tied head and its embedding are the same two tensors. Activations are quantised per token, never per tensor:
the first token of a text is often hundreds of times larger than the rest and would take all the resolution.

The kernel is ``torch._int_mm``, exact in int32, on plain row-major weights, so an image can be mapped and an
embedding looked up. What it does depends on shape and type:

- one token, unsigned: a true matrix-vector product, which reads the weights once, at the speed of the memory.
  (With a signed token, processors with AMX first copy the weights into tiles.) Unsigned means 128 too much in
  every value, so 128 times the sum of a row of weights is taken away again: ``offset`` int32 ``(out,)``.
- few tokens, signed: fastest as ``W @ x.T``, whose product is put in the order of tokens when it is widened, for
  all that follows reads it token by token; many: as ``x @ W.T``.

``docs/lab-notes/int8.md`` has the measurements of this and of what was tried instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from molt.formats.provenance import cpuinfo

LIMIT = 127  # symmetric: -128 is not used
SCALE_MIN = 1e-30  # of a row of zeros
FEW_TOKENS = 16
ZERO = 128  # what stands for 0 in an unsigned token
ZERO_ROUNDED = torch.tensor(ZERO + 0.5)  # the half makes a truncation a rounding


def prefers_onednn(vendor: str | None) -> bool:
    """Whether several tokens in float32 go through oneDNN: where torch has its operation, on an x86 processor that is
    not of the maker of MKL. Others than x86 have no ``vendor``."""
    has_it = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_it and vendor not in (None, "GenuineIntel")


PREFERS_ONEDNN = prefers_onednn(cpuinfo("vendor_id"))
ONEDNN_LEAST_BYTES = 4 * 1024 * 1024


class Matrix(Protocol):
    """A matrix (out, in) that multiplies and can be read by rows."""

    def linear(self, x: Tensor) -> Tensor:
        """``x @ W.T + bias`` for ``x`` (t, in): (t, out) in the type of ``x``."""

    def rows(self, ids: Tensor) -> Tensor:
        """Rows (t, in) of some indices (t,), in the type that the rung computes in."""


@dataclass(frozen=True, slots=True, eq=False)
class FloatMatrix:
    """float32 or bfloat16 weights, computed with as they are."""

    weight: Tensor  # (out, in)
    bias: Tensor | None = None  # (out,)

    def linear(self, x: Tensor) -> Tensor:
        """See ``Matrix``."""
        if PREFERS_ONEDNN and len(x) > 1 and _is_large(self.weight):
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]
        return functional.linear(x, self.weight, self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        """See ``Matrix``."""
        return self.weight[ids]


def _is_large(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.is_cpu and weight.nbytes >= ONEDNN_LEAST_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Int8Matrix:
    """int8 weights with a scale per row; computes in float32."""

    weight: Tensor  # (out, in) int8
    scale: Tensor  # (out,) float32
    offset: Tensor  # (out,) int32
    bias: Tensor | None = None  # (out,) float32

    def linear(self, x: Tensor) -> Tensor:
        """See ``Matrix``. ``in`` is at least 2: ``torch._int_mm`` misreads a transposed single column."""
        return self._one(x) if len(x) == 1 else self._several(x)

    def _one(self, x: Tensor) -> Tensor:
        """The product of a single token, in as few steps as there can be: each costs as much as a small matrix."""
        quantised, token_scale = quantise_token(x)
        product = torch._int_mm(quantised, self.weight.t()).sub_(self.offset)
        y = product * self.scale
        return y.mul_(token_scale) if self.bias is None else torch.add(self.bias, y, alpha=token_scale)

    def _several(self, x: Tensor) -> Tensor:
        quantised, row_scale = quantise_rows(x)
        if len(x) <= FEW_TOKENS:
            y = (
                torch._int_mm(self.weight, quantised.t())
                .t()
                .to(torch.float32, memory_format=torch.contiguous_format)
            )
        else:
            product = torch._int_mm(quantised, self.weight.t())
            y = product.view(torch.float32).copy_(product)  # in place: every value is as wide as before
        y.mul_(self.scale).mul_(row_scale)
        return y if self.bias is None else y.add_(self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        """See ``Matrix``."""
        return self.weight[ids] * self.scale[ids].unsqueeze(-1)


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 matrix ``(rows, columns)`` as int8 of the same shape and float32 scales ``(rows, 1)``.

    A row's largest magnitude becomes 127; a row of zeros stays zero.
    """
    scale = matrix.abs().amax(1, keepdim=True).div_(LIMIT).clamp_min_(SCALE_MIN)
    return (matrix / scale).round_().to(torch.int8), scale


def quantise_token(x: Tensor) -> tuple[Tensor, float]:
    """A single token (1, columns) float32 as uint8 around ``ZERO``, and its scale."""
    scale = max(x.abs().amax().item() / LIMIT, SCALE_MIN)
    return torch.add(ZERO_ROUNDED, x, alpha=1 / scale).to(torch.uint8), scale


def row_offsets(weight: Tensor) -> Tensor:
    """What ``ZERO`` in every place of a token adds to its product with rows of int8 weights, int32 (rows,)."""
    return weight.sum(1, dtype=torch.int32).mul_(ZERO)
