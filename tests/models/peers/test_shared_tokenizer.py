"""Whether two tokenizers are one: what changes a token is refused by its name, and what changes none is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from molt.models.tokenizer_file import difference, read_tokens
from tests.models.fetching.gguf_files import MERGES, byte_letters
from tests.models.peers.texts import TEXTS

PATTERN = r"\p{N}|\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"
Change = Callable[[Tokenizer], Any]


def plain() -> Tokenizer:
    """A byte-level tokenizer as the supported families have it."""
    entries = [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={text: n for n, text in enumerate(entries)}, merges=pairs))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def written(folder: Path, *changes: Change) -> Path:
    """The path of a tokenizer with something changed."""
    tokenizer = plain()
    for change in changes:
        change(tokenizer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The path of a tokenizer whose JSON was changed."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def begins(text: str) -> Change:
    """Adds a token before every text."""

    def change(tokenizer: Tokenizer) -> None:
        token = tokenizer.token_to_id(text)
        template = processors.TemplateProcessing(single=f"{text} $A", special_tokens=[(text, token)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])

    return change


def cut(*parts: Any) -> Change:
    """Another way to cut text before merging."""
    return lambda tokenizer: setattr(tokenizer, "pre_tokenizer", pre_tokenizers.Sequence(list(parts)))


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
OTHERS: dict[str, tuple[Change, str]] = {
    "another pattern": (
        cut(pre_tokenizers.Split(Regex(r"\p{N}+|\s+"), "isolated"), BYTES),
        "pre_tokenizer[0].pattern",
    ),
    "another behaviour": (
        cut(pre_tokenizers.Split(Regex(PATTERN), "merged_with_next"), BYTES),
        "pre_tokenizer[0].behavior",
    ),
    "no cut": (cut(BYTES), "pre_tokenizer[0]"),
    "GPT-2's cut as well": (
        cut(
            pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)
        ),
        "pre_tokenizer[1].use_regex",
    ),
    "a space before every text": (
        cut(
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
        ),
        "pre_tokenizer[1].add_prefix_space",
    ),
    "no normaliser": (lambda t: setattr(t, "normalizer", None), "normalizer"),
    "another normaliser": (lambda t: setattr(t, "normalizer", normalizers.NFKC()), "normalizer"),
    "a token before every text": (begins("<|endoftext|>"), "post_processor"),
    "another decoder": (lambda t: setattr(t, "decoder", decoders.Fuse()), "decoder"),
    "a special token that is none": (
        lambda t: t.add_tokens([AddedToken("<|im_end|>", special=False, normalized=False)]),
        "special",
    ),
    "a token that takes the space before it": (
        lambda t: t.add_tokens([AddedToken("<tool>", lstrip=True)]),
        "lstrip",
    ),
    "whole pieces first": (lambda t: setattr(t.model, "ignore_merges", True), "model.ignore_merges"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_changes_tokens_or_text_is_named(other: str, tmp_path: Path) -> None:
    change, name = OTHERS[other]
    ours, theirs = written(tmp_path / "a"), written(tmp_path / "b", change)
    if other == "a special token that is none":  # the library keeps the first flags it was given
        rewritten(theirs, lambda content: content["added_tokens"][1].update(special=False))
    if other == "a token that takes the space before it":
        rewritten(theirs, lambda content: content["added_tokens"][2].update(lstrip=True))
    for one, two in ((ours, theirs), (theirs, ours)):
        found = difference(read_tokens(one), read_tokens(two))
        assert found is not None
        assert name in found
        assert str(one) in found
        assert "\n" not in found


def test_two_tokens_before_a_text_differ(tmp_path: Path) -> None:
    paths = [written(tmp_path / text[2:5], begins(text)) for text in ("<|endoftext|>", "<|im_end|>")]
    assert "post_processor" in str(difference(*map(read_tokens, paths)))


SAME: dict[str, Callable[[dict[str, Any]], Any]] = {
    "truncation": lambda c: c.update(
        truncation={"max_length": 4, "strategy": "LongestFirst", "direction": "Right", "stride": 0}
    ),
    "padding": lambda c: c.update(
        padding={
            "strategy": "BatchLongest",
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        }
    ),
    "no post-processor": lambda c: c.update(post_processor=None),
    "offsets": lambda c: c["post_processor"].update(trim_offsets=True, add_prefix_space=False),
    "offsets of the cut": lambda c: c["pre_tokenizer"]["pretokenizers"][1].update(trim_offsets=False),
    "options of the decoder": lambda c: c["decoder"].update(add_prefix_space=False, use_regex=False),
    "a sequence of one": lambda c: c.update(
        normalizer={"type": "Sequence", "normalizers": [c["normalizer"]]}
    ),
    "a sequence in a sequence": lambda c: c.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [c["pre_tokenizer"]]}
    ),
    "older merges": lambda c: c["model"].update(merges=[" ".join(merge) for merge in c["model"]["merges"]]),
    "no dropout": lambda c: c["model"].update(dropout=0.0),
    "defaults written out": lambda c: c["model"].update(dropout=None, unk_token=None, byte_fallback=False),
    "empty affixes": lambda c: c["model"].update(continuing_subword_prefix="", end_of_word_suffix=""),
    "defaults left out": lambda c: [
        c["model"].pop(key, None) for key in ("dropout", "byte_fallback", "fuse_unk")
    ],
    "added tokens in the vocabulary too": lambda c: c["model"]["vocab"].update(
        {token["content"]: token["id"] for token in c["added_tokens"]}
    ),
    "another version": lambda c: c.update(version="2.0"),
}


@pytest.mark.parametrize("how", SAME)
def test_what_changes_no_token_is_accepted(how: str, tmp_path: Path) -> None:
    """The judge is the library: the tokens of all texts, and the text of all tokens, are the same."""
    ours, theirs = written(tmp_path / "a"), rewritten(written(tmp_path / "b"), SAME[how])
    assert difference(read_tokens(ours), read_tokens(theirs)) is None
    if how in ("another version", "padding", "truncation"):
        return
    one, two = (Tokenizer.from_file(str(path)) for path in (ours, theirs))
    for text in TEXTS:
        ids = one.encode(text).ids
        assert two.encode(text).ids == ids
        assert two.decode(ids, skip_special_tokens=False) == one.decode(ids, skip_special_tokens=False)
