"""INT8 weights: one scale per row, activations quantised per token, one small kernel interface.

Layout: a matrix is ``weight`` int8 ``(rows, columns)`` and ``scale`` float32 ``(rows,)`` with
``row = weight * scale``; a tied head and its embedding are the same two tensors.

Activations are quantised per token, never per tensor: the first token of a text is often hundreds of times
larger than the rest and would take all the resolution. The kernel is ``torch._int_mm``, exact in int32. Where
a product is so small that calls cost more than arithmetic, the weights are widened to float32 instead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molt.models.predict import WIDENED_VALUES_MAX

LIMIT = 127  # symmetric: -128 is not used
SCALE_MIN = 1e-30  # of a row of zeros
FEW_TOKENS = 4  # with so few tokens and a small matrix, widening the weights is two to three times faster


class Int8Linear(nn.Module):
    """A linear layer with int8 weights ``(out, in)`` and float32 activations ``(..., in) -> (..., out)``."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, out_features: int, in_features: int, *, bias: bool) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scale", torch.empty(out_features, dtype=torch.float32))
        self.register_buffer("bias", torch.empty(out_features, dtype=torch.float32) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.scale, self.bias)


class Int8Embedding(nn.Module):
    """A table of int8 rows ``(entries, width)``, read as float32: ids ``(...)`` to ``(..., width)``."""

    weight: Tensor
    scale: Tensor

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(entries, width, dtype=torch.int8))
        self.register_buffer("scale", torch.empty(entries, dtype=torch.float32))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids] * self.scale[ids].unsqueeze(-1)


def linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ (weight * scale).T + bias`` for float32 ``x`` ``(..., in)``: the one place with a kernel.

    ``in`` is at least 2: ``torch._int_mm`` misreads the strides of a transposed single column.
    """
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] <= FEW_TOKENS and weight.numel() <= WIDENED_VALUES_MAX:
        y = functional.linear(rows, weight.float()).mul_(scale)
    else:
        quantised, row_scale = quantise_rows(rows)
        y = torch._int_mm(quantised, weight.t()).float().mul_(scale).mul_(row_scale.unsqueeze(-1))
    if bias is not None:
        y.add_(bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 matrix ``(rows, columns)`` as int8 of the same shape and float32 scales ``(rows,)``.

    A row's largest magnitude becomes 127; a row of zeros stays zero.
    """
    scale = matrix.abs().amax(1, keepdim=True).div_(LIMIT).clamp_min_(SCALE_MIN)
    return (matrix / scale).round_().to(torch.int8), scale.squeeze(1)


def replace_matrices(model: nn.Module) -> None:
    """Put int8 modules in the place of every linear layer and embedding (on the device they are built on)."""
    for name, module in list(model.named_modules()):
        match module:
            case nn.Linear():
                has_bias = module.bias is not None
                model.set_submodule(name, Int8Linear(module.out_features, module.in_features, bias=has_bias))
            case nn.Embedding():
                model.set_submodule(name, Int8Embedding(module.num_embeddings, module.embedding_dim))
