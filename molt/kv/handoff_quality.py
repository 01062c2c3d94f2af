"""How good a switch was, judged against the destination's own cache of the same text.

The reference is the source's undisturbed greedy continuation (a control fork of its cache): what the user
would have read without the switch. The destination is teacher-forced on it with the carried cache, with
its own cache and with none. Two faults known from the literature are excluded by construction: every
measurement runs on a fork, so no cache is judged after it advanced over the answer, and each feeds the last
known token exactly once.

Teacher-forced scores alone are no evidence of transfer: run the controls (another document's cache, a zero
cache, no history) beside them; a metric that they pass measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from molt.core.events import Handoff
from molt.kv.cache import PreallocatedCache
from molt.kv.kv_state import KVState
from molt.kv.loaded_rung import LoadedRung, log_probabilities

CONTINUATION_TOKENS = 32

WORTH_NLL_MIN = 0.05
"""Nats per token that history must be worth before a share of it, by likelihood, means anything."""


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """How the source goes on: tokens, and log-probabilities (n, vocabulary) they were chosen by."""

    ids: tuple[int, ...]
    log_probs: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SwitchReference:
    """One text at one point: how the source goes on, and how likely that is to the destination by itself.

    ``native`` and ``nothing`` are log-probabilities (n, vocabulary) of the destination with its own cache and
    with none; ``last`` is the token at ``position`` that is fed first.
    """

    last: int
    position: int
    continuation: Continuation
    native: Tensor
    nothing: Tensor


@dataclass(frozen=True, slots=True)
class Score:
    """One cache on one continuation. Nats; ``kl`` and ``top1`` are against the destination's own cache.

    ``kl`` and ``nll`` are means over the continuation, ``jsd`` is to the source at the first token, ``top1``
    the share of tokens on which both caches agree.
    """

    kl: float
    jsd: float
    nll: float
    top1: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A carried cache beside the destination's own and none at all."""

    carried: Score
    native: Score
    nothing: Score

    @property
    def recovered_context(self) -> float:
        """Share of what history is worth to the destination that the carried cache keeps.

        1 for the destination's own cache, 0 for no history, negative for a cache that is worse than none. By
        negative log-likelihood of the continuation; where history is worth too little to divide by, by
        divergence from the destination's own cache.
        """
        worth = self.nothing.nll - self.native.nll
        if worth >= WORTH_NLL_MIN:
            return (self.nothing.nll - self.carried.nll) / worth
        return 1.0 - self.carried.kl / self.nothing.kl if self.nothing.kl > 0.0 else 1.0

    def handoff(self) -> Handoff:
        """The figures that the log keeps."""
        return Handoff(
            kl=self.carried.kl,
            jsd=self.carried.jsd,
            jsd_floor=self.native.jsd,
            recovered_context=self.recovered_context,
        )


@torch.inference_mode()
def continue_greedily(
    source: LoadedRung, cache: PreallocatedCache, last: int, position: int, count: int
) -> Continuation:
    """``count`` tokens after ``last`` at ``position``, on a fork of a cache of ``source``."""
    fork = cache.fork(spare=count)
    ids, rows = [last], []
    for offset in range(count):
        rows.append(source.step(fork, ids[-1:], position + offset)[0])  # (vocabulary,)
        ids.append(int(rows[-1].argmax()))
    return Continuation(tuple(ids[1:]), log_probabilities(torch.stack(rows)))


@torch.inference_mode()
def teacher_force(
    dest: LoadedRung, cache: PreallocatedCache, last: int, position: int, continuation: Continuation
) -> Tensor:
    """Log-probabilities (n, vocabulary) of the destination on a continuation, on a fork of ``cache``."""
    fed = [last, *continuation.ids[:-1]]
    return log_probabilities(dest.step(cache.fork(spare=len(fed)), fed, position))


def switch_reference(
    source: LoadedRung,
    dest: LoadedRung,
    source_cache: PreallocatedCache,
    known: Sequence[int],
    count: int = CONTINUATION_TOKENS,
) -> SwitchReference:
    """What a switch from ``source_cache`` to ``dest`` is judged by, after the text ``known``.

    The cache holds cells of ``known[:-1]``; the last token is the next to be fed. The continuation is shorter
    than ``count`` where either rung runs out of positions.
    """
    last, position = known[-1], len(known) - 1
    count = min(count, source.max_positions - position, dest.max_positions - position)
    continuation = continue_greedily(source, source_cache, last, position, count)
    own = own_cache(dest, known[:-1], source_cache.positions)
    native, nothing = (
        teacher_force(dest, cache, last, position, continuation) for cache in (own, dest.empty_cache(0))
    )
    return SwitchReference(last, position, continuation, native, nothing)


def judge(dest: LoadedRung, carried: PreallocatedCache, by: SwitchReference) -> Comparison:
    """Judge a cache of ``dest`` that holds the same cells as the one that the reference was made from."""
    log_probs = teacher_force(dest, carried, by.last, by.position, by.continuation)
    return Comparison(
        *(score(rows, by.native, by.continuation) for rows in (log_probs, by.native, by.nothing))
    )


def score(log_probs: Tensor, native: Tensor, continuation: Continuation) -> Score:
    """Score of ``log_probs`` (n, vocabulary) against ``native`` (n, vocabulary) on a continuation."""
    chosen = torch.tensor(continuation.ids)[:, None]  # (n, 1)
    return Score(
        kl=float(kl_divergence(native, log_probs).mean()),
        jsd=float(js_divergence(continuation.log_probs[0], log_probs[0])),
        nll=-float(log_probs.gather(1, chosen).mean()),
        top1=float((native.argmax(1) == log_probs.argmax(1)).double().mean()),
    )


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) over the last axis, nats, of log-probabilities."""
    return (p.exp() * (p - q)).sum(-1)


def js_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence over the last axis, nats (at most ln 2), of log-probabilities."""
    middle = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0, dtype=p.dtype))
    return (kl_divergence(p, middle) + kl_divergence(q, middle)) / 2


# ------------------------------------------------------------------------------- reference and controls


def own_cache(dest: LoadedRung, ids: Sequence[int], positions: Sequence[int]) -> PreallocatedCache:
    """The destination's own cache of a text, at ``positions`` only: what a perfect switch would give."""
    cache = dest.prefill_afresh(ids)
    if len(positions) == len(ids):
        return cache
    return filled(dest, cache.export().select(torch.tensor(positions, dtype=torch.int64)))


def zero_cache(dest: LoadedRung, positions: Sequence[int]) -> PreallocatedCache:
    """Control: cells that hold nothing; attention may look at them and finds zeros."""
    shape = (dest.layout.layers, dest.layout.kv_heads, len(positions), dest.layout.head_dim)
    return filled(
        dest, KVState(torch.zeros(shape), torch.zeros(shape), torch.tensor(positions, dtype=torch.int64))
    )


def filled(dest: LoadedRung, state: KVState) -> PreallocatedCache:
    """A cache of a rung that holds a state."""
    cache = dest.empty_cache(state.cells)
    cache.append(state)
    return cache
