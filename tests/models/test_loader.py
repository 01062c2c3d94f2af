"""Loading a rung: the model transformers would load, every byte in memory, refusals instead of surprises."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from molt.errors import LadderError
from molt.models import image, loader
from molt.models.ladder_file import Precision, RungSpec
from molt.models.loader import find_image, load, prepare
from molt.models.model_config import read_shape
from tests.models.live_bytes import LiveBytes
from tests.models.tiny import LLAMA3_ROPE, QWEN2, all_logits, write_model

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
    "llama tied, as SmolLM2": QWEN2
    | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rope_parameters": None,
        "rope_theta": 1e5,
    }
    | {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "head_dim": 8},
    "mistral": QWEN2
    | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
}
MODELS["qwen2 untied, derived head_dim"].pop("head_dim")
TOKENS = [3, 14, 15, 92, 65, 35]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def spec(folder: Path, precision: Precision = "fp32") -> RungSpec:
    return RungSpec("rung", "rung", folder, precision, read_shape(folder))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_logits_are_those_of_transformers(
    tmp_path: Path, config: dict[str, Any], precision: Precision
) -> None:
    """In bfloat16 the two round at different places: they are as near to each other as to float32."""
    folder = write_model(tmp_path, config, dtype=torch.float16)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[precision], local_files_only=True)
    ours = all_logits(spec(folder, precision), TOKENS)
    tolerance = 2e-5 if precision == "fp32" else 0.1
    torch.testing.assert_close(
        ours, theirs(torch.tensor([TOKENS])).logits[0].float(), rtol=tolerance, atol=tolerance
    )


def test_a_tied_head_is_the_embedding_and_counts_once(tmp_path: Path) -> None:
    tied = load(spec(write_model(tmp_path / "tied", QWEN2)))
    untied = load(spec(write_model(tmp_path / "untied", QWEN2 | UNTIED)))
    assert untied.weight_bytes - tied.weight_bytes == 4 * QWEN2["vocab_size"] * QWEN2["hidden_size"]
    assert untied.decoder.head is not untied.decoder.embedding
    int8 = load(spec(tmp_path / "tied", "int8")).decoder
    assert int8.head is int8.embedding


def test_several_files_load_as_one(tmp_path: Path) -> None:
    single, several = write_model(tmp_path / "single", QWEN2), tmp_path / "several"
    tensors = load_file(single / "model.safetensors")
    shutil.copytree(single, several, ignore=lambda *_: ["model.safetensors"])
    files = {name: f"model-{1 + index % 2}-of-2.safetensors" for index, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, several / file)
    (several / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert torch.equal(all_logits(spec(several), TOKENS), all_logits(spec(single), TOKENS))
    (several / "model-2-of-2.safetensors").unlink()
    with pytest.raises(LadderError, match=r"model-2-of-2\.safetensors: named by .*, but missing$"):
        load(spec(several))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_reading_in_blocks_changes_nothing(
    tmp_path: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path, QWEN2, dtype=torch.bfloat16)
    whole = bytes(load(spec(folder, precision)).arena.memory)
    monkeypatch.setattr(loader, "BLOCK_BYTES", 500)  # a few rows, and not a multiple of one
    assert bytes(load(spec(folder, precision)).arena.memory) == whole


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
    views = rung.weight_bytes  # tensors of the arena, which is one storage to each of them
    assert seen.peak <= views + 8 * block


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


def test_settings_out_of_range_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(LadderError, match=r"^[^\n]*config\.json[^\n]*rms_norm_eps[^\n]*$"):
        write_model(tmp_path, QWEN2 | {"rms_norm_eps": "small"})


# ----------------------------------------------------------------------------------------- images and mappings


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_an_image_holds_the_very_bytes_that_loading_makes(tmp_path: Path, precision: Precision) -> None:
    rung = spec(write_model(tmp_path / "model", QWEN2, dtype=torch.bfloat16), precision)
    made = bytes(load(rung).arena.memory)
    assert find_image(rung) is None
    path = prepare(rung)
    assert prepare(rung) == path
    assert set(load_file(path)) == {slot.name for slot in image.layout(rung.shape, precision)}
    assert bytes(load(rung).arena.memory) == made
    assert bytes(load(replace(rung, residency="mapped")).arena.memory) == made


def test_a_model_in_the_order_of_an_image_is_its_own(tmp_path: Path) -> None:
    rung = spec(write_model(tmp_path / "model", QWEN2))
    shutil.move(prepare(rung), tmp_path / "model/model.safetensors")
    assert find_image(rung) == (tmp_path / "model/model.safetensors", image.PAGE_BYTES)


def test_a_mapped_rung_needs_an_image(tmp_path: Path) -> None:
    rung = replace(spec(write_model(tmp_path / "model", QWEN2), "int8"), residency="mapped")
    with pytest.raises(LadderError, match=r"rung is to be mapped, but no image of it at int8 was prepared"):
        load(rung)


def test_writing_to_mapped_weights_changes_no_file(tmp_path: Path) -> None:
    rung = spec(write_model(tmp_path / "model", QWEN2))
    path = prepare(rung)
    before = path.read_bytes()
    load(replace(rung, residency="mapped")).decoder.norm.zero_()
    assert path.read_bytes() == before


def test_an_image_is_out_of_date_when_its_model_changes(tmp_path: Path) -> None:
    rung = spec(write_model(tmp_path / "model", QWEN2))
    prepare(rung)
    write_model(tmp_path / "model", QWEN2, seed=1)
    assert find_image(rung) is None


@pytest.mark.parametrize("damage", ["torn", "garbage"])
def test_a_damaged_image_is_refused_and_made_again(tmp_path: Path, damage: str) -> None:
    rung = spec(write_model(tmp_path / "model", QWEN2), "int8")
    path = prepare(rung)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if damage == "torn" else b"x" * len(whole))
    with pytest.raises(LadderError, match=re.escape(str(path))):
        load(rung)
    assert prepare(rung) == path
    assert path.read_bytes() == whole


def test_an_interrupted_image_leaves_nothing(tmp_path: Path) -> None:
    shape = read_shape(write_model(tmp_path / "model", QWEN2))

    def fail(name: str) -> torch.Tensor:
        raise KeyError(name)

    with pytest.raises(KeyError):
        image.write(tmp_path / "image.safetensors", image.layout(shape, "fp32"), fail)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_deleting_the_file_under_anonymous_weights_is_harmless(tmp_path: Path) -> None:
    folder = write_model(tmp_path, QWEN2)
    decoder = load(spec(folder)).decoder
    (folder / "model.safetensors").write_bytes(b"")
    assert decoder.embed(TOKENS).isfinite().all()
