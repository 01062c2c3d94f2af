"""A rung in memory, as this package needs it: the decoder beside the numbers that it does not say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.kv.cache import PreallocatedCache
from molt.models.decoder import Cells, Decoder
from molt.models.flops import CHUNK_TOKENS
from molt.models.ladder_file import LadderSpec
from molt.models.rope import Rope
from molt.work import Work, finished


class NotFinite(Exception):
    """A forward pass gave logits that are not finite; the message says in which layer that began."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRung:
    """A loaded rung with its geometry; ``vocabulary`` is the tokenizer's, which the model may pad."""

    decoder: Decoder = field(repr=False)
    layout: KVLayout
    max_positions: int
    vocabulary: int

    @property
    def rope(self) -> Rope:
        """The rotary positions of its keys."""
        return self.decoder.rope

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.decoder.shape.hidden

    @torch.inference_mode()
    def prefill(
        self, cache: PreallocatedCache, ids: Sequence[int], first: int, chunk: int = CHUNK_TOKENS
    ) -> None:
        """Prefill tokens at positions ``first``, ``first + 1``, ... into a cache of this rung, in chunks."""
        finished(self.prefilling(cache, ids, first, chunk))

    @torch.inference_mode()
    def prefilling(
        self, cache: PreallocatedCache, ids: Sequence[int], first: int, chunk: int = CHUNK_TOKENS
    ) -> Work[None]:
        """``prefill``, which pauses after every layer; a chunk counts among the cells once its last layer is done."""
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            positions = range(first + start, first + start + len(part))
            yield from self.decoder.running(self.decoder.embed(part), positions, cache)
            cache.commit(positions)

    @torch.inference_mode()
    def prefill_below(
        self, cache: PreallocatedCache, ids: Sequence[int], positions: Sequence[int], layers: int
    ) -> Tensor:
        """The input of layer ``layers`` for some tokens, (t, hidden); the layers below fill their part of the cache.

        With 0 layers that is the token's own embedding, normalised, whatever the context. The cells are not
        complete before ``PreallocatedCache.append`` adds the other layers.
        """
        x = self.decoder.run(self.decoder.embed(ids), positions, cache, end=layers)
        return self.decoder.normed_input(x, layers).float().cpu()

    @torch.inference_mode()
    def step(self, cache: PreallocatedCache, ids: Sequence[int], first: int) -> Tensor:
        """Logits (len(ids), vocabulary) after each of some tokens at ``first``, ...; they enter the cache.

        Raises ``NotFinite`` if they are not numbers; the cache is as it was.
        """
        positions = range(first, first + len(ids))
        logits = self.logits(ids, positions, cache, keep=len(ids))
        cache.commit(positions)
        return logits

    def logits(self, ids: Sequence[int], positions: Sequence[int], cells: Cells, keep: int) -> Tensor:
        """Logits (keep, vocabulary) after the last ``keep`` of some tokens, whose keys and values enter ``cells``.

        Raises ``NotFinite`` if they are not numbers.
        """
        x = self.decoder.run(self.decoder.embed(ids), positions, cells)
        logits = self.decoder.logits(x[-keep:])[:, : self.vocabulary].cpu()
        if not math.isfinite(logits.sum()):
            raise NotFinite(self._first_not_finite(ids, positions, cells))
        return logits

    def empty_cache(self, capacity: int) -> PreallocatedCache:
        """A cache in this rung's geometry, where the rung computes, with room for ``capacity`` cells."""
        return PreallocatedCache(self.layout, capacity, self.decoder.device)

    def prefill_afresh(self, ids: Sequence[int], spare: int = 0) -> PreallocatedCache:
        """This rung's own cache of a text, with room for ``spare`` more cells."""
        cache = self.empty_cache(len(ids) + spare)
        self.prefill(cache, ids, 0)
        return cache

    def _first_not_finite(self, ids: Sequence[int], positions: Sequence[int], cells: Cells) -> str:
        x = self.decoder.embed(ids)
        if not x.isfinite().all():
            return "the embedding gives values that are not finite"
        for layer in range(self.layout.layers):
            x = self.decoder.run(x, positions, cells, layer, layer + 1)
            if not x.isfinite().all():
                return f"layer {layer} gives values that are not finite"
        return "the head gives values that are not finite"


def as_loaded_rung(decoder: Decoder, spec: LadderSpec, rung: str) -> LoadedRung:
    """A rung of a ladder, loaded as ``decoder``."""
    numbers = spec.ladder.rung(rung)
    return LoadedRung(decoder, numbers.kv, numbers.max_positions, spec.vocabulary)


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax (..., vocabulary) in float64, nats."""
    return torch.log_softmax(logits.double(), dim=-1)
