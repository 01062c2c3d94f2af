"""The tokenizer in a GGUF file's metadata as a ``tokenizer.json``.

Only byte-level BPE, the kind of the supported models. The file only names its pre-tokenizer, which splits text
before merging (``tokenizer.ggml.pre``); ``PRE_TOKENIZERS`` has what each name means in the models that use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt.errors import LadderError
from molt.formats.yaml_file import nearest, show
from molt.models.fetching.gguf_file import GgufFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
"""Tokens that end an answer in the supported families, whichever of them a file names as its end."""
TURN_MARKS = (*ENDS, "<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
"""Tokens that delimit turns: control tokens whatever type a file gives them (llama.cpp overrides such types too)."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before merging: by a pattern, or (``None``) single digits and then GPT-2's own pattern."""

    pattern: str | None
    is_nfc: bool = False  # text is normalised to NFC first
    takes_whole: bool = False  # a piece that is a token is taken without looking at the merges
    adds_bos: bool = False  # whether a text begins with a token of its own where the file does not say


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "qwen2": PreTokenizer(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        is_nfc=True,
    ),
    "llama-bpe": PreTokenizer(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        takes_whole=True,
        adds_bos=True,
    ),
    "smollm": PreTokenizer(None),
}


def write_tokenizer(gguf: GgufFile, path: Path) -> None:
    """Write the tokenizer of a GGUF file to ``path``.

    Raises ``LadderError`` if the metadata hold none, or one of a kind not supported.
    """
    path.write_text(build(gguf).to_str(), encoding="utf-8")


def build(gguf: GgufFile) -> Tokenizer:
    """The tokenizer of a GGUF file; entries that only pad the vocabulary are left out.

    Raises ``LadderError`` as ``write_tokenizer`` does.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    pre_tokenizer = _pre_tokenizer(gguf)
    tokens, kinds, merges = _entries(gguf)
    # The model has the added tokens too: their ids lie wherever the file has them, not behind the others.
    vocab = {
        text: token for token, (text, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED
    }
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre_tokenizer.takes_whole))
    except Exception as error:  # the library has no type of its own; its text names the merge
        raise LadderError(f"{gguf.path}: tokenizer.ggml.merges: {error}") from None
    if pre_tokenizer.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre_tokenizer.pattern is None)
    first = (
        pre_tokenizers.Digits(individual_digits=True)
        if pre_tokenizer.pattern is None
        else pre_tokenizers.Split(Regex(pre_tokenizer.pattern), behavior="isolated")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(gguf, tokens, pre_tokenizer, processors)
    for kind in (CONTROL, USER_DEFINED):
        added = [
            AddedToken(text, special=kind == CONTROL, normalized=False)
            for text, one in zip(tokens, kinds, strict=True)
            if one == kind
        ]
        tokenizer.add_special_tokens(added) if kind == CONTROL else tokenizer.add_tokens(added)
    return tokenizer


def end_ids(gguf: GgufFile) -> list[int]:
    """The tokens that end an answer: the one the file names first, then others of ``ENDS`` it has."""
    tokens, _, _ = _entries(gguf)
    named = [gguf.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = [token for token in named if type(token) is int and 0 <= token < len(tokens)]
    ends += [token for token, text in enumerate(tokens) if text in ENDS]
    return list(dict.fromkeys(ends))


def chat_template(gguf: GgufFile) -> str | None:
    """The chat template of a GGUF file, if it has one."""
    template = gguf.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None


def _pre_tokenizer(gguf: GgufFile) -> PreTokenizer:
    model, pre = gguf.metadata.get("tokenizer.ggml.model"), gguf.metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise LadderError(f"{gguf.path}: tokenizer.ggml.model: {show(model)} is not supported; valid: gpt2")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = nearest(str(pre), PRE_TOKENIZERS)
        raise LadderError(f"{gguf.path}: tokenizer.ggml.pre: {show(pre)} is not supported; {known}")
    return PRE_TOKENIZERS[pre]


def _entries(gguf: GgufFile) -> tuple[tuple[str, ...], tuple[int, ...], list[tuple[str, str]]]:
    """Spellings and kinds by token id, and the merges in order."""
    tokens = _list(gguf, "tokens", str)
    stored_kinds = _list(gguf, "token_type", int)
    merges = _list(gguf, "merges", str)
    if len(stored_kinds) != len(tokens):
        raise LadderError(
            f"{gguf.path}: tokenizer.ggml.token_type: {len(stored_kinds)} values for {len(tokens)} tokens"
        )
    if len(set(tokens)) != len(tokens):
        twice = next(text for position, text in enumerate(tokens) if tokens.index(text) != position)
        raise LadderError(f"{gguf.path}: tokenizer.ggml.tokens: {show(twice)} a second time")
    kinds = tuple(
        CONTROL if kind == UNKNOWN or text in TURN_MARKS else kind
        for text, kind in zip(tokens, stored_kinds, strict=True)
    )
    pairs = []
    for position, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise LadderError(f"{gguf.path}: tokenizer.ggml.merges[{position}]: {show(merge)} is no pair")
        pairs.append((left, right))
    return tokens, kinds, pairs


def _list(gguf: GgufFile, name: str, kind: type) -> tuple[Any, ...]:
    values = gguf.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, tuple) or not values or any(type(value) is not kind for value in values):
        raise LadderError(f"{gguf.path}: tokenizer.ggml.{name}: is missing, or no list of values of its type")
    return values


def _post_processor(
    gguf: GgufFile, tokens: tuple[str, ...], pre_tokenizer: PreTokenizer, processors: Any
) -> Any:
    """Adds the token that begins a text, where the file asks for it, or its kind of tokenizer has one."""
    by_bytes = processors.ByteLevel(trim_offsets=False)
    if _flag(gguf, "add_eos_token", default=False):
        raise LadderError(
            f"{gguf.path}: tokenizer.ggml.add_eos_token: a token after every text is not supported"
        )
    if not _flag(gguf, "add_bos_token", default=pre_tokenizer.adds_bos):
        return by_bytes
    token = gguf.metadata.get("tokenizer.ggml.bos_token_id")
    if type(token) is not int or not 0 <= token < len(tokens):
        reason = "is missing" if token is None else f"{show(token)} is no token"
        raise LadderError(f"{gguf.path}: tokenizer.ggml.bos_token_id: {reason}")
    begin = tokens[token]
    template = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, token)]
    )
    return processors.Sequence([by_bytes, template])


def _flag(gguf: GgufFile, name: str, *, default: bool) -> bool:
    value = gguf.metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise LadderError(f"{gguf.path}: tokenizer.ggml.{name}: {show(value)} is neither true nor false")
    return value
