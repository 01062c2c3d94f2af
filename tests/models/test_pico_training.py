"""Pico's training: what a step depends on, where the schedule goes, and that a resumed run equals a whole one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from molt.models.pico import batches
from molt.models.pico.batches import batch, windows
from molt.models.pico.recipes import RECIPES, Recipe, Schedule, Shape
from molt.models.pico.train import (
    Training,
    TrainingLimits,
    advance,
    decide_schedule,
    export,
    load_checkpoint,
    new_run,
    save_checkpoint,
    train,
)

TINY = Recipe(
    Shape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=16, ff=48, vocabulary=64),
    learning_rate=3e-3,
    tokens_per_step=64,
    length=16,
    length_last=32,
    warmup_steps=3,
)
TOKENS = np.random.default_rng(0).integers(0, 64, 4_000).astype(np.uint16)
SHORT_CORPUS = st.integers(100, 400).map(lambda n: np.arange(n, dtype=np.uint16))


def losses(run: Training, steps: int) -> list[float]:
    return [advance(run, TOKENS) for _ in range(steps)]


def weights(run: Training) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


# --- determinism ---


def test_two_runs_of_one_recipe_are_equal() -> None:
    assert losses(new_run(TINY), 4) == losses(new_run(TINY), 4)


def test_training_learns_what_can_be_learned() -> None:
    run, pattern = new_run(TINY), np.tile(np.arange(32, dtype=np.uint16), 200)
    first, *_, last = [advance(run, pattern) for _ in range(40)]
    assert last < 0.6 * first


@pytest.mark.parametrize("interrupted_at", [2, 7, 9])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, interrupted_at: int) -> None:
    """At step 7 the learning rate decays, at step 9 the sequences are long."""
    schedule = Schedule.ending_at(10, TINY)
    whole, first = new_run(TINY), new_run(TINY)
    whole.schedule = first.schedule = schedule
    expected = losses(whole, 10)
    found = losses(first, interrupted_at)
    save_checkpoint(first, tmp_path / "checkpoint")
    resumed = load_checkpoint(TINY, tmp_path / "checkpoint")
    assert found + losses(resumed, 10 - interrupted_at) == expected
    assert all(
        torch.equal(a, b) for a, b in zip(weights(whole).values(), weights(resumed).values(), strict=True)
    )


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    save_checkpoint(new_run_after_one_step(), tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="another recipe"):
        load_checkpoint(replace(TINY, seed=1), tmp_path / "checkpoint")


def new_run_after_one_step() -> Training:
    run = new_run(TINY)
    advance(run, TOKENS)
    return run


# --- batches ---


@given(SHORT_CORPUS, st.integers(1, 20), st.integers(0, 5))
def test_one_epoch_reads_every_piece_once(tokens: np.ndarray, length: int, seed: int) -> None:
    pieces = (len(tokens) - 1) // length - 1
    starts = windows(tokens, 0, pieces, length, seed)[:, 0]
    assert sorted(starts - starts.min()) == [length * i for i in range(pieces)]


@given(SHORT_CORPUS, st.integers(0, 60), st.integers(1, 20))
def test_a_window_is_a_piece_of_the_stream_and_depends_on_its_number_alone(
    tokens: np.ndarray, first: int, length: int
) -> None:
    rows = windows(tokens, first, 3, length, seed=1)
    assert torch.equal(rows, rows[:, :1] + torch.arange(length + 1))
    assert torch.equal(rows[2:], windows(tokens, first + 2, 1, length, seed=1))


def test_every_batch_has_as_many_tokens_and_the_last_ones_are_long() -> None:
    schedule = Schedule.ending_at(20, TINY)
    shapes = [tuple(batch(TOKENS, step, schedule, TINY).shape) for step in range(20)]
    assert shapes == [(4, 17)] * 17 + [(2, 33)] * 3


# --- schedule ---


@given(st.integers(20, 5_000))
@settings(max_examples=30)
def test_the_rate_warms_up_stays_and_decays_towards_zero(steps: int) -> None:
    schedule = Schedule.ending_at(steps, TINY)
    assert schedule.decay_from is not None
    rates = [schedule.learning_rate(step, TINY) for step in range(steps)]
    assert rates[: TINY.warmup_steps] == sorted(rates[: TINY.warmup_steps])
    assert set(rates[TINY.warmup_steps : schedule.decay_from + 1]) == {TINY.learning_rate}
    decay = rates[schedule.decay_from :]
    assert decay == sorted(decay, reverse=True)
    assert 0 < decay[-1] < 0.2 * TINY.learning_rate


@given(st.integers(1, 5_000))
def test_a_decay_that_begins_on_demand_has_the_recipes_share(step: int) -> None:
    schedule = Schedule.decaying_from(step, TINY)
    assert schedule.end is not None
    assert schedule.end > step
    assert abs((schedule.end - step) / schedule.end - TINY.decay_fraction) < 1 / step


def test_the_decay_begins_when_asked_or_when_time_is_up_and_never_moves_again() -> None:
    run = replace(new_run(TINY), step=100, elapsed_s=60.0)
    assert decide_schedule(run, TrainingLimits(), finish_asked=False) == Schedule()
    assert decide_schedule(run, TrainingLimits(minutes=10), finish_asked=False) == Schedule()
    decided = decide_schedule(run, TrainingLimits(minutes=1), finish_asked=False)
    assert (
        decided
        == decide_schedule(run, TrainingLimits(), finish_asked=True)
        == Schedule.decaying_from(100, TINY)
    )
    later = replace(run, step=110, schedule=decided)
    assert decide_schedule(later, TrainingLimits(minutes=99), finish_asked=True) == decided


def test_an_end_that_lies_behind_is_refused() -> None:
    with pytest.raises(ValueError, match="already at step 100"):
        decide_schedule(replace(new_run(TINY), step=100), TrainingLimits(steps=100), finish_asked=False)


# --- the loop, export ---


def test_the_loop_logs_saves_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molt.models.pico.train.encode_split", lambda split, cache: TOKENS)
    run = new_run(TINY)
    train(run, tmp_path / "run", tmp_path / "tiny", TrainingLimits(steps=8))
    assert run.finished
    records = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [(r["step"], r["tokens"]) for r in records] == [(8, 8 * 64)]
    assert load_checkpoint(TINY, tmp_path / "run/stable").step == 6
    assert load_checkpoint(TINY, tmp_path / "run/checkpoint").finished
    assert json.loads((tmp_path / "tiny/training.json").read_text())["steps"] == 8


def test_an_export_loads_in_transformers_and_is_the_trained_model_in_float16(tmp_path: Path) -> None:
    run = new_run_after_one_step()
    export(run, tmp_path / "tiny")
    loaded = Qwen2ForCausalLM.from_pretrained(tmp_path / "tiny", dtype=torch.float32)
    assert "lm_head.weight" not in load_file(tmp_path / "tiny/model.safetensors")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, weights(run)[name].half().float())


@pytest.mark.parametrize("tier", RECIPES)
def test_transformers_honours_the_head_dimension_of_a_recipe(tier: str) -> None:
    shape = RECIPES[tier].shape
    with torch.device("meta"):
        attention = Qwen2ForCausalLM(shape.config()).model.layers[0].self_attn
    assert attention.head_dim == shape.head_dim
    assert attention.k_proj.out_features == shape.kv_heads * shape.head_dim


def test_a_split_is_encoded_once_with_an_end_of_text_before_each_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    found = [("a", "one two\n"), ("b", "three\n")]
    monkeypatch.setattr(batches, "documents", lambda split, cache: found)
    stream = batches.encode_split("train", tmp_path)
    monkeypatch.setattr(batches, "documents", None)
    assert batches.encode_split("train", tmp_path).tolist() == stream.tolist()
    assert stream.tolist().count(0) == 2
    assert batches.load_tokenizer().decode(stream.tolist()) == "one two\nthree\n"
