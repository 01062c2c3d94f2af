"""A token's randomness depends on the seed and on which token it is, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molt.engine.sampling import sample, uniform

LOGITS = torch.tensor([0.1, 0.5, 0.2, 0.2]).log()


def test_draws_are_a_function_of_seed_and_index() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    draws = [uniform(seed, index) for seed in range(-2, 20) for index in range(100)]
    assert len(set(draws)) == len(draws)
    assert all(0.0 <= draw < 1.0 for draw in draws)
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.02)


def test_temperature_zero_takes_the_likeliest() -> None:
    assert {sample(LOGITS, 0.0, 1.0, draw) for draw in (0.0, 0.5, 0.999)} == {1}


def test_shares_of_the_unit_interval_go_to_tokens_in_order_of_the_vocabulary() -> None:
    drawn = [sample(LOGITS, 1.0, 1.0, draw) for draw in (0.0, 0.09, 0.11, 0.59, 0.61, 0.79, 0.81, 1 - 2**-53)]
    assert drawn == [0, 0, 1, 1, 2, 2, 3, 3]


@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=50),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0, exclude_max=True),
)
@settings(max_examples=60, deadline=None)
def test_the_token_is_always_one_of_the_nucleus_by_definition(
    raw: list[float], top_p: float, draw: float
) -> None:
    logits = torch.tensor(raw, dtype=torch.float64)
    probabilities = logits.softmax(0)
    token = sample(logits, 1.0, top_p, draw)
    likelier = probabilities[probabilities > probabilities[token]].sum()
    assert likelier < top_p + 1e-9


@pytest.mark.parametrize(
    ("top_p", "allowed"), [(0.4, {1}), (0.6, {1, 2}), (0.85, {1, 2, 3}), (1.0, {0, 1, 2, 3})]
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p: float, allowed: set[int]) -> None:
    assert {sample(LOGITS, 1.0, top_p, draw / 200) for draw in range(200)} == allowed


def test_a_low_temperature_sharpens() -> None:
    share = [
        sum(sample(LOGITS, heat, 1.0, draw / 100) == 1 for draw in range(100)) for heat in (2.0, 1.0, 0.3)
    ]
    assert share == sorted(share)
    assert share[0] < share[-1]


@given(
    st.lists(st.integers(-160, 160).map(lambda n: n / 8), min_size=1, max_size=40, unique=True),
    st.floats(0.1, 2.0),
    st.sampled_from([0, 1, 2, 5, 1000]),
    st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_what_may_be_picked_is_what_transformers_lets_through(
    raw: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Of tokens that are equally likely, transformers takes the last and Molt the first: here none are."""
    from transformers.generation import logits_process as peer

    scores = torch.tensor([raw], dtype=torch.float64) / temperature
    if top_k:
        scores = peer.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = peer.TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = peer.MinPLogitsWarper(min_p)(None, scores)
    allowed = set(scores[0].isfinite().nonzero()[:, 0].tolist())
    logits = torch.tensor(raw, dtype=torch.float64)
    picked = {sample(logits, temperature, top_p, draw / 300, top_k=top_k, min_p=min_p) for draw in range(300)}
    assert picked <= allowed
    likely = set((scores[0].softmax(0) > 0.02).nonzero()[:, 0].tolist())
    assert likely <= picked


def test_one_of_equals_is_the_first() -> None:
    assert {sample(torch.zeros(5), 1.0, 1.0, draw / 50, top_k=1) for draw in range(50)} == {0}


def test_no_limit_picks_as_ever() -> None:
    draws = [draw / 97 for draw in range(97)]
    without = [sample(LOGITS, 0.7, 0.9, draw) for draw in draws]
    assert [sample(LOGITS, 0.7, 0.9, draw, top_k=0, min_p=0.0) for draw in draws] == without
    assert [sample(LOGITS, 0.7, 0.9, draw, top_k=4) for draw in draws] == without
