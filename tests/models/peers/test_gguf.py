"""GGUF files with keys left out or of an older name: refused by name, or the model that llama.cpp would run.

The judge is transformers, given the same weights and what llama.cpp reads where a key is missing
(``llama_model::load_hparams`` and ``llama_vocab::impl::load``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from molt.errors import LadderError
from molt.models.fetching import convert
from tests.models.fetching.gguf_files import LLAMA, QWEN2, QWEN3, random_tensors, write_gguf
from tests.models.peers.models import TOLERANCE, our_logits, their_logits

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"tie_word_embeddings": False, "num_key_value_heads": 4},
    "qwen2": QWEN2 | {"num_key_value_heads": 4},
    "qwen3": QWEN3 | {"num_key_value_heads": 4},
}
LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}
DEFAULT = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
# What is changed in the file ("*" stands for the architecture), and what that means in config.json.
EQUAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a factor without a type": ({"keys": {"*.rope.scaling.factor": 4.0}}, LINEAR),
    "a factor by its older name": ({"keys": {"*.rope.scale_linear": 4.0}}, LINEAR),
    "both names": ({"keys": {"*.rope.scaling.factor": 4.0, "*.rope.scale_linear": 2.0}}, LINEAR),
    "a linear type": ({"keys": {"*.rope.scaling.type": "linear", "*.rope.scaling.factor": 4.0}}, LINEAR),
    "no scaling, with a factor": (
        {"keys": {"*.rope.scaling.type": "none", "*.rope.scaling.factor": 4.0}},
        DEFAULT,
    ),
    "a factor of 1": ({"keys": {"*.rope.scaling.factor": 1.0}}, DEFAULT),
    "a neutral attention factor": ({"keys": {"*.rope.scaling.attn_factor": 1.0}}, DEFAULT),
    "no angle base": ({"without": ["*.rope.freq_base"]}, DEFAULT),
    "no number of key heads": ({"without": ["*.attention.head_count_kv"]}, {}),
    "no head dimension": ({"without": ["*.attention.key_length"]}, {}),
    "rotated dimensions": ({"keys": {"*.rope.dimension_count": 16}}, {}),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "YaRN": (
        {"keys": {"*.rope.scaling.type": "yarn", "*.rope.scaling.factor": 4.0}},
        "rope.scaling.type: 'yarn'",
    ),
    "LongRoPE": ({"keys": {"*.rope.scaling.type": "longrope"}}, "rope.scaling.type: 'longrope'"),
    "no factor": ({"keys": {"*.rope.scaling.type": "linear"}}, "rope.scaling.factor: is missing"),
    "an attention factor": ({"keys": {"*.rope.scaling.attn_factor": 1.5}}, "rope.scaling.attn_factor: 1.5"),
    "frequencies and a factor": (
        {"keys": {"*.rope.scaling.factor": 4.0}, "extra": {"rope_freqs.weight": np.ones(8, np.float32)}},
        "rope_freqs.weight",
    ),
    "an attention scale": ({"keys": {"*.attention.scale": 0.1}}, "attention.scale: 0.1"),
    "capped scores": ({"keys": {"*.attn_logit_softcapping": 50.0}}, "attn_logit_softcapping: 50.0"),
    "capped logits": ({"keys": {"*.final_logit_softcapping": 30.0}}, "final_logit_softcapping: 30.0"),
    "a logit scale": ({"keys": {"*.logit_scale": 0.5}}, "logit_scale: 0.5"),
    "an embedding scale": ({"keys": {"*.embedding_scale": 12.0}}, "embedding_scale: 12.0"),
    "a residual scale": ({"keys": {"*.residual_scale": 0.2}}, "residual_scale: 0.2"),
    "both directions": ({"keys": {"*.attention.causal": False}}, "attention.causal: False"),
    "no epsilon": ({"without": ["*.attention.layer_norm_rms_epsilon"]}, "layer_norm_rms_epsilon: is missing"),
    "no heads": ({"without": ["*.attention.head_count"]}, "attention.head_count: is missing"),
    "no context": ({"without": ["*.context_length"]}, "context_length: is missing"),
    "no width": ({"without": ["*.embedding_length"]}, "embedding_length: is missing"),
    "no MLP": ({"without": ["*.feed_forward_length"]}, "feed_forward_length: is missing"),
    "no layers": ({"without": ["*.block_count"]}, "block_count: is missing"),
    "values of another width": ({"keys": {"*.attention.value_length": 8}}, "attention.value_length: 8"),
}


def written(folder: Path, family: str, changes: Mapping[str, Any]) -> tuple[Path, dict[str, np.ndarray]]:
    """A file of a random model with some keys changed, and the tensors it holds."""
    changes = dict(changes)
    config = FAMILIES[family]
    keys = {name.replace("*", family): value for name, value in changes.pop("keys", {}).items()}
    without = [name.replace("*", family) for name in changes.pop("without", [])]
    tensors = random_tensors(folder / "hf", config)
    return write_gguf(folder / "x.gguf", config, tensors, keys=keys, without=without, **changes), tensors


def converted(source: Path) -> Path:
    """The folder that a file is converted into."""
    folder = source.parent / "converted"
    folder.mkdir(exist_ok=True)
    model, shape = convert.begin(source, folder)
    convert.write_weights(model, shape, folder, "fp32", lambda _: None)
    convert.seal(folder, lambda _: None)
    return folder


def save(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """The same weights as transformers saves them."""
    random_tensors(folder, config)  # writes config.json
    as_torch = {name: torch.from_numpy(values) for name, values in tensors.items()}
    save_file(as_torch, folder / "model.safetensors", {"format": "pt"})
    return folder


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of logits, as a share of the largest logit."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("case", EQUAL)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_file_leaves_out_is_what_llama_cpp_reads(family: str, case: str, tmp_path: Path) -> None:
    changes, meaning = EQUAL[case]
    source, tensors = written(tmp_path, family, changes)
    theirs = their_logits(save(tmp_path / "peer", FAMILIES[family] | meaning, tensors))
    folder = converted(source)
    assert difference(our_logits(folder), theirs) < TOLERANCE
    assert difference(their_logits(folder), theirs) < TOLERANCE, "config.json says it to transformers as well"


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_computed_is_named(family: str, case: str, tmp_path: Path) -> None:
    changes, names = REFUSED[case]
    source, _ = written(tmp_path, family, changes)
    with pytest.raises(LadderError) as caught:
        converted(source)
    assert str(caught.value).startswith(f"{source}: ")
    assert names in str(caught.value)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_frequencies_of_a_family_that_has_none_are_refused(family: str, tmp_path: Path) -> None:
    source, _ = written(tmp_path, family, {"extra": {"rope_freqs.weight": np.ones(8, np.float32)}})
    with pytest.raises(LadderError, match=r"rope_freqs\.weight"):
        converted(source)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_a_head_is_tied_only_if_it_is_the_embedding(share: float, tmp_path: Path) -> None:
    """A head that was trained away from the embedding a little is a head of its own."""
    config = FAMILIES["llama"]
    tensors = random_tensors(tmp_path / "hf", config)
    embedding = tensors["model.embed_tokens.weight"]
    noise = np.random.default_rng(3).standard_normal(embedding.shape).astype(np.float32)
    head = embedding + np.float32(share * np.abs(embedding).mean()) * noise
    tensors["lm_head.weight"] = head
    source = write_gguf(tmp_path / "x.gguf", config, tensors)
    theirs = their_logits(save(tmp_path / "peer", config, tensors))
    assert difference(our_logits(converted(source)), theirs) < TOLERANCE


def test_a_head_that_differs_in_a_few_rows_is_a_head_of_its_own(tmp_path: Path) -> None:
    config = FAMILIES["llama"]
    tensors = random_tensors(tmp_path / "hf", config)
    head = tensors["model.embed_tokens.weight"].copy()
    head[7] *= -1
    tensors["lm_head.weight"] = head
    source = write_gguf(tmp_path / "x.gguf", config, tensors)
    theirs = their_logits(save(tmp_path / "peer", config, tensors))
    assert difference(our_logits(converted(source)), theirs) < TOLERANCE
