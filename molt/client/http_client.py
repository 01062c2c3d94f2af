"""A client of ``molt serve``: streamed answers, and the few other requests that a terminal makes.

Rules of this module:

- The client uses the HTTP API alone; it imports nothing of the server.
- Every failure is a ``ServerError`` of one line: no connection, a refusal, an answer that breaks off.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx2 as http

CONNECT_S = 10.0
SILENCE_S = 300.0
"""How long an answer may be silent: it is deferred or parked while memory is short."""

TEMPERATURE, TOP_P = 0.8, 0.95
PLAIN_CHAT = "plain"
"""The server's name for the chat format of a model that does not chat."""

LEVERS = frozenset(
    {"switch", "park", "resume", "defer", "admit", "spill", "restore", "shed", "restarted", "healed"}
)


class ServerError(Exception):
    """The server cannot be reached, refuses, or ended an answer that was not complete."""


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """Text and the rung that wrote it; ``counts`` is false for withheld text that comes late."""

    text: str
    rung: str
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Lever:
    """What the scheduler did with the answer between two tokens; ``event`` is one of ``LEVERS``."""

    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """The end of an answer, with its summary."""

    finish_reason: str
    fields: Mapping[str, Any]


Part = AnswerToken | Lever | AnswerSummary


@dataclass(frozen=True, slots=True)
class Served:
    """The ladder of a server, whose name is the model's name, and its rungs from the largest on.

    ``resident_bytes``: the memory of each rung; a model that does not chat continues a text instead.
    """

    name: str
    resident_bytes: Mapping[str, int]
    chats: bool

    @property
    def rungs(self) -> tuple[str, ...]:
        """Names of the rungs."""
        return tuple(self.resident_bytes)


class Client:
    """A connection to a server; ``token`` is the one that the server requires from clients, if any."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        timeout = http.Timeout(CONNECT_S, read=SILENCE_S)
        self._http = http.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout, trust_env=False)
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """A JSON document."""
        with self._reached():
            return _checked(self._http.get(path)).json()

    def post(self, path: str, body: Mapping[str, Any], token: str | None = None) -> None:
        """POST a JSON body; ``token`` in place of the client's, such as the admin token."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with self._reached():
            _checked(self._http.post(path, json=body, headers=headers))

    def served(self) -> Served:
        """What the server serves."""
        props = self.get("/props")
        sizes = {rung["name"]: int(rung["resident_bytes"]) for rung in props["rungs"]}
        return Served(props["model_alias"], sizes, props["chat_format"] != PLAIN_CHAT)

    def answer(
        self,
        served: Served,
        messages: Sequence[Mapping[str, str]],
        *,
        kind: str,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Generator[Part]:
        """The parts of an answer, the ``AnswerSummary`` last. Closing the generator ends the answer."""
        prompt = {"messages": list(messages)} if served.chats else {"prompt": text_of(messages)}
        path = "/v1/chat/completions" if served.chats else "/v1/completions"
        options = {"max_tokens": max_tokens, "seed": seed}
        body = {
            "model": served.name,
            **prompt,
            **{name: value for name, value in options.items() if value is not None},
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "stream": True,
            "molt": {"kind": kind},
        }
        with self._reached(), self._http.stream("POST", path, json=body) as response:
            if response.is_error:
                response.read()
            complete = False
            for event in http.EventSource(_checked(response)):
                if event.data == "[DONE]":
                    break
                part = part_of(json.loads(event.data))
                complete |= isinstance(part, AnswerSummary)
                if part is not None:
                    yield part
        if not complete:
            raise ServerError("the answer broke off")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except http.ConnectError:
            raise ServerError(f"no server at {self.url}; start one with: molt serve") from None
        except http.RequestError as error:
            raise ServerError(f"{self.url}: the connection broke off ({type(error).__name__})") from None


def text_of(messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation as one text, for a model that continues texts."""
    return "\n\n".join(message["content"] for message in messages)


def part_of(chunk: Mapping[str, Any]) -> Part | None:
    """The part in a chunk, if any; ``ServerError`` if the chunk ends the answer with an error."""
    if "error" in chunk:
        raise ServerError(chunk["error"]["message"])
    molt = chunk.get("molt") or {}
    event = molt.get("event")
    for choice in chunk["choices"]:
        if event == "summary":
            return AnswerSummary(choice["finish_reason"], molt)
        if event in LEVERS:
            return Lever(event, molt)
        if text := choice["delta"].get("content") if "delta" in choice else choice["text"]:
            return AnswerToken(text, molt.get("rung", ""), event == "token")
        if event == "token":
            return AnswerToken("", molt["rung"])
    return None


def _checked(response: http.Response) -> http.Response:
    if not response.is_error:
        return response
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered with status {response.status_code}"
    if "retry-after" in response.headers:
        message += f"; try again in {response.headers['retry-after']} s"
    raise ServerError(message)
