"""The bodies of requests, as models that check them.

Rules of this module:

- No field is ignored in silence. A field of OpenAI's API that this server does not support may be given with a value
  that changes nothing (``null``, ``n`` of 1, a penalty of 0); anything else is refused by name.
- Messages about a wrong body name the place and what is allowed there, and never repeat a value.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)

from molt import units
from molt.core.events import TenantKind
from molt.errors import InputError
from molt.jobs.scenario import Duration
from molt.jobs.trace import Budget, parse_budget

SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
STOPS_MAX = 4
STOP_CHARS_MAX = 256
MESSAGES_MAX = 1024
STEPS_MAX = 10_000


class BadRequest(Exception):
    """A body that cannot be used; ``param`` is the place in it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


class BodyModel(BaseModel):
    """Strict: no unknown fields, no coercion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=BodyModel)


def parse(model: type[M], body: bytes) -> M:
    """A body as a model; ``BadRequest`` names the first place that is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = _place(first["loc"])
        message = "unknown field" if first["type"] == "extra_forbidden" else first["msg"]
        message = message.removeprefix("Value error, ")
        raise BadRequest(f"{place}: {message}" if place else message, place) from None


def _place(location: tuple[str | int, ...]) -> str | None:
    """``("messages", 0, "content", "str")`` as ``messages[0].content``: members of unions are no part of it."""
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        elif re.fullmatch(r"[a-z_]{1,40}", part) and part not in {"str", "int", "float", "bool"}:
            place += f".{part}" if place else part
        elif not place:
            return None
    return place or None


# --- answers ---


class MoltOptions(BodyModel):
    """Molt's own options: the kind of tenant, and whether the answer goes on after an end-of-text token."""

    kind: TenantKind = TenantKind.FOREGROUND
    ignore_eos: bool = False


class StreamOptions(BodyModel):
    """Whether a last chunk of the stream has the usage."""

    include_usage: bool = False


class TextFormat(BodyModel):
    """The format of an answer: text is the only one."""

    type: Literal["text"]


def _no(value: bool) -> bool:
    if value:
        raise InputError("must be false: this server does not support it")
    return value


Zero = Annotated[float, Field(ge=0, le=0)]
Nought = Annotated[int, Field(ge=0, le=0)]
One = Annotated[int, Field(ge=1, le=1)]
No = Annotated[bool, AfterValidator(_no), WithJsonSchema({"type": "boolean", "enum": [False]})]
StopText = Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]


class AnswerRequest(BodyModel):
    """The fields that chats and texts have in common."""

    model: Annotated[str, Field(max_length=256)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=SEED_MIN, le=SEED_MAX)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=STOPS_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    molt: MoltOptions = MoltOptions()

    n: One | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def with_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def tokens_wanted(self) -> int | None:
        """The length of the answer in tokens, at most, if the request has it."""
        return self.max_tokens


class TextPart(BodyModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BodyModel):
    """One message of a chat. The fields of an assistant's message beside its text must be empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def turn(self) -> tuple[str, str]:
        """Role and text."""
        text = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return "system" if self.role == "developer" else self.role, text


class ChatRequest(AnswerRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    logprobs: No | None = None
    top_logprobs: Nought | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: TextFormat | None = None
    store: No | None = None
    metadata: dict[str, str] | None = None

    @property
    def tokens_wanted(self) -> int | None:
        """``max_completion_tokens`` is the newer name of ``max_tokens``."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(AnswerRequest):
    """The body of ``POST /v1/completions``; ``prompt`` is a text, or tokens."""

    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[int], Field(min_length=1)]

    logprobs: Nought | None = None
    best_of: One | None = None
    echo: No | None = None
    suffix: None = None


# --- administration ---


def _budget(value: object) -> Budget:
    if isinstance(value, str):
        return parse_budget(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= units.QUANTITY_MAX:
        return Budget(value)
    raise InputError(
        f"budget must be a number of bytes from 1 to {units.QUANTITY_MAX}, or a text such as 40MiB or 150% of tier0"
    )


AnyBudget = Annotated[
    Budget,
    PlainValidator(_budget),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": units.QUANTITY_MAX},
                {"type": "string", "pattern": f"^([1-9][0-9]{{0,9}})({'|'.join(units.SIZE.units)})$"},
            ],
            "examples": ["40MiB", 41943040, "150% of tier0", "100% of tier1 + 2MiB"],
        }
    ),
]


class BudgetRequest(BodyModel):
    """The body of ``POST /admin/budget``: bytes, or a text such as ``40MiB`` or ``150% of tier0``."""

    budget: AnyBudget


class TraceStepRequest(BodyModel):
    """A step of a trace."""

    at: Duration
    budget: AnyBudget


class TraceRequest(BodyModel):
    """The body of ``POST /admin/trace``: steps from ``0s`` on, or the name of a trace that ships with Molt."""

    steps: Annotated[list[TraceStepRequest], Field(min_length=1, max_length=STEPS_MAX)] | None = None
    name: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,64}$")] | None = None


class FollowRequest(BodyModel):
    """The body of ``POST /admin/follow``."""

    source: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,64}$")]
