"""Models that transformers saves: refused by name, or the same logits. Nothing in between."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.peers.models import FAMILIES, alter, refusal, save

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN: dict[str, dict[str, Any]] = {
    "plain": {},
    "betas": {"beta_fast": 8, "beta_slow": 2},
    "an attention factor": {"attention_factor": 1.7},
    "mscales": {"mscale": 0.7, "mscale_all_dim": 0.4},
    "not truncated": {"truncate": False},
    "no original length": {"original_max_position_embeddings": ...},
}
NEW: dict[str, Any] = {
    "absent": ...,
    "null": None,
    "default": {"rope_type": "default", "rope_theta": 3000.0},
    "default without theta": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "rope_theta": 3000.0, "factor": 3.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 3000.0, "original_max_position_embeddings": 20, **LLAMA3},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 3000.0, "factor": 2.0},
}
"""Values of ``rope_parameters``, as transformers 5 writes it."""
OLD: dict[str, Any] = {
    "absent": ...,
    "null": None,
    "empty": {},
    "default": {"type": "default"},
    "linear": {"type": "linear", "factor": 2.0},
    "llama3": {"rope_type": "llama3", "original_max_position_embeddings": 16, **LLAMA3},
    "llama3 without length": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "dynamic": {"type": "dynamic", "factor": 2.0},
}
"""Values of ``rope_scaling``, as older versions write it."""


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each family, as it was saved; tests alter its settings."""
    return save(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("new", NEW)
def test_old_and_new_rope_settings_together(saved: Path, new: str, old: str) -> None:
    """``rope_scaling`` wins where it is neither null nor empty, its angle base included, as in transformers."""
    wins = old if old not in ("absent", "null", "empty") else new
    for theta, original in product((..., 700.0), (..., 24)):
        alter(
            saved,
            rope_parameters=NEW[new],
            rope_scaling=OLD[old],
            rope_theta=theta,
            original_max_position_embeddings=original,
        )
        reason = refusal(saved)
        if wins != "dynamic":
            assert reason is None
        else:
            assert reason is not None
            assert "'dynamic' is not supported" in reason


@pytest.mark.parametrize("kind", YARN)
def test_yarn_in_all_its_settings(saved: Path, kind: str) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16} | YARN[kind]
    yarn = {key: value for key, value in yarn.items() if value is not ...}
    gone = {"rope_theta": ..., "original_max_position_embeddings": ...}
    assert refusal(alter(saved, rope_parameters=..., rope_scaling=yarn, **gone)) is None


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0] * 6}, "'longrope'"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, "'proportional'"),
        ({"type": "mrope", "mrope_section": [2, 2, 2]}, "'mrope'"),
        ({"rope_type": None}, "RoPE variant None"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}, "rope_scaling.rope_theta"),
        ({"rope_type": "yarn", "factor": float("inf")}, "rope_scaling.factor"),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16.5},
            "is no whole number",
        ),
        ({"rope_type": "linear"}, "rope_scaling.factor"),
        ({"rope_type": "linear", "factor": "2"}, "rope_scaling.factor"),
        ({"rope_type": "yarn", "factor": None}, "rope_scaling.factor"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": "8"}, "rope_scaling.beta_fast"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": "no"}, "rope_scaling.truncate"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}, "rope_scaling.high_freq_factor"),
        ({"full_attention": {"rope_type": "default"}}, "differs between layers"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_what_is_refused_is_named(saved: Path, settings: dict[str, Any], names: str) -> None:
    """The field that wins is the one that is named, though the other is sound."""
    sound = {"rope_type": "default", "rope_theta": 1e4}
    gone = {"rope_theta": ..., "original_max_position_embeddings": ...}
    reason = refusal(alter(saved, rope_parameters=sound, rope_scaling=settings, **gone))
    assert reason is not None
    assert names in reason


VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "tied": (FAMILIES, {"tie_word_embeddings": True}),
    "untied": (FAMILIES, {"tie_word_embeddings": False}),
    "padded vocabulary": (FAMILIES, {"vocab_size": 128}),
    "head dimension of its own": (FAMILIES, {"head_dim": 16}),
    "one key head": (FAMILIES, {"num_key_value_heads": 1}),
    "as many key heads": (FAMILIES, {"num_key_value_heads": 4}),
    "attention bias": (FAMILIES, {"attention_bias": True}),
    "MLP bias": (FAMILIES, {"mlp_bias": True}),
    "another norm": (FAMILIES, {"rms_norm_eps": 1e-3}),
    "another activation": (FAMILIES, {"hidden_act": "gelu_pytorch_tanh"}),
    "windows that are not used": (("qwen2", "qwen3"), {"use_sliding_window": False, "sliding_window": 8}),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_variants_of_a_shape(family: str, variant: str, tmp_path: Path) -> None:
    families, changes = VARIANTS[variant]
    if family not in families:
        pytest.skip("not a setting of this family")
    assert refusal(save(tmp_path / "m", family, **changes)) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shard_bytes", ["1GB", 8_000])
def test_any_stored_precision_and_number_of_files(
    family: str, stored: torch.dtype, shard_bytes: int | str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "m", family, stored=stored, shard_bytes=shard_bytes)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard_bytes == 8_000)
    assert refusal(folder) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "key",
    [
        "num_key_value_heads",
        "head_dim",
        "hidden_act",
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
    ],
)
def test_a_setting_that_is_left_out_is_refused_or_means_what_it_means_there(
    family: str, key: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "m", family, num_key_value_heads=4, head_dim=12)
    reason = refusal(alter(folder, **{key: ...}))
    assert reason is None or key in reason or "config.json means" in reason


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_windows_that_are_used_are_refused(family: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", family)
    reason = refusal(
        alter(folder, use_sliding_window=True, sliding_window=8, max_window_layers=0, layer_types=...)
    )
    assert reason is not None
    assert "sliding" in reason
