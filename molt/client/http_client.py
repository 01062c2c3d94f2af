"""A client of ``molt serve``: streamed answers, and the few other requests that a terminal makes.

Rules of this module:

- The client uses the HTTP API alone; it imports nothing of the server.
- Every failure is a ``ServerError`` of one line: no connection, a refusal, an answer that breaks off or is none.
- A server is not trusted: what it sends has the form that is promised, or is a ``ServerError``, and no text of it that
  goes to a terminal has control characters.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Any, NotRequired, Self

import httpx2 as http
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

CONNECT_S = 10.0
SILENCE_S = 300.0
"""How long an answer may be silent: it is deferred or parked while memory is short."""

MESSAGE_CHARS_MAX = 1000
NO_ANSWER = "the server's answer is not one of molt serve"

TEMPERATURE, TOP_P = 0.8, 0.95
PLAIN_CHAT = "plain"
"""The server's name for the chat format of a model that does not chat."""

LEVERS = frozenset(
    {"switch", "park", "resume", "defer", "admit", "spill", "restore", "shed", "restarted", "healed"}
)


Number = Annotated[int | float, Field(allow_inf_nan=False)]


class ServerError(Exception):
    """The server cannot be reached, refuses, or ended an answer that was not complete. One plain line."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(printable(str(message)[:MESSAGE_CHARS_MAX]).split()))


def printable(text: str) -> str:
    """A server's text without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() or char in "\n\t\u200d" else "\ufffd" for char in text)


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
            return _json(_checked(self._http.get(path)).content)

    def post(self, path: str, body: Mapping[str, Any], token: str | None = None) -> None:
        """POST a JSON body; ``token`` in place of the client's, such as the admin token."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with self._reached():
            _checked(self._http.post(path, json=body, headers=headers))

    def served(self) -> Served:
        """What the server serves."""
        props = _shaped(_PROPS, self.get("/props"))
        sizes = {rung["name"]: rung["resident_bytes"] for rung in props["rungs"]}
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
                part = part_of(_json(event.data))
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
        except (http.RequestError, http.StreamError) as error:
            raise ServerError(f"{self.url}: the connection broke off ({type(error).__name__})") from None
        except (http.InvalidURL, UnicodeError):
            raise ServerError(f"{self.url}: no address of a server") from None


def text_of(messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation as one text, for a model that continues texts."""
    return "\n\n".join(message["content"] for message in messages)


def part_of(chunk: Any) -> Part | None:
    """The part in a chunk, if any; ``ServerError`` if the chunk ends the answer with an error, or is none."""
    if isinstance(chunk, Mapping) and "error" in chunk:
        raise ServerError(_reason(chunk) or NO_ANSWER)
    checked = _shaped(_CHUNK, chunk)
    molt: Mapping[str, Any] = chunk.get("molt") or {}
    event = molt.get("event")
    for choice in checked["choices"]:
        if event == "summary":
            return AnswerSummary(choice.get("finish_reason") or "", _shaped(_SUMMARY, molt, molt))
        if event in LEVERS:
            return Lever(str(event), _shaped(_SWITCH if event == "switch" else _LEVER, molt, molt))
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else delta.get("content")
        rung = _shaped(_TOKEN, molt)["rung"] if event == "token" else str(molt.get("rung", ""))
        if text:
            return AnswerToken(text, rung, event == "token")
        if event == "token":
            return AnswerToken("", rung)
    return None


class _Delta(TypedDict):
    content: NotRequired[str | None]


class _Choice(TypedDict):
    delta: NotRequired[_Delta]
    text: NotRequired[str | None]
    finish_reason: NotRequired[str | None]


class _Molt(TypedDict):
    event: NotRequired[str | None]


class _Chunk(TypedDict):
    choices: list[_Choice]
    molt: NotRequired[_Molt | None]


class _Token(TypedDict):
    rung: str


class _Pressure(TypedDict):
    budget_bytes: Number
    usage_bytes: Number


class _Lever(TypedDict):
    rung: NotRequired[str | None]
    pressure: NotRequired[_Pressure | None]


_Switch = TypedDict(
    "_Switch",
    {"from": str, "to": str, "kind": str, "ms": Number, "flops_saved": NotRequired[Number | None],
     "pressure": NotRequired[_Pressure | None]},
)  # fmt: skip


class _Summary(TypedDict):
    tokens: int
    rungs: dict[str, int]
    switches: list[dict[str, Any]]
    switch_ms: Number
    killed: bool


class _Rung(TypedDict):
    name: str
    resident_bytes: int


class _Props(TypedDict):
    model_alias: str
    chat_format: str
    rungs: list[_Rung]


_CHUNK, _TOKEN, _LEVER, _SWITCH, _SUMMARY, _PROPS = (
    TypeAdapter(shape) for shape in (_Chunk, _Token, _Lever, _Switch, _Summary, _Props)
)


def _shaped(shape: TypeAdapter[Any], value: Any, whole: Any = None) -> Any:
    """A value with the fields of ``shape``, or ``whole`` if it has them; ``ServerError`` if not."""
    try:
        checked = shape.validate_python(value, strict=True)
    except ValidationError:
        raise ServerError(NO_ANSWER) from None
    return checked if whole is None else whole


def _json(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ServerError(NO_ANSWER) from None


def _reason(body: Any) -> str | None:
    """The message of an error as a server sends it."""
    error = body.get("error") if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return message if isinstance(message, str) else None


def _checked(response: http.Response) -> http.Response:
    if not response.is_error:
        return response
    try:
        reason = _reason(_json(response.content))
    except ServerError:
        reason = None
    message = reason or f"the server answered with status {response.status_code}"
    if "retry-after" in response.headers:
        message += f"; try again in {response.headers['retry-after']} s"
    raise ServerError(message)
