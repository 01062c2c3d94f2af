"""Rotary positions of a model: the angle of every plane, by position.

A head of dimension D has D/2 planes (i, i + D/2), the half-split pairing of Qwen2 and Llama; position p turns
plane i by ``p * inv_freq[i]`` radians (Su et al., RoFormer, arXiv:2104.09864).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from molt.models.model_config import ModelShape, RopeShape


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Frequencies of one rung: ``inv_freq`` (D/2,) in radians per position.

    ``score_factor`` multiplies queries, and so every score. YaRN means it as its root on queries and keys alike; keys
    are kept free of it, so that rotating a key never changes its length.
    """

    inv_freq: Tensor  # (D/2,) float32
    score_factor: float = 1.0

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each (T, D/2) float32, of every plane at ``positions`` (T,)."""
        radians = positions[:, None].float() * self.inv_freq  # (T, D/2)
        return radians.cos(), radians.sin()


def rope_of(shape: ModelShape, device: torch.device | None = None) -> Rope:
    """The rotary positions of a model, as computed on the processor and then put on ``device``."""
    return Rope(_inv_freq(shape.rope, shape.head_dim).to(device), shape.rope.attention_factor**2)


def _inv_freq(rope: RopeShape, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inv_freq = 1.0 / rope.theta**exponents
    match rope.kind:
        case "default":
            return inv_freq
        case "linear":
            return inv_freq / rope.factor
        case "llama3":
            return _llama3(inv_freq, rope)
        case "yarn":
            return _yarn(inv_freq, rope, head_dim)
    raise AssertionError(f"no such RoPE: {rope.kind}")


def _llama3(inv_freq: Tensor, rope: RopeShape) -> Tensor:
    """Long waves are slowed by ``factor``, short ones kept, those between interpolated.

    As in Llama 3.1 (github.com/meta-llama/llama-models, ``apply_scaling``).
    """
    wavelengths = 2 * math.pi / inv_freq
    longest = rope.original_positions / rope.low_freq_factor
    shortest = rope.original_positions / rope.high_freq_factor
    share = (rope.original_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - share) * inv_freq / rope.factor + share * inv_freq
    slowed = torch.where(wavelengths > longest, inv_freq / rope.factor, inv_freq)
    is_between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(is_between, between, slowed)


def _yarn(inv_freq: Tensor, rope: RopeShape, head_dim: int) -> Tensor:
    """Planes of few turns are slowed by ``factor``, of many turns kept, those between blended.

    As in YaRN (Peng et al., arXiv:2309.00071, section 3.2).
    """

    def plane(turns: float) -> float:
        """The plane, not rounded, that makes so many turns over the original length."""
        return (
            head_dim * math.log(rope.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    first, last = plane(rope.beta_fast), plane(rope.beta_slow)
    if rope.is_truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # as transformers does against a division by zero
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    return inv_freq / rope.factor * slowed + inv_freq * (1 - slowed)
