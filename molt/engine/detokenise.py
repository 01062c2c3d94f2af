"""Text as it becomes certain: a piece per token, whole characters only, whatever rung produced the token.

``tokenizers.decoders.DecodeStream`` gives the same pieces, but keeps what is incomplete at the end of the text to
itself; to flush that, the same windows of tokens would have to be kept beside it.
"""

from __future__ import annotations

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
"""What decoding puts where bytes are not (yet) a character."""


class Detokeniser:
    """Turns tokens into pieces of text whose concatenation is the decoding of all tokens together.

    A character may be spread over several tokens; their pieces are empty until the last of them. Two windows
    of tokens are decoded at each step instead of one token, because decoders treat the start of a text
    specially.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the last emitted window, then the open one
        self._open = 0  # where the open window starts

    def push(self, token: int) -> str:
        """The text that ``token`` completes; empty if it ends inside a character."""
        self._ids.append(token)
        text = self._pending()
        if text.endswith(REPLACEMENT):
            return ""
        self._ids, self._open = self._ids[self._open :], len(self._ids) - self._open
        return text

    def flush(self) -> str:
        """What is left at the end of the text: the replacement of a character that was never completed."""
        text = self._pending()
        self._open = len(self._ids)
        return text

    def _pending(self) -> str:
        emitted = self._decode(self._ids[: self._open])
        return self._decode(self._ids)[len(emitted) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
