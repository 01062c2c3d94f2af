"""Tiny random rungs: real architectures, a few thousand parameters, no download."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import Cache

import molt.kv  # noqa: F401
from molt.core.ladder import KVLayout
from molt.kv.loaded_rung import LoadedRung
from molt.models.ladder_file import RungSpec
from molt.models.loader import load
from molt.models.model_config import read_shape

VOCABULARY = 97
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


@dataclass(frozen=True, slots=True, eq=False)
class TinyRung(LoadedRung):
    """A rung beside the transformers model with the same weights, which knows nothing of Molt."""

    model: PreTrainedModel


def tiny(
    kind: str = "qwen2",
    *,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    vocabulary: int = VOCABULARY,
    seed: int = 0,
    **extra: Any,
) -> TinyRung:
    """A random rung; the vocabulary is padded by 3 entries that no token has."""
    torch.manual_seed(seed)
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    config = config_class(
        vocab_size=vocabulary + 3,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=256,
        initializer_range=0.3,  # large enough that attention matters
        **extra,
    )
    model = model_class(config).eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        folder = Path(name)
        decoder = load(RungSpec("tiny", "tiny", folder, "fp32", read_shape(folder))).decoder
    return TinyRung(decoder, KVLayout(layers, kv_heads, head_dim, 4), 256, vocabulary, model)


def cache_argument(model: PreTrainedModel, cache: Cache) -> dict[str, Cache]:
    """A cache as a keyword of a transformers model: ``past_key_values`` was renamed to ``cache`` in 5.24."""
    parameters = inspect.signature(type(model).forward).parameters
    return {"cache" if "cache" in parameters else "past_key_values": cache}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small() -> TinyRung:
    """The smaller rung of the tests: other depth, other head dimension."""
    return tiny(layers=2, kv_heads=1, head_dim=6, seed=1)


@pytest.fixture(scope="session")
def large() -> TinyRung:
    """The larger rung of the tests."""
    return tiny()


@pytest.fixture(scope="session", params=["qwen2", "qwen3", "llama", "llama3", "yarn"])
def any_rung(request: pytest.FixtureRequest) -> TinyRung:
    """Every supported architecture and RoPE variant."""
    match request.param:
        case "llama3":
            return tiny("llama", rope_parameters=LLAMA3)
        case "yarn":
            return tiny("llama", rope_parameters=YARN)
        case kind:
            return tiny(kind)


@pytest.fixture(scope="session")
def ids() -> list[int]:
    """Forty random tokens."""
    return torch.randint(0, VOCABULARY, (40,), generator=torch.Generator().manual_seed(5)).tolist()
