"""Rotary position embedding: putting a position into a key and taking it out again.

A key at position p is ``scaling * R(p) k``: R rotates each plane (i, i + D/2) by the angle ``p *
inv_freq[i]``, the half-split pairing that Qwen2 and Llama use (Su et al., RoFormer, arXiv:2104.09864). Taking
the position out leaves the *content* of the key, the only part that a map between models can learn from few
rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

STATIC_SCALINGS = ("linear", "llama3", "yarn")
"""RoPE variants, beside ``default``, whose frequencies do not depend on the length of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Frequencies of one rung: ``inv_freq`` (D/2,) in radians per position, and the factor on cos and sin."""

    inv_freq: Tensor  # (D/2,) float32
    scaling: float

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each (T, D/2) float32, of every plane at ``positions`` (T,)."""
        radians = positions[:, None].float() * self.inv_freq  # (T, D/2)
        return radians.cos(), radians.sin()


def rope_of(config: PretrainedConfig) -> Rope:
    """The RoPE of a model.

    Raises ``ValueError`` for a variant whose frequencies move with the length of the text (``dynamic``,
    ``longrope``) or that leaves a part of the head unrotated: neither can be taken out of a cached key by
    position alone.
    """
    parameters = config.rope_parameters
    kind = parameters["rope_type"]
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("RoPE over a part of the head is not supported")
    if kind == "default":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return Rope(1.0 / parameters["rope_theta"] ** exponents, 1.0)
    if kind in STATIC_SCALINGS:
        inv_freq, scaling = ROPE_INIT_FUNCTIONS[kind](config)
        return Rope(inv_freq, scaling)
    raise ValueError(f"RoPE variant {kind!r} is not supported; known: default, {', '.join(STATIC_SCALINGS)}")


def rotate(keys: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """Keys (L, H, T, D) with ``positions`` (T,) put in."""
    cos, sin = rope.angles(positions)  # (T, D/2)
    return _turn(keys, cos * rope.scaling, sin * rope.scaling)


def unrotate(keys: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """Keys (L, H, T, D) with ``positions`` (T,) taken out: the inverse of ``rotate``."""
    cos, sin = rope.angles(positions)  # (T, D/2)
    return _turn(keys, cos / rope.scaling, -sin / rope.scaling)


def _turn(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = keys.chunk(2, dim=-1)  # (L, H, T, D/2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
