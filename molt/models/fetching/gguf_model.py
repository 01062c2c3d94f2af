"""A GGUF file as a model of transformers: its ``config.json``, and every parameter under its name there.

- ``llama`` files hold the rows of queries and keys in the order of interleaved RoPE; they are put back into
  halves. Source: ``LlamaModel.permute`` in llama.cpp's ``convert_hf_to_gguf.py``.
- A matrix that is embedding and head at once is often stored twice, at two precisions. Where both are nearly
  equal the more precise one is kept, as the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from molt.errors import LadderError
from molt.formats.yaml_file import nearest, show
from molt.models.fetching.gguf_file import PIECE_VALUES, GgufFile, GgufTensor, read_rows, read_values

if TYPE_CHECKING:
    import numpy as np

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
GGUF_EMBEDDING, GGUF_HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
LAYER_PARTS: Mapping[str, str] = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE_MODEL: Mapping[str, str] = {
    "model.embed_tokens.weight": GGUF_EMBEDDING,
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": GGUF_HEAD,
}
SAMPLED_ROWS = 32
ERROR_BY_BITS: tuple[tuple[float, float], ...] = (
    (32, 0.0),
    (16, 0.004),
    (8, 0.02),
    (6, 0.04),
    (5, 0.08),
    (4, 0.15),
    (3, 0.3),
    (0, 0.5),
)
"""By how much a matrix stored with so many bits a value may differ from the original, relative, with a margin."""
# Settings that change what a model computes and are not supported, with the values that change nothing.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "rope.scaling.attn_factor": (1.0,),
    "attention.scale": (0.0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_sections": (),
}
EXACT_BITS = 16
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, eq=False, slots=True)
class GgufModel:
    """A file of a supported architecture; ``config`` is the ``config.json``, ``embedding`` the tensor to take."""

    gguf: GgufFile
    config: Mapping[str, Any]
    embedding: GgufTensor

    def tensor(self, name: str) -> GgufTensor:
        """Where the parameter of that name in transformers is stored; ``LadderError`` if it is missing."""
        stored = gguf_name(name)
        if stored == GGUF_EMBEDDING:
            return self.embedding
        if stored not in self.gguf.tensors:
            raise LadderError(f"{self.gguf.path}: tensor {stored!r} is missing")
        return self.gguf.tensors[stored]

    def check(self, parameters: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ``LadderError`` unless the file has exactly these parameters (names and shapes of transformers)."""
        path = self.gguf.path
        for name, extents in parameters.items():
            tensor = self.tensor(name)
            if tensor.shape != extents:
                raise LadderError(
                    f"{path}: tensor {tensor.name!r} is {tensor.shape}, its keys mean {extents}"
                )
        used = {gguf_name(name) for name in parameters} | {ROPE_FACTORS}
        used |= {GGUF_HEAD} if self.config["tie_word_embeddings"] else set()
        if unknown := sorted(self.gguf.tensors.keys() - used):
            kind = self.config["model_type"]
            raise LadderError(f"{path}: tensor {show(unknown[0])} is no parameter of a {kind} of this shape")

    def read(self, name: str) -> np.ndarray:
        """A parameter in float32, in its shape and order in transformers; ``LadderError`` as in ``read_rows``."""
        values = read_values(self.gguf, self.tensor(name))
        if self.config["model_type"] != "llama":
            return values
        if ".q_proj." in name:
            return _halves(values, self.config["num_attention_heads"])
        if ".k_proj." in name:
            return _halves(values, self.config["num_key_value_heads"])
        return values


def open_model(gguf: GgufFile) -> GgufModel:
    """The model of a GGUF file; ``LadderError`` if its architecture or a setting of it is not supported."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = nearest(str(architecture), ARCHITECTURES)
        raise LadderError(
            f"{gguf.path}: general.architecture: {show(architecture)} is not supported; {known}"
        )
    if GGUF_EMBEDDING not in gguf.tensors:
        raise LadderError(f"{gguf.path}: tensor {GGUF_EMBEDDING!r} is missing")
    embedding, is_tied = _embedding(gguf)
    return GgufModel(gguf, _config(_Keys(gguf, str(architecture)), is_tied), embedding)


def gguf_name(name: str) -> str:
    """The name in a GGUF file of a parameter of transformers."""
    if name in WHOLE_MODEL:
        return WHOLE_MODEL[name]
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    module, kind = part.rsplit(".", 1)
    return f"blk.{layer}.{LAYER_PARTS[module]}.{kind}"


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of every head from the order of interleaved RoPE (pairs) to that of transformers (halves)."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _embedding(gguf: GgufFile) -> tuple[GgufTensor, bool]:
    """The tensor to take as the embedding, and whether it is the head as well."""
    import numpy as np

    embedding, head = gguf.tensors[GGUF_EMBEDDING], gguf.tensors.get(GGUF_HEAD)
    if head is None:
        return embedding, True
    if head.shape != embedding.shape:
        return embedding, False
    tolerance = _error(embedding) + _error(head)
    count = embedding.values // embedding.shape[-1]
    samples = [(int(row), 1) for row in np.linspace(0, count - 1, SAMPLED_ROWS)]
    step = max(1, PIECE_VALUES // embedding.shape[-1])
    pieces = [(first, min(step, count - first)) for first in range(0, count, step)]
    is_exact = min(embedding.kind.bits, head.kind.bits) >= EXACT_BITS
    is_tied = _is_alike(gguf, embedding, head, samples, tolerance) and (
        not is_exact or all(_is_alike(gguf, embedding, head, [piece], tolerance) for piece in pieces)
    )
    return (head if is_tied and head.kind.bits > embedding.kind.bits else embedding), is_tied


def _error(tensor: GgufTensor) -> float:
    return next(error for bits, error in ERROR_BY_BITS if tensor.kind.bits >= bits)


def _is_alike(
    gguf: GgufFile, one: GgufTensor, other: GgufTensor, rows: Sequence[tuple[int, int]], tolerance: float
) -> bool:
    """Whether rows (first and count) of two matrices are those of one, stored twice; each row is compared if exact."""
    import numpy as np

    ours = np.concatenate([read_rows(gguf, one, first, count) for first, count in rows])
    theirs = np.concatenate([read_rows(gguf, other, first, count) for first, count in rows])
    axis = 1 if tolerance <= 2 * ERROR_BY_BITS[1][1] else None
    distance, size = np.linalg.norm(ours - theirs, axis=axis), np.linalg.norm(theirs, axis=axis)
    return bool((distance <= tolerance * size).all())


# --- config.json ---


class _Keys:
    """The keys of one architecture, by their name without it."""

    def __init__(self, gguf: GgufFile, architecture: str) -> None:
        self.gguf, self.architecture = gguf, architecture

    def count(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise self.refuse(name, f"{show(value)} is no count")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if type(value) not in (int, float) or not 0 < float(str(value)) < 1e30:
            raise self.refuse(name, f"{show(value)} is no positive number")
        return _short(value)

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.gguf.metadata

    def get(self, name: str) -> object:
        return self.gguf.metadata.get(f"{self.architecture}.{name}")

    def refuse(self, name: str, reason: str) -> LadderError:
        return LadderError(f"{self.gguf.path}: {self.architecture}.{name}: {reason}")

    def _value(self, name: str, default: float | None) -> Any:
        if not self.has(name) and default is None:
            raise self.refuse(name, "is missing")
        return self.get(name) if self.has(name) else default


def _config(keys: _Keys, is_tied: bool) -> dict[str, Any]:
    gguf = keys.gguf
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", keys.count("rope.dimension_count", max(1, hidden // heads)))
    if keys.count("rope.dimension_count", head_dim) != head_dim:
        raise keys.refuse("rope.dimension_count", "RoPE over a part of the head is not supported")
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise keys.refuse(
            "attention.value_length", f"{show(keys.get('attention.value_length'))} is not that of the keys"
        )
    for name, neutral in NEUTRAL.items():
        if keys.has(name) and keys.get(name) not in neutral:
            raise keys.refuse(name, f"{show(keys.get(name))} is not supported")
    if keys.has("expert_count") and keys.get("expert_count"):
        raise keys.refuse("expert_count", "a mixture of experts is not supported")
    return {
        "architectures": [ARCHITECTURES[keys.architecture]],
        "model_type": keys.architecture,
        "dtype": "float32",
        "vocab_size": gguf.tensors[GGUF_EMBEDDING].shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(keys, head_dim),
        "hidden_act": "silu",
        "attention_bias": keys.architecture != "qwen2" and "blk.0.attn_q.bias" in gguf.tensors,
        "tie_word_embeddings": is_tied,
        **{key: token for key, token in special_ids(gguf).items() if token is not None},
    }


def special_ids(gguf: GgufFile) -> dict[str, int | None]:
    """Token ids that begin, end and pad a text, by their key in ``config.json``; ``None`` where there is none."""
    size = gguf.tensors[GGUF_EMBEDDING].shape[0]
    ids: dict[str, int | None] = {}
    for key, name in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        token = gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token is not None and (type(token) is not int or not 0 <= token < size):
            place = f"{gguf.path}: tokenizer.ggml.{name}_token_id"
            raise LadderError(f"{place}: {show(token)} is none of the {size} tokens")
        ids[key] = token
    return ids


def _rope(keys: _Keys, head_dim: int) -> dict[str, Any]:
    """Rotary positions, with what llama.cpp reads where a key is missing: a factor without a type is linear."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.real("rope.freq_base", 10000.0)}
    kind = keys.get("rope.scaling.type") if keys.has("rope.scaling.type") else None
    if kind not in (None, "linear", "none"):
        raise keys.refuse("rope.scaling.type", f"{show(kind)} is not supported; valid: linear, none")
    older = keys.real("rope.scale_linear") if keys.has("rope.scale_linear") else 1.0
    factor = keys.real("rope.scaling.factor", None if kind == "linear" else older)
    is_scaled = kind != "none" and factor != 1.0
    if ROPE_FACTORS in keys.gguf.tensors:
        if is_scaled or keys.architecture != "llama":
            other = "a factor" if is_scaled else f"a {keys.architecture}"
            raise LadderError(f"{keys.gguf.path}: tensor {ROPE_FACTORS!r}: is not supported with {other}")
        return _llama3(keys, rope, head_dim)
    return rope | {"rope_type": "linear", "factor": factor} if is_scaled else rope


def _llama3(keys: _Keys, rope: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """The settings whose divisors of the frequencies the file holds; refused if they are not Llama 3's.

    Source: ``LlamaModel.generate_extra_tensors`` in llama.cpp's ``convert_hf_to_gguf.py``.
    """
    import numpy as np

    stored = read_values(keys.gguf, keys.gguf.tensors[ROPE_FACTORS]).reshape(-1)
    factor = float(stored.max())
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    turns = LLAMA3_ROPE["original_max_position_embeddings"] / wavelengths
    low, high = LLAMA3_ROPE["low_freq_factor"], LLAMA3_ROPE["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-3):
        raise LadderError(f"{keys.gguf.path}: tensor {ROPE_FACTORS!r}: not the frequencies of Llama 3's RoPE")
    return rope | {"rope_type": "llama3", "factor": factor} | LLAMA3_ROPE


def _short(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-06 for 9.999999974752427e-07."""
    import numpy as np

    return float(str(np.float32(value)))
