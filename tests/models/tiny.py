"""Tiny random models on disk: what a ladder's sources look like, at the size of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import save_file

from molt.core.ladder import KVLayout
from molt.kv.cache import PreallocatedCache
from molt.models import image
from molt.models.ladder_file import RungSpec
from molt.models.loader import load
from molt.models.model_config import FAMILIES, read_shape

QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_model(
    folder: Path, config: dict[str, Any], *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Path:
    """A model with random weights, ``config`` as it is."""
    shape = read_shape(write_config(folder, config))
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: (torch.randn(extents, generator=generator) * (0.2 if len(extents) == 2 else 1.0)).to(dtype)
        for name, extents in image.parameters(shape).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.inference_mode()
def all_logits(rung: RungSpec, ids: list[int]) -> torch.Tensor:
    """Logits (t, vocabulary) of a loaded rung after every token of a text."""
    decoder, shape = load(rung).decoder, rung.shape
    cache = PreallocatedCache(KVLayout(shape.layers, shape.kv_heads, shape.head_dim, 4), len(ids))
    return decoder.logits(decoder.run(decoder.embed(ids), range(len(ids)), cache))


def write_tokenizer(folder: Path, entries: int = 90, **changes: str) -> Path:
    """A tokenizer of ``entries`` made-up tokens; ``changes`` are spellings by ``"t<id>"``."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {changes.get(f"t{token}", f"t{token}"): token for token in range(entries - 1)}
    content = {
        "added_tokens": [{"id": entries - 1, "content": changes.get("end", "<|end|>"), "special": True}],
        "model": {"type": "BPE", "vocab": vocab, "merges": [["t", "0"], ["t", changes.get("merge", "1")]]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def write_ladder(folder: Path, text: str) -> Path:
    path = folder / "ladder.yaml"
    path.write_text(text)
    return path


@st.composite
def configs(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A small ``config.json`` of a family, with every choice that changes the bytes."""
    head_dim = draw(st.sampled_from((2, 4, 6, 16)))
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    is_explicit = family == "qwen3" or draw(st.booleans())
    hidden = heads * draw(st.integers(2, 9)) if is_explicit else heads * head_dim
    config: dict[str, Any] = {
        "architectures": [FAMILIES[family].causal_lm],
        "model_type": family,
        "vocab_size": draw(st.integers(2, 70)),
        "hidden_size": hidden,
        "intermediate_size": draw(st.integers(2, 50)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": draw(st.integers(8, 64)),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_parameters": draw(
            st.sampled_from(
                (
                    {"rope_type": "default", "rope_theta": 1e4},
                    {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
                )
            )
        ),
    }
    if is_explicit:
        config["head_dim"] = head_dim
    if family in ("llama", "qwen3"):
        config["attention_bias"] = draw(st.booleans())
    if family == "llama":
        config["mlp_bias"] = draw(st.booleans())
    if family == "mistral":
        config["sliding_window"] = None
    return config
