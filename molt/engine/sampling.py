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


def sample(
    logits: Tensor, temperature: float, top_p: float, draw: float, top_k: int = 0, min_p: float = 0.0
) -> int:
    """The token that ``draw``, uniform in [0, 1), picks from ``logits`` (vocabulary,).

    Temperature 0 takes the likeliest token (the first of equals). Otherwise the cumulated probabilities, in
    order of the vocabulary, are inverted at ``draw``: two rungs whose distributions are close pick the same
    token. What may be picked is limited by ``top_k``, then ``top_p``, then ``min_p``, as in transformers.
    """
    if temperature == 0.0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    if 0 < top_k < len(probabilities):
        probabilities = likeliest(probabilities, top_k)
    if top_p < 1.0:
        probabilities = nucleus(probabilities, top_p)
    if min_p > 0.0:  # arXiv:2407.01082
        probabilities = probabilities.where(probabilities >= min_p * probabilities.max(), 0.0)
    cumulated = probabilities.cumsum(0)
    return int(torch.searchsorted(cumulated, draw * cumulated[-1], right=True))


def likeliest(probabilities: Tensor, top_k: int) -> Tensor:
    """``probabilities`` (vocabulary,) of the ``top_k`` likeliest tokens (of equals the first), scaled to a sum of 1;
    the others are 0.
    """
    kept = probabilities.sort(descending=True, stable=True).indices[:top_k]
    some = torch.zeros_like(probabilities).index_copy(0, kept, probabilities[kept])
    return some / some.sum()


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """``probabilities`` (vocabulary,) with all but the likeliest that together reach ``top_p`` set to 0.

    Nucleus sampling, Holtzman et al., arXiv:1904.09751. Tokens below ``(1 - top_p) / vocabulary`` cannot be
    in the nucleus, since all of them together are less than ``1 - top_p``; only the others, a small part, are
    sorted.
    """
    candidates = (probabilities >= (1.0 - top_p) / len(probabilities)).nonzero()[:, 0]
    ranked, order = probabilities[candidates].sort(descending=True, stable=True)
    before = ranked.cumsum(0) - ranked  # what the likelier tokens have together
    kept = candidates[order[before < top_p]]
    return torch.zeros_like(probabilities).index_copy(0, kept, probabilities[kept])
