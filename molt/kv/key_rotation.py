"""Putting a position into keys and taking it out again.

Taking the position out leaves the *content* of a key, the only part that a map between models can learn from
few rows; see ``molt.models.rope`` for the angles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from molt.models.rope import Rope


def rotate(keys: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """Keys (L, H, T, D) with ``positions`` (T,) put in."""
    cos, sin = rope.angles(positions)  # (T, D/2)
    return _turn(keys, cos, sin, torch.empty_like(keys))


def unrotate(keys: Tensor, positions: Tensor, rope: Rope, out: Tensor | None = None) -> Tensor:
    """Keys (L, H, T, D) with ``positions`` (T,) taken out: the inverse of ``rotate``. Written to ``out``, if given."""
    cos, sin = rope.angles(positions)  # (T, D/2)
    return _turn(keys, cos, -sin, torch.empty_like(keys) if out is None else out)


def _turn(keys: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    cos, sin = cos.to(keys.device), sin.to(keys.device)
    first, second = keys.chunk(2, dim=-1)  # (L, H, T, D/2) each
    turned_first, turned_second = out.chunk(2, dim=-1)
    torch.mul(first, cos, out=turned_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=turned_second).addcmul_(first, sin)
    return out
