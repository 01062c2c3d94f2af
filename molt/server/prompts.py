"""From the prompt of a request to token ids.

Rules of this module:

- Chats are laid out in one of three formats, chosen by the special tokens that the tokenizer has: ChatML, the headers
  of Llama 3, or (where it has neither) the texts one after the other. Chat templates that come with a model are
  programs, and are not run.
- Special tokens of a chat come from the format alone. The content of a message is text, even where it spells one.
- A prompt that must be too long is refused before it is tokenised: no token is longer than the longest entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from molt.errors import InputError
from molt.models.tokenizer_file import read_tokenizer

SYSTEM = "You are a helpful assistant."
"""The system message of a chat in ChatML that has none."""

Turn = tuple[str, str]
"""Role and text of a message."""


class Special(str):
    """The spelling of a special token, where it means the token."""

    __slots__ = ()


class Prompter:
    """Tokenises for one ladder. Prompts hold at most ``tokens_max`` tokens."""

    def __init__(self, tokenizer: Path, tokens_max: int) -> None:
        self._plain = read_tokenizer(tokenizer)
        self._plain.encode_special_tokens = True  # a spelled special token is text
        added = self._plain.get_added_tokens_decoder()
        self._specials = {token.content: number for number, token in added.items() if token.special}
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._spelled = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._begin = tuple(self._plain.encode("").ids)  # of every text, where the tokenizer has such a rule
        self._longest = max(len(entry.encode()) for entry in self._plain.get_vocab())
        self.vocabulary = self._plain.get_vocab_size()
        self.tokens_max = tokens_max

    @property
    def format(self) -> str:
        """How chats are laid out: ``chatml``, ``llama3`` or ``plain``."""
        if "<|im_start|>" in self._specials:
            return "chatml"
        return "llama3" if "<|start_header_id|>" in self._specials else "plain"

    def text(self, prompt: str) -> tuple[int, ...]:
        """Tokens of a text, in which special tokens may be spelled; ``InputError`` if there are none or too many."""
        parts = (Special(part) if part in self._specials else part for part in self._spelled.split(prompt))
        return self._checked((*self._begin, *self._ids(parts)))

    def tokens(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """A prompt that is tokens already; ``InputError`` for one that the vocabulary does not have."""
        if any(not 0 <= token < self.vocabulary for token in prompt):
            raise InputError(f"token must be between 0 and {self.vocabulary - 1}")
        return self._checked(tuple(prompt))

    def chat(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        """Tokens of a chat, up to where the answer begins; ``InputError`` if they are too many."""
        match self.format:
            case "chatml":
                parts = _chatml(turns)
            case "llama3":
                parts = _llama3(turns)
            case _:
                parts = (f"{text}\n\n" for _, text in turns)
        return self._checked(tuple(self._ids(parts)))

    def _ids(self, parts: Iterable[str]) -> Iterator[int]:
        """Tokens of texts and special tokens; texts between two specials are tokenised together."""
        texts: list[str] = []
        for part in parts:
            if isinstance(part, Special):
                yield from self._plain_ids("".join(texts))
                texts.clear()
                yield self._specials[part]
            else:
                texts.append(part)
        yield from self._plain_ids("".join(texts))

    def _plain_ids(self, text: str) -> list[int]:
        least = len(text.encode()) // self._longest
        if least > self.tokens_max:
            raise InputError(f"at least {least} tokens; a prompt may have at most {self.tokens_max}")
        return self._plain.encode(text, add_special_tokens=False).ids if text else []

    def _checked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if not ids:
            raise InputError("has no tokens")
        if len(ids) > self.tokens_max:
            raise InputError(f"{len(ids)} tokens; a prompt may have at most {self.tokens_max}")
        return ids


def _chatml(turns: Sequence[Turn]) -> Iterator[str]:
    begin, end = Special("<|im_start|>"), Special("<|im_end|>")
    if turns[0][0] != "system":
        turns = [("system", SYSTEM), *turns]
    for role, text in turns:
        yield from (begin, f"{role}\n", text, end, "\n")
    yield from (begin, "assistant\n")


def _llama3(turns: Sequence[Turn]) -> Iterator[str]:
    begin, end = Special("<|start_header_id|>"), Special("<|end_header_id|>")
    yield Special("<|begin_of_text|>")
    for role, text in turns:
        yield from (begin, role, end, "\n\n", text.strip(), Special("<|eot_id|>"))
    yield from (begin, "assistant", end, "\n\n")
