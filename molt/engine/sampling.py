"""Choosing a token from logits with randomness that depends on the seed and the token's index alone.

A generation that was switched, parked, shed or killed and started again draws the same number for its n-th
token as one that was not, so what differs between two runs is the logits and nothing else.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits, from a counter instead of a state."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def sample(logits: Tensor, temperature: float, top_p: float, draw: float) -> int:
    """The token that ``draw``, uniform in [0, 1), picks from ``logits`` (vocabulary,).

    Temperature 0 takes the likeliest token (the first of equals). Otherwise the choice is among the likeliest
    tokens that together reach the probability ``top_p`` (nucleus sampling, Holtzman et al.,
    arXiv:1904.09751).
    """
    if temperature == 0.0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    ranked, order = probabilities.sort(descending=True, stable=True)
    cumulated = ranked.cumsum(0)
    nucleus = int((cumulated - ranked < top_p).sum())  # at least 1: nothing is cumulated before the first
    cumulated = cumulated[:nucleus]
    chosen = int(torch.searchsorted(cumulated, draw * cumulated[-1], right=True))
    return int(order[min(chosen, nucleus - 1)])
