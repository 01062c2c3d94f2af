"""Tiny GGUF files of random models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from molt.models import image
from molt.models.fetching.gguf_model import gguf_name
from molt.models.model_config import read_shape
from tests.models.tiny import write_config

CONFIG: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
QWEN2 = CONFIG | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
QWEN3 = CONFIG | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False}
LLAMA = CONFIG | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
F32 = gguf.GGMLQuantizationType.F32
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ")
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5


def random_tensors(folder: Path, config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """A random float32 tensor for every parameter of a model, by its name in transformers."""
    shape = read_shape(write_config(folder, dict(config)))
    generator = np.random.default_rng(seed)
    return {
        name: (generator.standard_normal(extents) * (0.2 if len(extents) == 2 else 1.0)).astype(np.float32)
        for name, extents in image.parameters(shape).items()
    }


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    kind: gguf.GGMLQuantizationType = F32,
    **changes: Any,
) -> Path:
    """Write a model, its matrices as ``kind``, with a small tokenizer.

    ``changes``: ``head`` and ``head_kind`` store a head of their own, ``keys`` are further metadata by name,
    ``extra`` further tensors, ``tokens`` another end of the vocabulary (text and type), ``pre`` its kind,
    ``types`` other types of its tokens by their text, ``without`` the keys that are left out.
    """
    architecture = config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    _add_tokenizer(writer, changes.get("pre", "qwen2"), changes.get("tokens", ()), changes.get("types", {}))
    for name, value in changes.get("keys", {}).items():
        writer.kv_data[0].pop(name, None)
        writer.add_key_value(name, value, value_type(value))
    for name in changes.get("without", ()):
        del writer.kv_data[0][name]
    for name, values in tensors.items():
        _add(writer, gguf_name(name), _as_stored(name, values, config), kind)
    if "head" in changes:
        _add(writer, "output.weight", changes["head"], changes.get("head_kind", kind))
    for name, values in changes.get("extra", {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_letters() -> list[str]:
    """The 256 letters of byte-level BPE, in GPT-2's order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + position) for position in range(len(others))]


def _add_tokenizer(
    writer: gguf.GGUFWriter, pre: str, more: tuple[tuple[str, int], ...], types: Mapping[str, int]
) -> None:
    tokens = [(text, 1) for text in (*byte_letters(), *(merge.replace(" ", "") for merge in MERGES))]
    tokens += [(text, CONTROL) for text in SPECIALS]
    tokens += [("<tool_call>", USER_DEFINED), *more]
    tokens += [(f"[PAD{token}]", UNUSED) for token in range(len(tokens), 300)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([types.get(text, kind) for text, kind in tokens])
    writer.add_token_merges(list(MERGES))
    texts = [text for text, _ in tokens]
    writer.add_bos_token_id(texts.index("<|endoftext|>"))
    writer.add_eos_token_id(texts.index("<|im_end|>"))
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")


def _as_stored(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Rows of queries and keys of a llama go from halves to pairs."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if config["model_type"] != "llama" or part not in heads:
        return values
    rows = values.shape[0] // heads[part] // 2
    halves = values.reshape(heads[part], 2, rows, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> None:
    if values.ndim == 1 or kind == F32:
        writer.add_tensor(name, np.ascontiguousarray(values))
    else:
        writer.add_tensor(name, quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)


def value_type(value: object) -> gguf.GGUFValueType:
    kinds = {
        bool: gguf.GGUFValueType.BOOL,
        int: gguf.GGUFValueType.UINT32,
        float: gguf.GGUFValueType.FLOAT32,
        str: gguf.GGUFValueType.STRING,
    }
    return kinds[type(value)]
