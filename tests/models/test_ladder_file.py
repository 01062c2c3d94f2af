"""Ladder files: exact numbers without loading anything, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from molt.core.ladder import Route, RouteKind
from molt.errors import LadderError
from molt.formats.weights_file import weights_sha256
from molt.models import predict
from molt.models.ladder_file import LadderFile, LadderSpec, ladder_names, resolve
from molt.models.loader import load
from molt.models.model_config import read_shape
from tests.models.tiny import QWEN2, write_config, write_ladder, write_model, write_tokenizer

SMALL = QWEN2 | {"num_hidden_layers": 1, "head_dim": 4}
LADDER = """name: tiny
rungs:
  - {name: big, source: {folder: models/big}, precision: fp32}
  - {name: small, source: {folder: models/small}, precision: fp32}
  - {name: small8, source: {folder: models/small}, precision: int8}
maps: {folder: maps}
"""


@pytest.fixture
def ladder(tmp_path: Path) -> Path:
    """A good ladder of two models and three rungs; tests break it."""
    write_model(tmp_path / "models/big", QWEN2)
    write_model(tmp_path / "models/small", SMALL, seed=1)
    write_tokenizer(tmp_path / "models")
    return write_ladder(tmp_path, LADDER)


def write_map(folder: Path, name: str, values: int, dtype: torch.dtype = torch.float16) -> None:
    folder.mkdir(exist_ok=True)
    save_file({"a": torch.zeros(values, dtype=dtype), "b": torch.zeros(2, 3, dtype=dtype)}, folder / name)


# --- what a good ladder means ---


def test_numbers_are_those_of_the_loaded_models(ladder: Path) -> None:
    spec = resolve(ladder)
    assert spec.ladder.name == "tiny"
    assert [rung.name for rung in spec.ladder.rungs] == ["big", "small", "small8"]
    assert [rung.weights for rung in spec.ladder.rungs] == ["big", "small", "small"]
    for rung in spec.ladder.rungs:
        assert load(spec.rung(rung.name)).weight_bytes == rung.weight_bytes
        assert rung.max_positions == QWEN2["max_position_embeddings"]
    assert spec.ladder.rung("small").kv.bytes_per_token == 2 * 1 * 2 * 4 * 4
    assert spec.ladder.rung("small").kv == spec.ladder.rung("small8").kv
    assert spec.vocabulary == 90
    assert spec.tokenizer == ladder.parent / "models/tokenizer.json"


def test_equal_weights_carry_and_everything_else_is_read_again_without_maps(ladder: Path) -> None:
    routes = resolve(ladder).ladder.routes
    assert routes == (
        Route("small", "small8", RouteKind.CARRY),
        Route("small8", "small", RouteKind.CARRY),
    )


def test_a_map_serves_every_precision_of_its_weights(ladder: Path) -> None:
    """Its bytes are those it has in float32, whatever it is stored in."""
    write_map(ladder.parent / "maps", "big--small.safetensors", 10)
    spec = resolve(ladder)
    project = {route for route in spec.ladder.routes if route.kind is RouteKind.PROJECT}
    assert project == {
        Route("big", "small", RouteKind.PROJECT, 4 * 16),
        Route("big", "small8", RouteKind.PROJECT, 4 * 16),
    }
    assert spec.maps == {("big", "small"): ladder.parent / "maps/big--small.safetensors"}
    assert spec.ladder.route("small", "big").kind is RouteKind.REREAD


def test_a_ladder_of_one_rung_needs_no_routes(ladder: Path) -> None:
    one = "name: one\nrungs: [{name: only, source: {folder: models/big}, precision: bf16}]"
    assert resolve(write_ladder(ladder.parent, one)).ladder.routes == ()


def test_rungs_may_bring_equal_tokenizers_and_padded_embeddings(ladder: Path) -> None:
    models = ladder.parent / "models"
    write_model(models / "small", SMALL | {"vocab_size": 93})
    for name in ("big", "small"):
        write_tokenizer(models / name)
    older = json.loads((models / "small/tokenizer.json").read_text())
    older["model"]["merges"] = [" ".join(pair) for pair in older["model"]["merges"]]
    (models / "small/tokenizer.json").write_text(json.dumps(older))
    assert resolve(ladder).tokenizer == models / "big/tokenizer.json"


def test_shipped_ladders_resolve_by_name() -> None:
    assert "pico" in ladder_names()
    pico = resolve("pico")
    assert [rung.precision for rung in pico.ladder.rungs] == ["fp32", "fp32", "int8"]
    assert pico.rung("tier2").weights == "tier1"
    assert pico.ladder.rung("tier0").kv.head_dim != pico.ladder.rung("tier1").kv.head_dim


def test_resolving_needs_no_tensor_library() -> None:
    code = (
        "import sys; from molt.models.ladder_file import resolve; resolve('pico');"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_hashes_follow_the_weights(ladder: Path) -> None:
    big = ladder.parent / "models/big"
    before = weights_sha256(big)
    assert before == weights_sha256(big) != weights_sha256(ladder.parent / "models/small")
    time.sleep(0.01)  # the cache goes by size and time of change
    write_model(big, QWEN2, seed=5)
    assert weights_sha256(big) != before


def test_a_schema_for_editors_can_be_exported() -> None:
    assert LadderFile.model_json_schema()["properties"].keys() == {"name", "rungs", "maps"}


# --- ladder files that are wrong ---

BROKEN_FILES: dict[str, tuple[str, str]] = {
    "unknown key": (LADDER.replace("maps:", "mapz:"), "line 6: mapz: unknown key; did you mean 'maps'?"),
    "unknown key of a rung": (
        LADDER.replace("precision: int8", "precison: int8"),
        "line 5: rungs[2].precison: unknown key; did you mean 'precision'?",
    ),
    "unknown key of a source": (
        LADDER.replace("{folder: models/big}", "{foldr: models/big}"),
        "line 3: rungs[0].source.foldr: unknown key; did you mean 'folder'?",
    ),
    "duplicate key": (LADDER + "name: again\n", "line 7: key 'name' a second time (first on line 1)"),
    "unknown precision": (
        LADDER.replace("int8}", "int4}"),
        "line 5: rungs[2].precision: 'int4' is not known; did you mean 'int8'?",
    ),
    "no rungs": ("name: x\nrungs: []", "line 2: rungs: []: tuple should have at least 1 item"),
    "rungs missing": ("name: x", "line 1: rungs: is missing"),
    "name of a wrong type": (
        LADDER.replace("name: tiny", "name: 7"),
        "line 1: name: 7: input should be a valid",
    ),
    "name that breaks map files": (
        LADDER.replace("name: big", "name: big--small"),
        "line 3: rungs[0].name: 'big--small': string should match pattern",
    ),
    "source is text": (
        LADDER.replace("{folder: models/big}", "models/big"),
        "line 3: rungs[0].source: 'models/big': input should be an object",
    ),
    "empty": ("", "the file is empty"),
    "a list": ("- a", "line 1: ['a']: input should be an object"),
    "an object to build": ("name: !!python/object/apply:os.getcwd []", "line 1: tag"),
    "same name twice": (
        LADDER.replace("name: small8", "name: small"),
        "rungs[2].name: 'small' a second time",
    ),
    "wrong order": (
        "name: x\nrungs:\n- {name: small, source: {folder: models/small}, precision: fp32}\n"
        "- {name: big, source: {folder: models/big}, precision: fp32}",
        "rungs[1] (big): ",
    ),
    "same rung twice": (LADDER.replace("int8}", "fp32}"), "not fewer than the"),
    "folder missing": (LADDER.replace("models/big", "models/bug"), "rungs[0] (big): "),
    "package missing": (
        LADDER.replace("{folder: models/big}", "{package: no_such_package, path: x}"),
        "rungs[0] (big): package 'no_such_package' is not installed",
    ),
    "path leaves the package": (
        LADDER.replace("{folder: models/big}", "{package: molt.models, path: ../../etc}"),
        "rungs[0] (big): path '../../etc' leaves the package",
    ),
    "hub model not pinned": (
        LADDER.replace("{folder: models/big}", "{hub: org/name, revision: main}"),
        "line 3: rungs[0].source.revision: 'main': string should match pattern",
    ),
    "hub model without a revision": (
        LADDER.replace("{folder: models/big}", "{hub: org/name}"),
        "line 3: rungs[0].source.revision: is missing",
    ),
    "package of maps missing": (
        LADDER.replace("{folder: maps}", "{package: no_such_package, path: x}"),
        "maps: package 'no_such_package' is not installed",
    ),
}


def refusal(path: Path) -> str:
    """The message with which a ladder file is refused: one line, beginning with the file."""
    with pytest.raises(LadderError) as caught:
        resolve(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("text", "reason"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_broken_file_is_one_line(ladder: Path, text: str, reason: str) -> None:
    assert reason in refusal(write_ladder(ladder.parent, text))


def test_bytes_that_are_no_text_are_one_line(ladder: Path) -> None:
    ladder.write_bytes(LADDER.replace("tiny", "\xe9").encode("latin-1"))
    assert "line 1: not UTF-8 (byte 0xe9)" in refusal(ladder)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(LadderError, match=r"^[^\n]*no ladder is named 'pcio'; did you mean 'pico'\?$"):
        resolve("pcio")


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.yaml")


# --- sources that are wrong ---


def change_config(**changes: Any) -> Callable[[Path], object]:
    return lambda models: write_config(models / "small", {**SMALL, **changes})


def without(key: str) -> Callable[[Path], object]:
    return lambda models: write_config(models / "small", {name: SMALL[name] for name in SMALL if name != key})


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda models: (models / "small" / name).write_bytes(content)


def remove(name: str) -> Callable[[Path], object]:
    return lambda models: (models / "small" / name).unlink()


def no_files_but_an_index(models: Path) -> None:
    remove("model.safetensors")(models)
    write("model.safetensors.index.json", b'{"weight_map": 3}')(models)


def cut(count: int) -> Callable[[Path], object]:
    """Cut ``count`` bytes off the end of the weights."""

    def breakage(models: Path) -> None:
        file = models / "small/model.safetensors"
        file.write_bytes(file.read_bytes()[:-count])

    return breakage


def pickle_instead(models: Path) -> None:
    (models / "small/model.safetensors").rename(models / "small/pytorch_model.bin")


def other_tokenizer(entries: int = 90, **changes: str) -> Callable[[Path], object]:
    return lambda models: write_tokenizer(models / "small", entries, **changes)


def store_as(dtype: torch.dtype) -> Callable[[Path], object]:
    return lambda models: write_model(models / "small", SMALL, dtype=dtype)


BROKEN_SOURCES: dict[str, tuple[Callable[[Path], object], str]] = {
    "config missing": (remove("config.json"), "config.json: No such file"),
    "config no JSON": (write("config.json", b'{"a": 1,\n}'), "config.json: line 2: not JSON"),
    "config not UTF-8": (write("config.json", b'{"a": "\xff"}'), "config.json: not UTF-8 (byte 0xff)"),
    "config a list": (write("config.json", b"[]"), "config.json: [] is no table of settings"),
    "code of its own": (change_config(auto_map={"AutoModel": "x.Y"}), "config.json: auto_map asks to run"),
    "quantised": (change_config(quantization_config={"bits": 4}), "quantization_config: only unquantised"),
    "another architecture": (
        change_config(model_type="deepseek_v3"),
        "model_type: 'deepseek_v3' caches a compressed state instead of keys and values; "
        "supported: llama, mistral, qwen2, qwen3",
    ),
    "sliding windows in some layers": (
        change_config(model_type="gemma3_text"),
        "model_type: 'gemma3_text' alternates layers with sliding windows and layers with full attention",
    ),
    "unknown family": (
        change_config(model_type="gpt2"),
        "model_type: 'gpt2' is not supported; supported: llama",
    ),
    "model type missing": (without("model_type"), "model_type: None is not supported"),
    "another head": (
        change_config(architectures=["Qwen2ForSequenceClassification"]),
        "architectures: ['Qwen2ForSequenceClassification'], only Qwen2ForCausalLM is supported",
    ),
    "hidden size missing": (without("hidden_size"), "hidden_size: is missing"),
    "hidden size is text": (
        change_config(hidden_size="48"),
        "hidden_size: '48': input should be a valid integer",
    ),
    "layers negative": (
        change_config(num_hidden_layers=-1),
        "num_hidden_layers: -1: input should be greater",
    ),
    "KV heads missing": (without("num_key_value_heads"), "num_key_value_heads: is missing"),
    "KV heads do not divide": (
        change_config(num_key_value_heads=3),
        "num_key_value_heads: 3 does not divide",
    ),
    "head_dim odd": (change_config(head_dim=5), "head_dim: 5 is odd"),
    "head_dim not whole": (
        change_config(head_dim=None, hidden_size=50),
        "hidden_size: 50 is no multiple of num_attention_heads 4",
    ),
    "activation": (change_config(hidden_act="swiglu"), "hidden_act: 'swiglu' is not supported"),
    "sliding window": (
        change_config(use_sliding_window=True, sliding_window=16, max_window_layers=0),
        "sliding_window: 16: sliding windows are not supported",
    ),
    "sliding layers": (
        change_config(layer_types=["sliding_attention"]),
        "layer_types: 'sliding_attention' is not supported",
    ),
    "window as the default": (
        change_config(model_type="mistral", architectures=None),
        "sliding_window: 4096: sliding windows are not supported",
    ),
    "latent attention": (
        change_config(kv_lora_rank=512),
        "kv_lora_rank: 512 means multi-head latent attention",
    ),
    "RoPE longrope": (
        change_config(rope_parameters=None, rope_scaling={"type": "longrope", "factor": 4.0}),
        "rope_scaling: RoPE variant 'longrope' is not supported; valid: default, linear, llama3, yarn",
    ),
    "RoPE by an older field beside a newer one": (
        change_config(
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            rope_scaling={"type": "dynamic", "factor": 2.0},
        ),
        "rope_scaling: RoPE variant 'dynamic' is not supported",
    ),
    "RoPE dynamic": (
        change_config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "rope_parameters: RoPE variant 'dynamic' is not supported",
    ),
    "RoPE without a factor": (
        change_config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4}),
        "rope_parameters.factor: None is no positive number",
    ),
    "RoPE over a part": (
        change_config(partial_rotary_factor=0.5),
        "partial_rotary_factor: 0.5: RoPE over a part",
    ),
    "RoPE by layer": (
        change_config(rope_parameters={"full_attention": {"rope_type": "default"}}),
        "rope_parameters: RoPE that differs between layers",
    ),
    "weights missing": (remove("model.safetensors"), "model.safetensors: no such file"),
    "weights a pickle": (pickle_instead, "pytorch_model.bin: a pickle, which could run code"),
    "weights truncated": (cut(1), "model.safetensors: truncated"),
    "weights cut in the header": (
        lambda models: write("model.safetensors", (models / "small/model.safetensors").read_bytes()[:40])(
            models
        ),
        "model.safetensors: truncated or no safetensors file (40 bytes)",
    ),
    "weights empty": (
        write("model.safetensors", b""),
        "model.safetensors: truncated or no safetensors file (0 b",
    ),
    "weights garbage": (write("model.safetensors", b"\x08" + b"\0" * 7 + b"[1,2,3]x"), "header is damaged"),
    "weights of another shape": (
        change_config(head_dim=8),
        "model.layers.0.self_attn.q_proj.weight is (16, 48), config.json means (32, 48)",
    ),
    "weights lack a layer": (change_config(num_hidden_layers=2), "the weights lack model.layers.1."),
    "weights with a layer too many": (
        lambda models: write_config(write_model(models / "small", SMALL | {"num_hidden_layers": 2}), SMALL),
        "model.layers.1.input_layernorm.weight is no parameter of a qwen2 of this shape",
    ),
    "weights of a wide type": (store_as(torch.float64), " is F64; valid: F32, BF16, F16"),
    "index without files": (no_files_but_an_index, "weight_map is missing or no table"),
    "tokenizer missing": (remove("../tokenizer.json"), "no tokenizer.json there"),
    "tokenizer damaged": (
        write("tokenizer.json", b'{"model": {"vocab": []}}'),
        "tokenizer.json: no vocabulary",
    ),
    "tokenizer with another entry": (
        other_tokenizer(t7="cat", t9="dog"),
        "not the tokenizer of big: token 7 is 't7' in",
    ),
    "tokenizer with another added token": (other_tokenizer(end="</s>"), "token 89 is '<|end|>' in"),
    "tokenizer with fewer entries": (other_tokenizer(80), "token 79 is 't79' in"),
    "tokenizer with another merge": (other_tokenizer(merge="2"), "merge 1 is 't 1' in"),
    "vocabulary larger than the embedding": (
        lambda models: write_model(models / "small", SMALL | {"vocab_size": 89}),
        "vocab_size: 89, but ",
    ),
}


@pytest.mark.parametrize(("breakage", "reason"), BROKEN_SOURCES.values(), ids=BROKEN_SOURCES)
def test_a_broken_source_is_one_line(ladder: Path, breakage: Callable[[Path], object], reason: str) -> None:
    breakage(ladder.parent / "models")
    message = refusal(ladder)
    assert reason in message
    assert "rungs[" in message


def test_a_damaged_map_is_one_line(ladder: Path) -> None:
    write_map(ladder.parent / "maps", "big--small.safetensors", 10)
    file = ladder.parent / "maps/big--small.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert "big--small.safetensors: truncated" in refusal(ladder)


def test_unused_window_settings_are_no_reason_to_refuse(ladder: Path) -> None:
    """Published Qwen2.5 files name a window that no layer uses."""
    for settings in (
        {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["full_attention"]},
    ):
        change_config(**settings)(ladder.parent / "models")
        assert resolve(ladder).ladder.bottom.name == "small8"


# --- the hub ---

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_ladder(ladder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ladder whose first rung is a hub model, with an empty cache and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(ladder.parent / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    source = f"{{hub: org/name, revision: {REVISION}}}"
    return write_ladder(ladder.parent, LADDER.replace("{folder: models/big}", source))


def cached(ladder: Path) -> Path:
    return ladder.parent / f"cache/models--org--name/snapshots/{REVISION}"


def test_a_hub_model_in_the_cache_is_a_folder(hub_ladder: Path) -> None:
    write_tokenizer(write_model(cached(hub_ladder), QWEN2))
    spec: LadderSpec = resolve(hub_ladder)
    assert spec.rungs[0].folder == cached(hub_ladder)
    assert spec.ladder.top.weight_bytes == predict.weight_bytes(read_shape(cached(hub_ladder)), "fp32")


def test_a_hub_model_that_is_not_here_is_one_line_that_says_how_to_bring_it(hub_ladder: Path) -> None:
    where, remedy = "rungs[0] (big): hub model org/name at 0123456789ab: ", f"molt ladders fetch {hub_ladder}"
    assert f"{where}not in the local cache; bring it with: {remedy}" in refusal(hub_ladder)
    write_config(cached(hub_ladder), QWEN2)  # as a download leaves it that was interrupted
    assert f"{where}incomplete in the local cache" in refusal(hub_ladder)
    assert "model.safetensors: no such file" in refusal(hub_ladder)


def test_a_hub_model_that_lacks_a_shard_is_one_line(hub_ladder: Path) -> None:
    write_config(cached(hub_ladder), QWEN2)
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (cached(hub_ladder) / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors: named by" in refusal(hub_ladder)
