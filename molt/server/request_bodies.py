"""The bodies of requests, as models that check them.

Rules of this module:

- No field is ignored in silence. A field of OpenAI's API that this server does not support may be given with a value
  that changes nothing (``null``, ``n`` of 1, a penalty of 0); anything else is refused by name.
- Fields that do not change the text of an answer (``user``, ``metadata``) are accepted, and the answer lists them.
- Messages about a wrong body name the place and what is allowed there, and never repeat a value. Of a field that may
  have several forms they are about the form that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
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
TOP_K_MAX = 2**31 - 1
STEPS_MAX = 10_000


class BadRequest(Exception):
    """A body that cannot be used; ``param`` is the place in it, ``code`` a name of the reason for programs."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


class BodyModel(BaseModel):
    """Strict: no unknown fields, no coercion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=BodyModel)


def parse(model: type[M], body: bytes) -> M:
    """A body as a model; ``BadRequest`` names the first place that is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        place, message = _meant(errors)
        raise BadRequest(f"{place}: {message}" if place else message, place) from None


_FORMS = {
    "string_type": "a string",
    "list_type": "a list",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "none_required": "null",
}
"""What a value is not, by pydantic's type of error."""


def _meant(errors: Sequence[Any]) -> tuple[str | None, str]:
    """The place and the message of the first place that is wrong.

    A field with several forms has errors of each. Where its value has the type of one form, what is wrong there counts;
    where it has the type of none, the message names all types.
    """
    place = _place(errors[0]["loc"])
    if place is None:
        return None, _message(errors[0])
    about = list(takewhile(lambda error: _is_within(_place(error["loc"]), place), errors))
    forms = [_FORMS.get(error["type"]) if _place(error["loc"]) == place else None for error in about]
    others = [error for error, form in zip(about, forms, strict=True) if form is None]
    if len(about) > 1 and others and None not in forms[:1]:
        return _place(others[0]["loc"]), _message(others[0])
    if forms[0] is not None:
        named = dict.fromkeys(form for form in forms if form is not None)
        return place, f"must be {' or '.join(named)}"
    return place, _message(errors[0])


def _message(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field"
    if error["type"] in _FORMS:
        return f"must be {_FORMS[error['type']]}"
    message: str = error["msg"]
    return message.removeprefix("Value error, ").replace(" after validation", "")


def _is_within(place: str | None, outer: str) -> bool:
    return place is not None and re.fullmatch(re.escape(outer) + r"([.\[].*)?", place) is not None


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
    """Whether a last chunk of the stream has the usage. ``include_obfuscation`` is ignored: nothing is padded."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class TextFormat(BodyModel):
    """The format of an answer: text is the only one."""

    type: Literal["text"]


def _only(neutral: object) -> Callable[[Any], Any]:
    """Refuses any other value than the one that changes nothing."""

    def check(value: Any) -> Any:
        if value != neutral:
            shown = "empty" if isinstance(neutral, list | dict) else str(neutral).lower()
            raise InputError(f"must be {shown}: this server supports no other value")
        return value

    return check


Zero = Annotated[float, AfterValidator(_only(0)), WithJsonSchema({"type": "number", "enum": [0]})]
Nought = Annotated[int, AfterValidator(_only(0)), WithJsonSchema({"type": "integer", "enum": [0]})]
One = Annotated[int, AfterValidator(_only(1)), WithJsonSchema({"type": "integer", "enum": [1]})]
No = Annotated[bool, AfterValidator(_only(False)), WithJsonSchema({"type": "boolean", "enum": [False]})]
_ONE = {"type": "number", "enum": [1]}
Nothing = Annotated[list[Any], AfterValidator(_only([])), WithJsonSchema({"type": "array", "maxItems": 0})]
NoBias = Annotated[
    dict[str, float], AfterValidator(_only({})), WithJsonSchema({"type": "object", "maxProperties": 0})
]
StopText = Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]
Label = Annotated[str, Field(max_length=256)]
Labels = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]

IGNORED = (
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "cache_prompt",
)  # fmt: skip
"""Fields that are accepted and change nothing: they are about accounts, caches and tools of other servers."""


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
    top_k: Annotated[int, Field(ge=-1, le=TOP_K_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    molt: MoltOptions = MoltOptions()

    user: Label | None = None
    metadata: Labels | None = None
    store: bool | None = None
    service_tier: Label | None = None
    parallel_tool_calls: bool | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    cache_prompt: bool | None = None

    n: One | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    repetition_penalty: Annotated[float, AfterValidator(_only(1)), WithJsonSchema(_ONE)] | None = None
    logit_bias: NoBias | None = None

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

    @property
    def ignored(self) -> list[str]:
        """The fields that were given and change nothing."""
        found = [name for name in IGNORED if getattr(self, name) is not None]
        obfuscation = self.stream_options is not None and self.stream_options.include_obfuscation is not None
        return found + ["stream_options.include_obfuscation"] * obfuscation


def _text_only(kind: str) -> str:
    if kind != "text":
        raise InputError("must be text: this server reads no images, sounds or files")
    return kind


class TextPart(BodyModel):
    """A part of a message."""

    type: Annotated[str, AfterValidator(_text_only), WithJsonSchema({"type": "string", "enum": ["text"]})]
    text: str


class Message(BodyModel):
    """One message of a chat. The fields of an assistant's message beside its text must be empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: Label | None = None
    refusal: None = None
    annotations: Nothing | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing | None = None

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
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None

    @property
    def ignored(self) -> list[str]:
        """The fields that were given and change nothing."""
        named = any(message.name is not None for message in self.messages)
        return super().ignored + ["messages.name"] * named

    @property
    def tokens_wanted(self) -> int | None:
        """``max_completion_tokens`` is the newer name of ``max_tokens``."""
        return self.max_completion_tokens or self.max_tokens


def _prompt(value: object) -> str | list[int]:
    match value:
        case [str() | list() as only]:
            return _one_prompt(only)
        case [str() | list(), *others]:
            count = 1 + len(others)
            raise InputError(
                f"must be one prompt; these are {count}, so ask for each in a request of its own"
            )
    return _one_prompt(value)


def _one_prompt(value: object) -> str | list[int]:
    match value:
        case str() | list() if not value:
            raise InputError("must not be empty")
        case str():
            return value
        case list() if all(isinstance(token, int) and not isinstance(token, bool) for token in value):
            return value
    raise InputError("must be a text, a list of tokens (whole numbers), or a list of one of these")


_TOKENS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
AnyPrompt = Annotated[
    str | list[int],
    PlainValidator(_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                _TOKENS,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 1},
                {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": 1},
            ]
        }
    ),
]


class CompletionRequest(AnswerRequest):
    """The body of ``POST /v1/completions``; ``prompt`` is a text, or tokens, or a list of one of these."""

    prompt: AnyPrompt

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
