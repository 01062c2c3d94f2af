"""A rung in memory, as this package needs it: the model beside the numbers that the model does not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from molt.core.ladder import KVLayout
from molt.kv import hf_cache
from molt.kv.hf_cache import PreallocatedCache
from molt.kv.rope import Rope

CHUNK_TOKENS = 256
"""Most tokens in one forward pass where nobody asks for fewer: bounds the activations, which grow with them.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """A loaded model with its geometry; ``vocabulary`` is the tokenizer's, which the model may pad."""

    model: PreTrainedModel = field(repr=False)
    layout: KVLayout
    rope: Rope
    max_positions: int
    vocabulary: int

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return int(self.model.config.hidden_size)

    def read(
        self, cache: PreallocatedCache, ids: Sequence[int], first: int, chunk: int = CHUNK_TOKENS
    ) -> None:
        """Read tokens at positions ``first``, ``first + 1``, ... into a cache of this rung, in chunks."""
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            hf_cache.read(self.model, cache, part, range(first + start, first + start + len(part)))

    def read_below(
        self, cache: PreallocatedCache, ids: Sequence[int], positions: Sequence[int], layers: int
    ) -> Tensor:
        """What layer ``layers`` reads of some tokens, (t, hidden); those before fill their part of the cache.

        With 0 layers that is the token's own embedding, normalised, whatever the context.
        """
        return hf_cache.read_below(self.model, cache, ids, positions, layers)

    def step(self, cache: PreallocatedCache, ids: Sequence[int], first: int) -> Tensor:
        """Logits (len(ids), vocabulary) after each of some tokens at ``first``, ...; they enter the cache."""
        logits = hf_cache.step(self.model, cache, ids, range(first, first + len(ids)), keep=len(ids))
        return logits[:, : self.vocabulary]

    def read_afresh(self, ids: Sequence[int], spare: int = 0) -> PreallocatedCache:
        """This rung's own cache of a text, with room for ``spare`` more cells."""
        cache = PreallocatedCache(self.layout, len(ids) + spare)
        self.read(cache, ids, 0)
        return cache


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax (..., vocabulary) in float64, nats."""
    return torch.log_softmax(logits.double(), dim=-1)
