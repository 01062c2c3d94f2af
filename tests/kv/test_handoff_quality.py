"""The metrics say what they claim, and none of them flatters."""

from __future__ import annotations

import math

import pytest
import torch

from molt.kv.cache import PreallocatedCache
from molt.kv.handoff_quality import (
    Comparison,
    Score,
    continue_greedily,
    js_divergence,
    judge,
    kl_divergence,
    own_cache,
    switch_reference,
    teacher_force,
    zero_cache,
)
from molt.kv.loaded_rung import LoadedRung, log_probabilities


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_divergences_of_known_distributions() -> None:
    p, q = logs(0.5, 0.5), logs(0.25, 0.75)
    assert float(kl_divergence(p, q)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert float(kl_divergence(p, p)) == 0.0
    assert float(js_divergence(p, q)) == pytest.approx(float(js_divergence(q, p)))
    assert float(js_divergence(logs(1 - 1e-12, 1e-12), logs(1e-12, 1 - 1e-12))) == pytest.approx(math.log(2))


def test_the_continuation_is_the_undisturbed_greedy_one(large: LoadedRung, ids: list[int]) -> None:
    cache = large.prefill_afresh(ids[:-1])
    before = cache.export()
    continuation = continue_greedily(large, cache, ids[-1], len(ids) - 1, count=6)
    text = list(ids)
    with torch.inference_mode():
        for _ in range(6):
            logits = large.model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
            text.append(int(logits[: large.vocabulary].argmax()))
    assert list(continuation.ids) == text[len(ids) :]
    assert torch.equal(cache.export().keys, before.keys)
    assert cache.cells == len(ids) - 1


def test_teacher_forcing_feeds_the_last_token_once_and_the_answer_shifted(
    large: LoadedRung, ids: list[int]
) -> None:
    cache = large.prefill_afresh(ids[:-1])
    continuation = continue_greedily(large, cache, ids[-1], len(ids) - 1, count=5)
    got = teacher_force(large, cache, ids[-1], len(ids) - 1, continuation)
    text = [*ids, *continuation.ids]
    with torch.inference_mode():
        logits = large.model(input_ids=torch.tensor([text]), use_cache=False).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(got, log_probabilities(logits[:, : large.vocabulary]), rtol=0, atol=1e-4)
    assert cache.cells == len(ids) - 1


def test_the_destinations_own_cache_scores_perfectly(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    source, own = large.prefill_afresh(ids[:-1]), small.prefill_afresh(ids[:-1])
    result = judge(small, own, switch_reference(large, small, source, ids, count=8))
    assert result.carried == result.native
    assert result.carried.kl == 0.0
    assert result.carried.top1 == 1.0
    handoff = result.handoff()
    assert handoff.recovered_context == 1.0
    assert handoff.jsd == handoff.jsd_floor > 0.0


def test_no_history_recovers_nothing_and_controls_diverge(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    source = large.prefill_afresh(ids[:-1])
    nothing = PreallocatedCache(small.layout, 0)
    by = switch_reference(large, small, source, ids, count=8)
    without = judge(small, nothing, by)
    assert without.carried == without.nothing
    assert without.recovered_context == 0.0
    for control in (zero_cache(small, source.positions), own_cache(small, ids[:0:-1], source.positions)):
        assert judge(small, control, by).carried.kl > 0.01


def test_after_a_shed_the_reference_holds_the_same_cells(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    source, own = large.prefill_afresh(ids[:-1]), small.prefill_afresh(ids[:-1])
    source.shed(12, sinks=4)
    own.shed(12, sinks=4)
    assert judge(
        small, own, switch_reference(large, small, source, ids, count=4)
    ).carried.kl == pytest.approx(0.0, abs=1e-9)


def test_near_the_end_of_the_positions_the_continuation_is_shorter(
    large: LoadedRung, small: LoadedRung
) -> None:
    ids = torch.randint(0, 97, (250,), generator=torch.Generator().manual_seed(1)).tolist()
    by = switch_reference(large, small, large.prefill_afresh(ids[:-1]), ids)
    assert len(by.continuation.ids) == 256 - 249
    assert judge(small, small.prefill_afresh(ids[:-1]), by).carried.kl == 0.0


def score_with(nll: float, kl: float = 0.0) -> Score:
    return Score(kl=kl, jsd=0.0, nll=nll, top1=1.0)


@pytest.mark.parametrize(
    ("carried", "recovered"), [(2.0, 1.0), (3.0, 0.0), (2.25, 0.75), (4.0, -1.0), (1.75, 1.25)]
)
def test_recovered_context_is_a_share_of_the_likelihood(carried: float, recovered: float) -> None:
    comparison = Comparison(score_with(carried), score_with(2.0), score_with(3.0))
    assert comparison.recovered_context == pytest.approx(recovered)


@pytest.mark.parametrize(("kl", "recovered"), [(0.0, 1.0), (0.5, 0.0), (0.125, 0.75), (1.0, -1.0)])
def test_where_history_is_worth_nothing_the_share_is_of_the_divergence(kl: float, recovered: float) -> None:
    comparison = Comparison(score_with(9.0, kl), score_with(2.0), score_with(1.9, 0.5))
    assert comparison.recovered_context == pytest.approx(recovered)
