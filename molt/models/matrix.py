"""A weight matrix at a precision, behind one small interface: the one place with kernels.

INT8: a matrix is ``weight`` int8 ``(out, in)`` and ``scale`` float32 ``(out,)`` with ``row = weight * scale``;
a tied head and its embedding are the same two tensors. Activations are quantised per token, never per tensor:
the first token of a text is often hundreds of times larger than the rest and would take all the resolution.

The kernel is ``torch._int_mm``, exact in int32, on plain row-major weights, so an image can be mapped and an
embedding looked up. It serves two shapes well: many tokens as ``x @ W.T``, and few tokens as ``W @ x.T``, where
it reads the weights once at nearly the speed of the memory. ``docs/int8.md`` has the measurements of this and
of what was tried instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

LIMIT = 127  # symmetric: -128 is not used
SCALE_MIN = 1e-30  # of a row of zeros
FEW_TOKENS = 8


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
        return functional.linear(x, self.weight, self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        """See ``Matrix``."""
        return self.weight[ids]


@dataclass(frozen=True, slots=True, eq=False)
class Int8Matrix:
    """int8 weights with a scale per row; computes in float32."""

    weight: Tensor  # (out, in) int8
    scale: Tensor  # (out,) float32
    bias: Tensor | None = None  # (out,) float32

    def linear(self, x: Tensor) -> Tensor:
        """See ``Matrix``. ``in`` is at least 2: ``torch._int_mm`` misreads a transposed single column."""
        quantised, row_scale = quantise_rows(x)
        if len(x) <= FEW_TOKENS:
            product = torch._int_mm(self.weight, quantised.t()).t()
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
