"""The objects of the API: chunks of a stream, whole answers and errors, for chats and for texts.

Rules of this module:

- Strict clients read only the fields of OpenAI's API. Molt's own fields are all in one extra key, ``molt``.
- Every chunk has exactly one choice, but for the one with the usage, which has none. ``finish_reason`` is null on all
  but the last, whose delta is empty.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from molt.server.answer import Answer, AnswerEvent, AnswerText
from molt.units import MS_NS

DONE = b"data: [DONE]\n\n"


def event(chunk: Mapping[str, Any]) -> bytes:
    """A chunk as a server-sent event: one line, since JSON escapes every line end of the text."""
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def error_body(
    message: str, kind: str, code: str | int | None = None, param: str | None = None
) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


@dataclass(frozen=True, slots=True)
class Form:
    """The form of one answer: a chat's or a text's."""

    is_chat: bool
    model: str
    with_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default="")

    def begin(self) -> list[dict[str, Any]]:
        """The chunks before any token."""
        return [self._chunk({"role": "assistant", "content": ""})] if self.is_chat else []

    def text(self, part: AnswerText) -> dict[str, Any]:
        """A token, or text that was withheld."""
        molt = {
            "event": "token" if part.is_token else "text",
            "rung": part.rung,
            "at_ms": round(part.at_ns / MS_NS, 3),
        }
        return self._chunk({"content": part.text} if self.is_chat else part.text, molt)

    def answer_event(self, part: AnswerEvent) -> dict[str, Any]:
        """What the scheduler did with the answer: a chunk without text."""
        return self._chunk({} if self.is_chat else "", part.fields)

    def end(self, reason: str, answer: Answer, about: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The last chunk, and the usage if the request wants it."""
        last = self._chunk({} if self.is_chat else "", {**answer.summary(), **about}, reason)
        if not self.with_usage:
            return [last]
        return [last, {**self._head(streamed=True), "choices": [], "usage": usage(answer)}]

    def whole(self, reason: str, answer: Answer, about: Mapping[str, Any]) -> dict[str, Any]:
        """A whole answer as one object; ``molt`` has its text by rung."""
        text = "".join(text for _, text in answer.spans)
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        spans = [{"rung": rung, "text": text} for rung, text in answer.spans]
        return {
            **self._head(streamed=False),
            "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": reason}],
            "usage": usage(answer),
            "molt": {**answer.summary(), **about, "spans": spans},
        }

    def _chunk(
        self, delta: dict[str, str] | str, molt: dict[str, Any] | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        content = {"delta": delta} if self.is_chat else {"text": delta}
        chunk = {
            **self._head(streamed=True),
            "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": reason}],
        }
        if self.with_usage:
            chunk["usage"] = None
        return chunk if molt is None else {**chunk, "molt": molt}

    def _head(self, *, streamed: bool) -> dict[str, Any]:
        kind = (
            ("chat.completion.chunk" if streamed else "chat.completion")
            if self.is_chat
            else "text_completion"
        )
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def new_id(*, is_chat: bool) -> str:
    """A name for an answer that cannot be guessed."""
    return f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"


def usage(answer: Answer) -> dict[str, int]:
    """Tokens of the prompt and of the answer."""
    prompt, produced = answer.prompt_tokens, answer.tokens
    return {"prompt_tokens": prompt, "completion_tokens": produced, "total_tokens": prompt + produced}
