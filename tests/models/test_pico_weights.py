"""Pico's shipped weights: they pass their gates on excerpts, and the card says what the files say."""

import math
from pathlib import Path

import pytest
import torch

from molt.models.pico import END_OF_TEXT_ID, TIERS, WEIGHTS
from molt.models.pico.card import card
from molt.models.pico.corpus import Document, shipped_documents
from molt.models.pico.evaluate import (
    CONTINUATION_LENGTHS,
    HISTORY_TOKENS,
    Evaluation,
    context_gains,
    continuations,
    document_loss,
    evaluate,
    evaluation_json,
    load_evaluation,
    load_rung,
    sample,
    token_losses,
)
from molt.models.pico.recipes import RECIPES
from molt.models.pico.tokenizer import load_tokenizer

WEIGHTS_BYTES_MAX = 30 * 2**20


@pytest.fixture(scope="module")
def excerpts() -> list[Document]:
    """A few of the shipped documents, from every package: about 40 kB."""
    return [(name, text) for name, text in shipped_documents() if 3_000 < len(text) < 6_000]


@pytest.fixture(scope="module")
def measured(excerpts: list[Document]) -> Evaluation:
    return evaluate(excerpts, prompts=())


def test_the_shipped_rungs_pass_every_gate_on_the_shipped_excerpts(measured: Evaluation) -> None:
    assert [gate for gate in measured.gates() if not gate.passed] == []


def test_the_published_evaluation_passes_every_gate() -> None:
    published = load_evaluation()
    assert [gate for gate in published.gates() if not gate.passed] == []


def test_the_published_evaluation_is_of_these_weights(measured: Evaluation) -> None:
    published = load_evaluation()
    for tier in TIERS:
        assert published.rungs[tier].parameters == measured.rungs[tier].parameters
        assert published.rungs[tier].file_bytes == measured.rungs[tier].file_bytes
        assert published.rungs[tier].bits_per_byte == pytest.approx(
            measured.rungs[tier].bits_per_byte, rel=0.25
        )


def test_an_evaluation_survives_its_json(tmp_path: Path, measured: Evaluation) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(evaluation_json(measured), encoding="utf-8")
    again = load_evaluation(path)
    assert [gate.claim for gate in again.gates()] == [gate.claim for gate in measured.gates()]
    assert [gate.value for gate in again.gates()] == pytest.approx(
        [gate.value for gate in measured.gates()], abs=2e-4
    )
    assert evaluation_json(again) == evaluation_json(measured)


def test_the_card_is_what_the_files_say() -> None:
    assert (WEIGHTS / "CARD.md").read_text(encoding="utf-8") == card()


@pytest.mark.parametrize("tier", TIERS)
def test_the_shipped_geometry_is_the_recipes(tier: str) -> None:
    config = load_rung(tier).config
    expected = RECIPES[tier].shape.config()
    for key in (
        "num_hidden_layers",
        "hidden_size",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "rope_parameters",
    ):
        assert getattr(config, key) == getattr(expected, key)


def test_all_shipped_files_fit_the_promised_size() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file()) < WEIGHTS_BYTES_MAX


# --- the measures themselves ---


@torch.inference_mode()
def test_a_documents_loss_is_the_sum_over_its_tokens_whatever_the_windows() -> None:
    model, ids = load_rung("tier1"), [END_OF_TEXT_ID, *range(100, 140)]
    assert document_loss(model, ids) == pytest.approx(
        token_losses(model, torch.tensor([ids])).sum().item(), rel=1e-5
    )


def test_continuations_are_disjoint_and_thinned_evenly() -> None:
    length = HISTORY_TOKENS + CONTINUATION_LENGTHS[-1]
    pieces = continuations([list(range(10 * length + 1)), list(range(5))], count_max=5)
    assert pieces[:, 0].tolist() == [1 + 2 * length * i for i in range(5)]
    assert pieces.shape == (5, length)


@torch.inference_mode()
def test_history_is_what_the_context_gate_measures() -> None:
    """A continuation that repeats its history is cheap with it and dear without it."""
    half = torch.randint(1, 4096, (1, HISTORY_TOKENS), generator=torch.Generator().manual_seed(0))
    pieces = torch.cat([half, half[:, : CONTINUATION_LENGTHS[-1]]], dim=1)
    for gain in context_gains(load_rung("tier0"), pieces):
        assert math.isfinite(gain.gain)
        assert gain.with_history < gain.without_history


@torch.inference_mode()
def test_a_sample_is_reproducible_and_begins_with_its_prompt() -> None:
    model, tokenizer = load_rung("tier1"), load_tokenizer()
    first, again = (sample(model, tokenizer, "The server", tokens=8, seed=3) for _ in range(2))
    assert first == again
    assert first.startswith("The server")
