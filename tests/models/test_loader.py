"""Loading a rung: the model transformers would load, every byte in memory, refusals instead of surprises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from molt.errors import LadderError
from molt.models import loader
from molt.models.ladder_file import Precision, RungSpec
from molt.models.loader import load, weight_bytes
from molt.models.model_config import read_shape
from tests.models.live_bytes import LiveBytes
from tests.models.tiny import LLAMA3_ROPE, QWEN2, write_model

UNTIED = {"tie_word_embeddings": False}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": QWEN2,
    "qwen2 untied, derived head_dim": {**QWEN2, **UNTIED, "head_dim": None},
    "llama, llama3 rope": QWEN2
    | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_parameters": LLAMA3_ROPE}
    | {"attention_bias": True, "mlp_bias": True},
    "llama, linear rope as older files write it": QWEN2
    | {"model_type": "llama", "architectures": None, "rope_parameters": None, "rope_theta": 2e4}
    | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "qwen3": QWEN2 | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "mistral": QWEN2
    | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
}
MODELS["qwen2 untied, derived head_dim"].pop("head_dim")
TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35]])
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def spec(folder: Path, precision: Precision = "fp32") -> RungSpec:
    return RungSpec("rung", "rung", folder, precision, read_shape(folder))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_logits_are_those_of_from_pretrained(
    tmp_path: Path, config: dict[str, Any], precision: Precision
) -> None:
    folder = write_model(tmp_path, config, dtype=torch.float16)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[precision], local_files_only=True)
    rung = load(spec(folder, precision))
    assert not rung.model.training
    assert torch.equal(rung.model(TOKENS).logits, theirs(TOKENS).logits)


def test_a_tied_head_is_the_embedding_and_counts_once(tmp_path: Path) -> None:
    tied = load(spec(write_model(tmp_path / "tied", QWEN2)))
    untied = load(spec(write_model(tmp_path / "untied", QWEN2 | UNTIED)))
    assert untied.weight_bytes - tied.weight_bytes == 4 * QWEN2["vocab_size"] * QWEN2["hidden_size"]
    int8 = load(spec(tmp_path / "tied", "int8")).model
    assert int8.lm_head.weight.data_ptr() == int8.model.embed_tokens.weight.data_ptr()
    assert int8.lm_head.scale.data_ptr() == int8.model.embed_tokens.scale.data_ptr()


def test_several_files_load_as_one(tmp_path: Path) -> None:
    single, several = write_model(tmp_path / "single", QWEN2), tmp_path / "several"
    tensors = load_file(single / "model.safetensors")
    shutil.copytree(single, several, ignore=lambda *_: ["model.safetensors"])
    files = {name: f"model-{1 + index % 2}-of-2.safetensors" for index, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, several / file)
    (several / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert torch.equal(load(spec(several)).model(TOKENS).logits, load(spec(single)).model(TOKENS).logits)
    (several / "model-2-of-2.safetensors").unlink()
    with pytest.raises(LadderError, match=r"model-2-of-2\.safetensors: named by .*, but missing$"):
        load(spec(several))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_reading_in_blocks_changes_nothing(
    tmp_path: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path, QWEN2, dtype=torch.bfloat16)
    whole = load(spec(folder, precision)).model.state_dict()
    monkeypatch.setattr(loader, "BLOCK_BYTES", 500)  # a few rows, and not a multiple of one
    in_blocks = load(spec(folder, precision)).model.state_dict()
    assert whole.keys() == in_blocks.keys()
    assert all(torch.equal(whole[name], in_blocks[name]) for name in whole)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_loading_needs_the_loaded_model_and_a_few_blocks(
    tmp_path: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No moment holds a model in the precision of its file and in that of its rung."""
    folder = write_model(tmp_path, QWEN2 | {"vocab_size": 600}, dtype=torch.bfloat16)
    block = 4096
    monkeypatch.setattr(loader, "BLOCK_BYTES", block)
    with LiveBytes() as seen:
        rung = load(spec(folder, precision))
    assert rung.weight_bytes <= seen.peak <= rung.weight_bytes + 8 * block


def test_a_stored_copy_of_a_tied_head_is_not_paid_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path, QWEN2)
    tensors = load_file(folder / "model.safetensors")
    before = load(spec(folder)).weight_bytes
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors")
    assert load(spec(folder)).weight_bytes == before
    tensors["lm_head.weight"][7, 7] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(LadderError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load(spec(folder))


def test_weights_that_are_not_as_predicted_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path, QWEN2)
    real = weight_bytes(load(spec(folder)).model)
    monkeypatch.setattr(loader, "weight_bytes", lambda model: real + 4)
    with pytest.raises(LadderError, match=rf"rung has {real + 4} bytes of weights, predicted {real}$"):
        load(spec(folder))


def test_settings_that_only_transformers_knows_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_model(tmp_path, QWEN2 | {"rms_norm_eps": "small"})
    with pytest.raises(
        LadderError, match=r"^[^\n]*config\.json: transformers refuses it: [^\n]*rms_norm_eps[^\n]*$"
    ):
        load(spec(folder))


def test_no_gradients_and_no_file_mapping(tmp_path: Path) -> None:
    """Deleting the file under a loaded model is harmless: nothing of it is still to be read."""
    folder = write_model(tmp_path, QWEN2)
    model = load(spec(folder)).model
    (folder / "model.safetensors").write_bytes(b"")
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model(TOKENS).logits.isfinite().all()
