"""Pieces hold whole characters, and together they are the decoding of all tokens."""

from __future__ import annotations

from collections.abc import Sequence

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


def space_tokenizer() -> Tokenizer:
    """As of SentencePiece: a mark for a space, bytes where there is no word, and one space dropped at the start."""
    words = ["▁hello", "▁the", "▁branch", "▁", "s", "!", "▁▁"]
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={entry: number for number, entry in enumerate(vocab)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


BYTES = byte_tokenizer()
SPACES = space_tokenizer()


def spaced(*entries: str) -> list[int]:
    return [SPACES.token_to_id(entry) for entry in entries]


def pieces_of(tokenizer: Tokenizer, ids: list[int], prompt: Sequence[int] = ()) -> list[str]:
    detokeniser = Detokeniser(tokenizer, prompt)
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


# --- after a prompt


@pytest.mark.parametrize(
    "prompt", [["▁hello"], ["<s>", "▁hello"], ["▁hello", "</s>", "<s>"], ["▁hello"] * 100]
)
def test_the_space_before_the_first_word_of_an_answer_survives(prompt: list[str]) -> None:
    assert pieces_of(SPACES, spaced("▁the", "▁branch"), spaced(*prompt)) == [" the", " branch", ""]


@given(
    st.lists(st.sampled_from(["▁hello", "▁the", "▁", "▁▁", "s", "!", "<s>", "</s>"]), max_size=30),
    st.lists(st.sampled_from(["▁hello", "▁the", "▁", "▁▁", "s", "!", "<s>", "</s>"]), max_size=30),
)
@settings(max_examples=150, deadline=None)
def test_prompt_and_answer_joined_are_the_decoding_of_all(prompt: list[str], answer: list[str]) -> None:
    before, after = spaced(*prompt), spaced(*answer)
    joined = SPACES.decode(before) + "".join(pieces_of(SPACES, after, before))
    assert joined == SPACES.decode(before + after)


@given(st.text(min_size=1, max_size=12), st.text(max_size=12), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_a_prompt_may_end_inside_a_character(begin: str, end: str, cut: int) -> None:
    """The answer has the whole of it, and nothing of the prompt twice."""
    for tokenizer in (BYTES, SPACES):
        if tokenizer is BYTES:
            ids = BYTES.encode(begin + end).ids
        else:
            ids = [SPACES.token_to_id(f"<0x{byte:02X}>") for byte in (begin + end).encode()]
        prompt, answer = ids[:cut], ids[cut:]
        text = "".join(pieces_of(tokenizer, answer, prompt))
        whole = tokenizer.decode(ids)
        if not tokenizer.decode(prompt).endswith("\ufffd"):
            assert tokenizer.decode(prompt) + text == whole
        else:
            assert whole.endswith(text)
            assert len(text) <= len(whole) - len(tokenizer.decode(prompt).rstrip("\ufffd"))


@given(st.lists(st.integers(0, 256), max_size=30), st.lists(st.integers(0, 256), max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_bytes_after_any_prompt_give_each_character_once(prompt: list[int], answer: list[int]) -> None:
    """Where the prompt's text has a replacement, the answer has the character, if it becomes whole."""
    text = "".join(pieces_of(BYTES, answer, prompt))
    assert BYTES.decode(prompt + answer).endswith(text)


def test_a_replacement_of_the_prompt_is_not_repeated() -> None:
    prompt = BYTES.encode("a🦎").ids[:3]
    assert BYTES.decode(prompt) == "a\ufffd"
    assert pieces_of(BYTES, BYTES.encode("b").ids, prompt) == ["b", ""]
    assert pieces_of(BYTES, BYTES.encode("a🦎b").ids[3:], prompt) == ["", "🦎", "b", ""]


def test_a_special_token_or_an_unknown_one_is_no_start_of_a_text() -> None:
    unknown = SPACES.get_vocab_size() + 5
    answer = [*spaced("▁hello", "</s>"), unknown, *spaced("▁the")]
    assert pieces_of(SPACES, answer) == ["hello", "", "", " the", ""]


@pytest.mark.parametrize("entry", ["<0x80>", "<0xE4>", "▁", "</s>", "<unk>"])
def test_any_token_for_ever_takes_the_same_time_and_memory(entry: str) -> None:
    """Counted, not timed: how many tokens are decoded for each that is pushed."""
    decoded: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(SPACES, name)

        def decode(self, ids: list[int], **options: bool) -> str:
            decoded.append(len(ids))
            return SPACES.decode(ids, **options)

    detokeniser = Detokeniser(Counting())  # type: ignore[arg-type]
    for _ in range(2000):
        detokeniser.push(SPACES.token_to_id(entry))
    assert max(decoded, default=0) < 24
    assert len(decoded) < 12000


def test_bytes_that_are_never_a_character_are_shown_all_the_same() -> None:
    ids = BYTES.encode("é").ids[-1:] * 100
    pieces = pieces_of(BYTES, ids)
    assert "".join(pieces) == BYTES.decode(ids)
    assert "\ufffd" in "".join(pieces[:8])
