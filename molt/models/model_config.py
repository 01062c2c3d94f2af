"""The shape of a model from its ``config.json``, or the reason why the model cannot be a rung.

Supported: dense decoders of the families in ``FAMILIES`` with full attention in every layer (multi-head or
grouped-query) and rotary positions over the whole head. All else is refused by name rather than guessed at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from molt.errors import InputError, LadderError
from molt.formats.weights_file import read_json
from molt.formats.yaml_file import nearest, show, validate

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
NUMBER_MAX = 1e30
ROPE_THETA = 10_000.0  # where config.json is silent
ACTIVATION_NAMES = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
ORIGINAL_POSITIONS = "original_max_position_embeddings"
ROPE_NEEDED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
YARN_NUMBERS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
BETA_FAST, BETA_SLOW = 32.0, 1.0  # of YaRN, where config.json is silent
_ALTERNATING = "alternates layers with sliding windows and layers with full attention, each with its own RoPE"
REFUSED = {
    "gemma2": _ALTERNATING,
    "gemma3": _ALTERNATING,
    "gemma3_text": _ALTERNATING,
    "phi3": "turns a part of the head only, and more the longer the text",
    "deepseek_v3": "caches a compressed state instead of keys and values",
}
"""Families that are asked for and cannot be rungs, with the reason."""
# Keys that only appear where attention is not the plain kind, with the name of that kind.
OTHER_ATTENTION = {
    "kv_lora_rank": "multi-head latent attention",
    "q_lora_rank": "multi-head latent attention",
    "attn_logit_softcapping": "attention with soft-capped scores",
    "attention_chunk_size": "chunked attention",
    "no_rope_layers": "layers without rotary positions",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
}


@dataclass(frozen=True, slots=True)
class Family:
    """What a model type means where its ``config.json`` is silent: the defaults of transformers."""

    causal_lm: str  # class name in transformers.models.<type>.modeling_<type>
    qkv_bias: bool | None  # None: the key attention_bias decides, for the output projection too
    mlp_bias: bool = False  # whether the key mlp_bias counts
    qk_norm: bool = False
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    kv_heads_default: bool = False  # may num_key_value_heads be absent (then as many as heads)?
    window: Literal["never", "asked", "always"] = "never"  # "asked": only with use_sliding_window


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", qkv_bias=None, mlp_bias=True, kv_heads_default=True),
    "mistral": Family("MistralForCausalLM", qkv_bias=False, window="always"),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True, window="asked"),
    "qwen3": Family("Qwen3ForCausalLM", qkv_bias=None, qk_norm=True, head_dim=128, window="asked"),
}


@dataclass(frozen=True, slots=True)
class RopeShape:
    """Rotary positions as ``config.json`` means them; what a kind does not use has its default.

    ``attention_factor``: what YaRN multiplies rotated queries and keys by.
    """

    kind: str  # one of ROPE_TYPES
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    beta_fast: float = BETA_FAST
    beta_slow: float = BETA_SLOW
    is_truncated: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The geometry of a supported model; counts, no units. ``norm_eps`` is added to mean squares."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    positions: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    norm_eps: float
    activation: str  # one of ACTIVATIONS
    rope: RopeShape


class _Fields(BaseModel):
    """The keys of ``config.json`` that matter here; others are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model_type: str
    num_hidden_layers: int = Field(gt=0, le=1_000)
    hidden_size: int = Field(gt=1, le=1_000_000)
    num_attention_heads: int = Field(gt=0, le=10_000)
    num_key_value_heads: int | None = Field(None, gt=0, le=10_000)
    head_dim: int | None = Field(None, gt=0, le=10_000)
    intermediate_size: int = Field(gt=1, le=10_000_000)
    vocab_size: int = Field(gt=0, le=10_000_000)
    max_position_embeddings: int = Field(gt=0, le=100_000_000)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    rms_norm_eps: float = Field(1e-6, gt=0, lt=1)
    rope_theta: float = Field(ROPE_THETA, gt=1)
    architectures: list[str] | None = None
    layer_types: list[str] | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    partial_rotary_factor: float | None = None
    original_max_position_embeddings: int | None = Field(None, gt=0, le=100_000_000)
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None


def read_config(folder: Path) -> dict[str, Any]:
    """The raw ``config.json`` of a model's folder, once it is known to be harmless.

    Raises ``LadderError`` if it is missing, no table, asks for code of its own, or is for quantised weights.
    """
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        raise LadderError(f"{path}: {show(config)} is no table of settings")
    if "auto_map" in config:
        raise LadderError(f"{path}: auto_map asks to run the model's own code, which is never done")
    if "quantization_config" in config:
        raise LadderError(f"{path}: quantization_config: only unquantised weights are loaded")
    return config


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder.

    Raises ``LadderError``, naming the file, the key and the value, if the model is not supported.
    """
    path = folder / "config.json"
    config = read_config(folder)
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        why = REFUSED.get(str(model_type), "is not supported")
        supported = ", ".join(FAMILIES)
        raise LadderError(f"{path}: model_type: {show(model_type)} {why}; supported: {supported}")
    try:
        fields = validate(_Fields, config, path)
    except InputError as error:
        raise LadderError(str(error)) from None
    if reason := _reason_to_refuse(fields, config):
        raise LadderError(f"{path}: {reason}")
    return _shape(fields)


def _shape(fields: _Fields) -> ModelShape:
    family = FAMILIES[fields.model_type]
    return ModelShape(
        family=fields.model_type,
        layers=fields.num_hidden_layers,
        hidden=fields.hidden_size,
        heads=fields.num_attention_heads,
        kv_heads=fields.num_key_value_heads or fields.num_attention_heads,
        head_dim=_head_dim(fields),
        ff=fields.intermediate_size,
        vocab=fields.vocab_size,
        positions=fields.max_position_embeddings,
        tied=fields.tie_word_embeddings,
        qkv_bias=fields.attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=fields.attention_bias if family.qkv_bias is None else False,
        mlp_bias=fields.mlp_bias and family.mlp_bias,
        qk_norm=family.qk_norm,
        norm_eps=fields.rms_norm_eps,
        activation=fields.hidden_act,
        rope=_rope(fields),
    )


def _rope(fields: _Fields) -> RopeShape:
    """Rotary positions; their numbers were checked by ``_bad_rope``.

    As in transformers, the length before scaling beside the table wins over the one inside it.
    """
    _, said = _rope_settings(fields)
    kind, factor = _rope_kind(said), float(said.get("factor", 1.0))
    positions = fields.original_max_position_embeddings or said.get(ORIGINAL_POSITIONS)
    return RopeShape(
        kind=kind,
        theta=float(said.get("rope_theta", fields.rope_theta)),
        factor=factor,
        low_freq_factor=float(said.get("low_freq_factor", 1.0)),
        high_freq_factor=float(said.get("high_freq_factor", 4.0)),
        original_positions=int(positions or fields.max_position_embeddings),
        beta_fast=float(said.get("beta_fast") or BETA_FAST),
        beta_slow=float(said.get("beta_slow") or BETA_SLOW),
        is_truncated=said.get("truncate", True),
        attention_factor=_attention_factor(said, factor) if kind == "yarn" else 1.0,
    )


def _rope_settings(fields: _Fields) -> tuple[str, dict[str, Any]]:
    """The table that counts, with its key: ``rope_scaling``, unless it is empty, as in transformers."""
    if fields.rope_scaling or fields.rope_parameters is None:
        return "rope_scaling", fields.rope_scaling or {}
    return "rope_parameters", fields.rope_parameters


def _rope_kind(said: Mapping[str, Any]) -> Any:
    return said.get("rope_type", said.get("type", "default"))


def _attention_factor(said: Mapping[str, Any], factor: float) -> float:
    """What YaRN multiplies queries and keys by (Peng et al., arXiv:2309.00071, section 3.4)."""
    if said.get("attention_factor") is not None:
        return float(said["attention_factor"])
    mscale, mscale_all_dim = said.get("mscale"), said.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _head_dim(fields: _Fields) -> int:
    family = FAMILIES[fields.model_type]
    return fields.head_dim or family.head_dim or fields.hidden_size // fields.num_attention_heads


def _reason_to_refuse(fields: _Fields, config: dict[str, Any]) -> str | None:
    return _bad_class(fields) or _bad_geometry(fields) or _bad_attention(fields, config) or _bad_rope(fields)


def _bad_class(fields: _Fields) -> str | None:
    wanted = FAMILIES[fields.model_type].causal_lm
    if fields.architectures and wanted not in fields.architectures:
        return f"architectures: {show(fields.architectures)}, only {wanted} is supported"
    if fields.hidden_act not in ACTIVATION_NAMES:
        supported = nearest(fields.hidden_act, ACTIVATION_NAMES)
        return f"hidden_act: {show(fields.hidden_act)} is not supported; {supported}"
    return None


def _bad_geometry(fields: _Fields) -> str | None:
    family, heads = FAMILIES[fields.model_type], fields.num_attention_heads
    if fields.num_key_value_heads is None and not family.kv_heads_default:
        return "num_key_value_heads: is missing"
    if heads % (fields.num_key_value_heads or heads):
        return (
            f"num_key_value_heads: {fields.num_key_value_heads} does not divide num_attention_heads {heads}"
        )
    is_derived = not fields.head_dim and not family.head_dim
    if fields.hidden_size % heads and (is_derived or fields.model_type == "llama"):
        return f"hidden_size: {fields.hidden_size} is no multiple of num_attention_heads {heads}"
    if _head_dim(fields) % 2:
        return f"head_dim: {_head_dim(fields)} is odd, but rotary positions turn pairs"
    return None


def _bad_attention(fields: _Fields, config: dict[str, Any]) -> str | None:
    for key, kind in OTHER_ATTENTION.items():
        if config.get(key):
            return f"{key}: {show(config[key])} means {kind}, which is not supported"
    if others := {kind for kind in fields.layer_types or () if kind != "full_attention"}:
        return f"layer_types: {show(min(others))} is not supported; only full_attention in every layer is"
    if fields.sliding_window is not None and _has_window(fields):
        return f"sliding_window: {fields.sliding_window}: sliding windows are not supported"
    return None


def _has_window(fields: _Fields) -> bool:
    """Whether ``sliding_window`` applies to any layer."""
    match FAMILIES[fields.model_type].window:
        case "never":
            return False
        case "always":
            return True
        case "asked":
            is_beyond_last = fields.max_window_layers >= fields.num_hidden_layers
            return fields.use_sliding_window and not fields.layer_types and not is_beyond_last


def _bad_rope(fields: _Fields) -> str | None:
    """Refuses RoPE that depends on the length, turns a part of the head, or differs between layers."""
    key, rope = _rope_settings(fields)
    if any(isinstance(value, dict) for value in rope.values()):
        return f"{key}: RoPE that differs between layers is not supported"
    kind = _rope_kind(rope)
    if kind not in ROPE_TYPES:
        return f"{key}: RoPE variant {show(kind)} is not supported; valid: {', '.join(ROPE_TYPES)}"
    part = rope.get("partial_rotary_factor", fields.partial_rotary_factor)
    if part not in (None, 1.0):
        return f"partial_rotary_factor: {show(part)}: RoPE over a part of the head is not supported"
    given = [name for name in ("rope_theta", "factor", ORIGINAL_POSITIONS) if name in rope]
    for name in dict.fromkeys((*ROPE_NEEDED[kind], *given)):
        if not _is_positive(rope.get(name)):
            return f"{key}.{name}: {show(rope.get(name))} is no positive number"
    if "rope_theta" in rope and rope["rope_theta"] <= 1:
        return f"{key}.rope_theta: {show(rope['rope_theta'])} is not above 1"
    if rope.get(ORIGINAL_POSITIONS, 1) % 1:
        return f"{key}.{ORIGINAL_POSITIONS}: {show(rope[ORIGINAL_POSITIONS])} is no whole number"
    for name in YARN_NUMBERS if kind == "yarn" else ():
        if rope.get(name) not in (None, 0) and not _is_positive(rope[name]):
            return f"{key}.{name}: {show(rope[name])} is no positive number"
    if not isinstance(rope.get("truncate", True), bool):
        return f"{key}.truncate: {show(rope['truncate'])} is neither true nor false"
    return None


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < NUMBER_MAX
