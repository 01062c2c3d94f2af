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
    return _turn(keys, cos, sin)


def unrotate(keys: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """Keys (L, H, T, D) with ``positions`` (T,) taken out: the inverse of ``rotate``."""
    cos, sin = rope.angles(positions)  # (T, D/2)
    return _turn(keys, cos, -sin)


def _turn(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.to(keys.device), sin.to(keys.device)
    first, second = keys.chunk(2, dim=-1)  # (L, H, T, D/2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
