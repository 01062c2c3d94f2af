"""Tokenizers of GGUF files, keys left out or types wrong: token by token what transformers' reader makes of them."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from molt.errors import LadderError
from molt.models.fetching import gguf_tokenizer
from molt.models.fetching.gguf_file import read_gguf
from tests.models.fetching.gguf_files import LLAMA, MERGES, QWEN2, SPECIALS, random_tensors, write_gguf
from tests.models.peers.test_gguf import converted
from tests.models.peers.texts import TEXTS

FIRST = 256 + len(MERGES)  # the id of SPECIALS[0], which is the token that begins a text as well
NORMAL, USER_DEFINED = 1, 4
ADD_BOS, ADD_EOS = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"


def written(folder: Path, pre: str, **changes: Any) -> Path:
    """A file with a tokenizer of that kind."""
    config = LLAMA if pre == "llama-bpe" else QWEN2
    return write_gguf(folder / "x.gguf", config, random_tensors(folder / "hf", config), pre=pre, **changes)


def tokenizer(source: Path) -> Tokenizer:
    """The tokenizer that Molt makes of a file."""
    return gguf_tokenizer.build(read_gguf(source))


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_the_same_tokens(pre: str, text: str, tmp_path: Path) -> None:
    source = written(tmp_path, pre)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=source.name)
    if pre == "qwen2":  # normalised in the model's own tokenizer, which that reader leaves out
        text = unicodedata.normalize("NFC", text)
    ours = tokenizer(source).encode(text, add_special_tokens=False).ids
    assert ours == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("pre", "key", "begins"),
    [
        ("llama-bpe", None, True),  # what llama.cpp does for this kind where the key is missing
        ("llama-bpe", False, False),
        ("llama-bpe", True, True),
        ("qwen2", None, False),
        ("qwen2", True, True),
        ("smollm", None, False),
    ],
)
def test_the_token_that_begins_a_text(pre: str, key: bool | None, begins: bool, tmp_path: Path) -> None:
    keys = {} if key is None else {ADD_BOS: key}
    ids = tokenizer(written(tmp_path, pre, keys=keys)).encode("hello").ids
    assert (ids[0] == FIRST) == begins
    assert ids.count(FIRST) == begins


@pytest.mark.parametrize(
    ("pre", "changes", "names"),
    [
        (
            "llama-bpe",
            {"without": ["tokenizer.ggml.bos_token_id"]},
            "tokenizer.ggml.bos_token_id: is missing",
        ),
        ("qwen2", {"keys": {ADD_BOS: 1}}, f"{ADD_BOS}: 1 is neither true nor false"),
        ("qwen2", {"keys": {ADD_EOS: True}}, f"{ADD_EOS}: a token after every text is not supported"),
        ("qwen2", {"without": ["tokenizer.ggml.pre"]}, "tokenizer.ggml.pre: None is not supported"),
        ("qwen2", {"without": ["tokenizer.ggml.token_type"]}, "tokenizer.ggml.token_type: is missing"),
        ("qwen2", {"without": ["tokenizer.ggml.merges"]}, "tokenizer.ggml.merges: is missing"),
        ("qwen2", {"without": ["tokenizer.ggml.tokens"]}, "tokenizer.ggml.tokens: is missing"),
    ],
)
def test_what_cannot_be_known_is_refused_by_name(
    pre: str, changes: dict[str, Any], names: str, tmp_path: Path
) -> None:
    source = written(tmp_path, pre, **changes)
    with pytest.raises(LadderError) as caught:
        converted(source)
    assert str(caught.value).startswith(f"{source}: ")
    assert names in str(caught.value)


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
def test_turn_tokens_of_another_type_are_control_tokens(kind: int, tmp_path: Path) -> None:
    """They delimit turns, and the end of a turn ends an answer, whatever type the file gives them."""
    llama3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
    source = written(
        tmp_path,
        "qwen2",
        types=dict.fromkeys(SPECIALS, kind),
        tokens=tuple((text, kind) for text in (*llama3, "<|end_of_text|>", "<think>")),
    )
    folder = converted(source)
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    specials = {token["content"] for token in added if token["special"]}
    assert specials == {*SPECIALS, *llama3, "<|end_of_text|>"}
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    texts = {token["id"]: token["content"] for token in added}
    assert {texts[end] for end in ends} == {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
    }
    ids = tokenizer(source).encode("<|im_start|>user\nhello<|im_end|>").ids
    assert (ids[0], ids[-1]) == (FIRST + 1, FIRST + 2)
