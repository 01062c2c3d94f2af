"""One cache on one document, and the columns that many of them give.

Two continuations are fed to the destination, token by token as they are, whatever it would have produced: the rest of
the document, and what the source produces by itself (its undisturbed greedy continuation: what
the user would have read). Every measurement runs on a fork, so no cache is judged after it advanced over
an answer, and the last known token is fed exactly once.

Columns (nats; a *mark* m is the mean over the tokens after the mark before, up to the m-th):

- ``kl``, ``kl_first``, ``kl@m``: KL(reference || this cache) along the document, mean, first token, by mark;
- ``kl_greedy``: the same mean along the source's continuation, its first 64 tokens at most;
- ``jsd``, ``jsd_first``: Jensen-Shannon divergence to the source along the document;
- ``jsd_to_floor``: ``jsd`` as a multiple of what the destination's own cache has;
- ``top1``: share of tokens whose likeliest next token is the reference's;
- ``nll``, ``nll@m``, ``nll_greedy``: negative log-likelihood of the document and of the source's continuation;
- ``recovered``, ``recovered@m``, ``recovered_greedy``: share of what history is worth to the destination that
  this cache keeps, (NLL none - NLL this) / (NLL none - NLL own), 1 for its own cache, 0 for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from molt.evals.result import Figure
from molt.evals.setup import JudgedText
from molt.evals.statistics import Floats, summarise, summarise_share
from molt.kv.cache import PreallocatedCache
from molt.kv.handoff_quality import WORTH_NLL_MIN, Continuation, continue_greedily, teacher_force
from molt.kv.loaded_rung import LoadedRung

GREEDY_TOKENS = 64
"""Most tokens that the source goes on with by itself: it decodes them one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceSide:
    """What the source holds at the end of a text, and what it predicts along two continuations.

    ``text`` and ``greedy`` carry its log-probabilities (n, vocabulary).
    """

    cache: PreallocatedCache
    text: Continuation
    greedy: Continuation


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Log-probabilities (n, vocabulary) along the document and along the source's continuation."""

    text: Tensor
    greedy: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ReferencePredictions:
    """What the predictions of every cache of a case are compared with, and their exponentials, taken once."""

    reference: Predictions
    side: SourceSide
    text_probs: Tensor
    greedy_probs: Tensor
    source_probs: Tensor


def reference_predictions(reference: Predictions, side: SourceSide) -> ReferencePredictions:
    """What is compared with: the reference's predictions, and the source's."""
    of = (reference.text, reference.greedy, side.text.log_probs)
    return ReferencePredictions(reference, side, *(one.exp() for one in of))


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One cache on one document, token by token: (n,) each, ``top1`` as 0 or 1."""

    kl: Floats
    kl_greedy: Floats
    jsd: Floats
    top1: Floats
    nll: Floats
    nll_greedy: Floats


def source_side(source: LoadedRung, text: JudgedText) -> SourceSide:
    """Prefill a text with the source and let it predict."""
    cache = source.prefill_afresh(text.known[:-1])
    last, position, count = text.known[-1], len(text.known) - 1, len(text.next)
    greedy = continue_greedily(source, cache, last, position, min(count, GREEDY_TOKENS))
    along = Continuation(text.next, torch.empty(0))
    return SourceSide(
        cache, Continuation(text.next, teacher_force(source, cache, last, position, along)), greedy
    )


def predict(rung: LoadedRung, cache: PreallocatedCache, text: JudgedText, side: SourceSide) -> Predictions:
    """What a rung predicts with a cache of its own geometry."""
    last, position = text.known[-1], len(text.known) - 1
    return Predictions(
        *(teacher_force(rung, cache, last, position, along) for along in (side.text, side.greedy))
    )


def score(found: Predictions, against: ReferencePredictions) -> Scores:
    """Judge the predictions of a cache."""
    reference, side = against.reference, against.side
    return Scores(
        kl=_kl(reference.text, against.text_probs, found.text),
        kl_greedy=_kl(reference.greedy, against.greedy_probs, found.greedy),
        jsd=_jsd(side.text.log_probs, against.source_probs, found.text),
        top1=(reference.text.argmax(1) == found.text.argmax(1)).double().numpy(),
        nll=_nll(found.text, side.text.ids),
        nll_greedy=_nll(found.greedy, side.greedy.ids),
    )


def columns(
    scores: Sequence[Scores],
    own: Sequence[Scores],
    nothing: Sequence[Scores],
    marks: Sequence[int],
    seed: int,
) -> dict[str, Figure]:
    """The columns of one row from its scores over documents, beside those of the own cache and of no history."""
    made = {
        "kl": summarise([one.kl.mean() for one in scores], seed),
        "kl_first": summarise([one.kl[0] for one in scores], seed),
        "kl_greedy": summarise([one.kl_greedy.mean() for one in scores], seed),
        "jsd": summarise([one.jsd.mean() for one in scores], seed),
        "jsd_first": summarise([one.jsd[0] for one in scores], seed),
        "jsd_to_floor": summarise_share(
            [one.jsd.mean() for one in scores],
            [one.jsd.mean() for one in own],
            seed,
            more_is_better=False,
        ),
        "top1": summarise([one.top1.mean() for one in scores], seed, more_is_better=True),
        "nll": summarise([one.nll.mean() for one in scores], seed),
        "nll_greedy": summarise([one.nll_greedy.mean() for one in scores], seed),
        "recovered": _recovered(scores, own, nothing, "nll", seed),
        "recovered_greedy": _recovered(scores, own, nothing, "nll_greedy", seed),
    }
    for mark, part in spans(marks).items():
        made[f"kl@{mark}"] = summarise(_means(scores, "kl", part), seed)
        made[f"nll@{mark}"] = summarise(_means(scores, "nll", part), seed)
        made[f"recovered@{mark}"] = _recovered(scores, own, nothing, "nll", seed, part)
    return made


def spans(marks: Sequence[int]) -> dict[int, slice]:
    """The tokens that belong to each mark."""
    return {mark: slice(before, mark) for before, mark in zip((0, *marks), marks, strict=False)}


def _means(scores: Sequence[Scores], field: str, part: slice = slice(None)) -> Floats:
    return np.array([getattr(one, field)[part].mean() for one in scores])


def _recovered(
    scores: Sequence[Scores],
    own: Sequence[Scores],
    nothing: Sequence[Scores],
    figure: str,
    seed: int,
    part: slice = slice(None),
) -> Figure:
    found, best, worst = (_means(side, figure, part) for side in (scores, own, nothing))
    return summarise_share(worst - found, worst - best, seed, more_is_better=True, whole_min=WORTH_NLL_MIN)


def _kl(p: Tensor, p_probs: Tensor, q: Tensor) -> Floats:
    return _floats((p_probs * (p - q)).sum(1).clamp_min_(0.0))  # below 0 by rounding only


def _jsd(p: Tensor, p_probs: Tensor, q: Tensor) -> Floats:
    """By entropies: H(middle) - (H(p) + H(q)) / 2."""
    q_probs = q.exp()
    middle = p_probs.add(q_probs).div_(2)
    halves = ((p_probs * p).sum(1) + q_probs.mul_(q).sum(1)) / 2
    return _floats((halves - torch.special.xlogy(middle, middle).sum(1)).clamp_min_(0.0))


def _nll(log_probs: Tensor, ids: Sequence[int]) -> Floats:
    return _floats(-log_probs.gather(1, torch.tensor(ids)[:, None])[:, 0])


def _floats(tensor: Tensor) -> Floats:
    return np.asarray(tensor.double().numpy())
