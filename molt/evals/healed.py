"""A transplanted cache that heals while the destination goes on: the predictions on the way, and the healed cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from molt.core.healing import chunk, settled_after
from molt.evals.scoring import Predictions, SourceSide
from molt.evals.setup import JudgedText
from molt.kv import heal
from molt.kv.cache import PreallocatedCache
from molt.kv.handoff_quality import filled
from molt.kv.loaded_rung import LoadedRung, log_probabilities

HEALED_TOKENS = 32
"""Cells healed in a decode step: the most that the policy molt takes by default."""


def steps_needed(cells: int, settled: int) -> int:
    """Decode steps until every cell is exact, those added meanwhile included."""
    return -(-(cells - settled) // (HEALED_TOKENS - 1))


def predict_healing(
    dest: LoadedRung, cache: PreallocatedCache, text: JudgedText, side: SourceSide, settled: int
) -> Predictions:
    """``scoring.predict``, with a cache that heals: its first ``settled`` cells are exact."""
    along = (_heal(dest, cache, text.known, then.ids, settled)[0] for then in (side.text, side.greedy))
    return Predictions(*along)


def healed(dest: LoadedRung, cache: PreallocatedCache, text: JudgedText, settled: int) -> PreallocatedCache:
    """The cells of a cache once all of them are exact; the text must go on for the steps that this needs."""
    following = text.next[: steps_needed(cache.cells, settled)]
    _, whole = _heal(dest, cache, text.known, following, settled)
    return filled(dest, whole.export(0, cache.cells))


@torch.inference_mode()
def _heal(
    dest: LoadedRung, cache: PreallocatedCache, known: Sequence[int], following: Sequence[int], settled: int
) -> tuple[Tensor, PreallocatedCache]:
    """Log-probabilities (n, vocabulary) of ``following`` tokens, fed one by one after ``known`` in steps that heal a
    fork of ``cache``; and the fork."""
    fork, text, rows = cache.fork(spare=len(following)), [*known, *following], []
    for end in range(len(known), len(text)):
        cells = fork.cells
        count = chunk(cells, settled, HEALED_TOKENS)
        rows.append(heal.step(dest, fork, text[:end], settled, count))
        settled = settled_after(cells, settled, count)
    return log_probabilities(torch.stack(rows)), fork
