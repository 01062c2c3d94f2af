"""A rung's decoder with its matrices in bfloat16 and all else in float32: for calibration, not for answers.

Prefilling calibration text is most of what a fit costs, and matrices are most of that; processors with bfloat16
matrix units do them several times faster. Everything that is not a product of matrices stays as it is: the
residual stream, norms, RoPE, attention, and the addition of key biases, which are so large in some models
that the step of a bfloat16 number is no longer small beside the differences between keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional

from molt.models.decoder import Decoder
from molt.models.matrix import FloatMatrix, Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Bf16Matrix:
    """bfloat16 weights; float32 goes in and comes out."""

    weight: Tensor  # (out, in) bfloat16
    bias: Tensor | None  # (out,) float32

    def linear(self, x: Tensor) -> Tensor:
        """See ``molt.models.matrix.Matrix``."""
        y = functional.linear(x.bfloat16(), self.weight).float()
        return y if self.bias is None else y.add_(self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        """See ``molt.models.matrix.Matrix``."""
        return self.weight[ids].float()


def bf16_decoder(decoder: Decoder) -> Decoder:
    """``decoder``, of a rung in fp32 or bf16, with its matrices in bfloat16 and all else in float32."""
    embedding = _matrix(decoder.embedding)
    layers = tuple(
        replace(
            layer,
            input_norm=layer.input_norm.float(),
            qkv=_matrix(layer.qkv),
            query_norm=None if layer.query_norm is None else layer.query_norm.float(),
            key_norm=None if layer.key_norm is None else layer.key_norm.float(),
            output=_matrix(layer.output),
            post_norm=layer.post_norm.float(),
            gate_up=_matrix(layer.gate_up),
            down=_matrix(layer.down),
        )
        for layer in decoder.layers
    )
    head = embedding if decoder.head is decoder.embedding else _matrix(decoder.head)
    return replace(decoder, embedding=embedding, layers=layers, norm=decoder.norm.float(), head=head)


def _matrix(matrix: Matrix) -> Bf16Matrix:
    assert isinstance(matrix, FloatMatrix), "int8 has kernels of its own"
    bias = None if matrix.bias is None else matrix.bias.float()
    return Bf16Matrix(matrix.weight.bfloat16(), bias)
