"""Text as it becomes certain: a piece per token, whole characters only, whatever rung produced the token.

``tokenizers.decoders.DecodeStream`` is close, but has no end, repeats the text of a prompt that ends inside a
character, and decodes everything anew with each token for as long as bytes are no characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
"""What decoding puts where bytes are not (yet) a character."""

CHARACTER_TOKENS = 4
"""A character has at most four bytes, and so as many tokens."""

CONTEXT_TOKENS = 16
"""Tokens of a prompt before an answer that are decoded with it."""


class Detokeniser:
    """Turns tokens into pieces of text that, joined to the text of ``prompt``, are the decoding of all tokens together.

    A character may be spread over several tokens; their pieces are empty until the last of them. A window of tokens is
    decoded at each step instead of one token, because decoders treat the start of a text specially: they drop a space.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)
        self._ids = self._tail([token for token in prompt if self._has_text(token)])
        self._pending = 0  # the last tokens of the window, whose text is not out
        self._prompt = self._decode(self._ids)  # the prompt's text until the answer has some
        self._shown = self._certain_of_prompt()  # characters of the window's text that are out

    def push(self, token: int) -> str:
        """The text that ``token`` completes; empty if it ends inside a character."""
        if not self._has_text(token):
            return ""
        self._ids.append(token)
        self._pending += 1
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT):
            return "" if self._pending < CHARACTER_TOKENS else self._emit_certain(text)
        piece = self._piece(text)
        self._trim(text)
        return piece

    def flush(self) -> str:
        """What is left at the end of the text: the replacement of a character that was never completed."""
        text = self._decode(self._ids)
        piece = self._piece(text)
        self._shown = len(text)
        return piece

    def _piece(self, text: str) -> str:
        prompt, self._prompt = self._prompt, ""
        return text[len(prompt) if text.startswith(prompt) and prompt else self._shown :]

    def _emit_certain(self, text: str) -> str:
        """What no token can change any more, where as many tokens are pending as a character can have."""
        certain = _certain(text)
        if len(certain) <= max(self._shown, len(self._prompt)):
            return ""
        piece = self._piece(certain)
        left = len(text) - len(certain)
        self._ids = self._ids[-2 * CHARACTER_TOKENS :]
        self._pending = CHARACTER_TOKENS - 1
        self._shown = max(0, len(self._decode(self._ids)) - left)
        return piece

    def _trim(self, text: str) -> None:
        """Keep the last tokens that have a text of their own: with these the next is no start of a text."""
        for length in range(max(1, self._pending), self._pending + CHARACTER_TOKENS):
            if (own := self._decode(self._ids[-length:])) and text.endswith(own):
                self._ids = self._ids[-length:]
                self._shown = len(own)
                break
        else:
            self._ids = self._ids[-CONTEXT_TOKENS:]
            self._shown = len(self._decode(self._ids))
        self._pending = 0

    def _tail(self, ids: list[int]) -> list[int]:
        """The last tokens of a prompt, as many as have the text that they have in the whole."""
        tail = ids[-CONTEXT_TOKENS:]
        own = self._decode(tail)
        is_alike = not own.startswith(REPLACEMENT) and self._decode(ids).endswith(own)
        return tail if own and is_alike else ids

    def _certain_of_prompt(self) -> int:
        """Characters of the prompt's text that stay as they are, whatever comes: all but one that is not whole yet."""
        for missing in range(CHARACTER_TOKENS):
            whole = self._decode(self._ids[: len(self._ids) - missing])
            if not whole.endswith(REPLACEMENT):
                certain = _certain(self._prompt) if missing else whole
                return len(certain if certain.startswith(whole) else whole)
        return len(self._prompt)

    def _has_text(self, token: int) -> bool:
        return token not in self._special and self._tokenizer.id_to_token(token) is not None

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _certain(text: str) -> str:
    """A text without the end that may be a part of a character."""
    for _ in range(CHARACTER_TOKENS - 1):
        text = text.removesuffix(REPLACEMENT)
    return text
