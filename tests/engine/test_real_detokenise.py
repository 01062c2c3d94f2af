"""Pieces hold whole characters, and together they are the decoding of all tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from molt.engine.detokenise import Detokeniser


def byte_tokenizer() -> Tokenizer:
    """One token per byte, in the order of the byte-level alphabet, and an end-of-text token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def sentence_tokenizer() -> Tokenizer:
    """Words with a mark for the space before them, which decoding drops at the start of a text."""
    tokenizer = Tokenizer(models.WordLevel({"▁The": 0, "▁cat": 1, "s": 2, "▁": 3}, unk_token="▁"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


BYTES = byte_tokenizer()


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokeniser = Detokeniser(tokenizer)
    pieces = [detokeniser.push(token) for token in ids]
    return [*pieces, detokeniser.flush()]


@given(st.lists(st.integers(0, 256), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_tokens_joined_are_the_decoding_of_all(ids: list[int]) -> None:
    assert "".join(pieces_of(BYTES, ids)) == BYTES.decode(ids, skip_special_tokens=True)


@given(st.text(max_size=12))
@settings(max_examples=40, deadline=None)
def test_valid_text_never_shows_half_a_character(text: str) -> None:
    pieces = pieces_of(BYTES, BYTES.encode(text).ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)
        assert pieces[-1] == ""


def test_an_emoji_appears_with_its_last_byte() -> None:
    assert pieces_of(BYTES, BYTES.encode("a🦎b").ids) == ["a", "", "", "", "🦎", "b", ""]


def test_a_character_cut_off_by_the_end_is_replaced_once() -> None:
    assert pieces_of(BYTES, BYTES.encode("🦎").ids[:3]) == ["", "", "", "\ufffd"]


def test_a_special_token_has_no_text() -> None:
    assert pieces_of(BYTES, [BYTES.token_to_id("<end>")]) == ["", ""]


@pytest.mark.parametrize("ids", [[0, 1, 2], [1, 1, 0], [2, 0, 2]])
def test_spaces_survive_decoders_that_trim_the_start(ids: list[int]) -> None:
    tokenizer = sentence_tokenizer()
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)
