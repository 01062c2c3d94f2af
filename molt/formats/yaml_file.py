"""Strict YAML 1.2: plain data in, one clear line out when something is wrong.

Rules of this module:

- Only ``dict``, ``list``, ``str``, ``int``, ``float``, ``bool`` and ``None`` come out. Tags, anchors, aliases
  and directives are refused, so that no file can build an object or grow beyond its own size.
- Keys are text, exactly as written (``on`` is the key "on"), and may not repeat.
- What another reader would take for something else is refused, not guessed: ``012``, ``.nan``, ``1e999``.
- ``yes``, ``NO``, ``1:30``, ``1_000``, ``1,024`` and ``2024-01-01`` are text, as YAML 1.2 has it.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from molt.errors import InputError

BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 32
DIGITS_MAX = 40

Place = tuple[str | int, ...]  # the keys and list positions that lead to a value
M = TypeVar("M", bound=BaseModel)

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = dict.fromkeys(("", "~", "null", "Null", "NULL")) | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}


class StrictModel(BaseModel):
    """The model to derive file schemas from: frozen, no unknown keys, no coercion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def load(path: Path) -> object:
    """The plain data of a YAML file.

    Raises ``InputError`` with the message ``"<path>: line N: ..."``, or without a line where there is none
    (no such file, not UTF-8, empty).
    """
    return _read(path)[0]


def validate(model: type[M], data: object, path: Path) -> M:
    """``data`` (plain, as ``load`` returns it) as a ``model``.

    Validated as JSON is: with a strict model a list is good for a tuple and text for an enum, but ``"1"`` is
    no number. Raises ``InputError`` with one line that names the file, the place, the value and, for an
    unknown word, the nearest valid one. The line is that of ``path`` while its text still has such a place.
    """
    try:
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first, others = _worst(problems, model, data)
        place = _place(first, data)
        more = f"; {others} more wrong in this file" if others else ""
        dotted = f"{dot(place)}: " if place else ""
        raise InputError(f"{_at(path, place)}{dotted}{_explain(first, model)}{more}") from None


def dot(place: Iterable[str | int]) -> str:
    """``("rungs", 0, "name")`` as ``rungs[0].name``; a key that does not print on one line is quoted."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if part.isprintable() else ascii(part))
    return text


def nearest(word: str, valid: Iterable[str]) -> str:
    """The tail of a message about an unknown ``word``: the nearest valid one, or all of them."""
    words = list(valid)
    by_lower = {valid_word.lower(): valid_word for valid_word in words}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    return f"valid: {', '.join(words)}" if words else "there is no valid one"


def show(value: object) -> str:
    """A value as it stands in a message: on one line, and short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- reading ---


def _read(path: Path) -> tuple[object, dict[Place, int]]:
    """The data of a file, and the line (from 1) on which each place of it begins."""
    try:
        reader = _Reader(path, iter(YAML(typ="safe", pure=True).parse(read_text(path))))
        return reader.document(), reader.lines
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise InputError(f"{path}: {where}not YAML: {_one_line(error.problem or error.context)}") from None
    except YAMLError as error:
        raise InputError(f"{path}: not YAML: {_one_line(str(error))}") from None


def read_text(path: Path) -> str:
    """A whole file as text (UTF-8, an optional byte order mark left out); ``InputError`` if that cannot be."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if len(raw) > BYTES_MAX:
        raise InputError(f"{path}: {len(raw)} bytes; a file may have {BYTES_MAX}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(f"{path}: line {line}: not UTF-8 (byte 0x{raw[error.start]:02x})") from None


class _Reader:
    """Builds plain data from the parser's events, and notes the line of every place."""

    def __init__(self, path: Path, events: Iterator[Event]) -> None:
        self.path = path
        self.events = events
        self.lines: dict[Place, int] = {}

    def document(self) -> object:
        documents: list[object] = []
        for event in self.events:
            match event:
                case StreamStartEvent() | StreamEndEvent() | DocumentEndEvent():
                    pass
                case DocumentStartEvent() if documents:
                    raise self.refuse(event, "a second document; a file holds one")
                case DocumentStartEvent() if event.version or event.tags:
                    raise self.refuse(event, "a % directive; files are plain YAML 1.2")
                case DocumentStartEvent():
                    documents.append(self.value(next(self.events), ()))
        if not documents:
            raise InputError(f"{self.path}: the file is empty")
        return documents[0]

    def value(self, event: Event, place: Place) -> object:
        self.lines.setdefault(place, event.start_mark.line + 1)
        if len(place) > DEPTH_MAX:
            raise self.refuse(event, f"nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            raise self.refuse(event, "anchors (&) and aliases (*) are not used here; write the value out")
        if (tag := _explicit_tag(event)) is not None:
            raise self.refuse(event, f"tag {tag}: only plain values are read, no objects are built")
        match event:
            case ScalarEvent():
                return self.scalar(event)
            case SequenceStartEvent():
                return self.sequence(place)
            case MappingStartEvent():
                return self.mapping(place)
        raise AssertionError(f"no value begins with {event}")

    def sequence(self, place: Place) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self.value(event, (*place, len(items))))
        return items

    def mapping(self, place: Place) -> dict[str, object]:
        pairs: dict[str, object] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            if not isinstance(event, ScalarEvent) or event.anchor or _explicit_tag(event) is not None:
                raise self.refuse(event, "a key is plain text")
            key = event.value
            if key in pairs:
                first = self.lines[(*place, key)]
                raise self.refuse(event, f"key {key!r} a second time (first on line {first})")
            self.lines[(*place, key)] = event.start_mark.line + 1
            pairs[key] = self.value(next(self.events), (*place, key))
        return pairs

    def scalar(self, event: ScalarEvent) -> object:
        text: str = event.value
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            raise self.refuse(event, f"{show(text)} holds half a surrogate pair")
        if event.style is not None:  # quoted or a block: text, whatever it looks like
            return text
        if text in _WORDS:
            return _WORDS[text]
        try:
            return _number(text)
        except ValueError as error:
            raise self.refuse(event, str(error)) from None

    def refuse(self, event: Event, reason: str) -> InputError:
        return InputError(f"{self.path}: line {event.start_mark.line + 1}: {reason}")


def _number(text: str) -> int | float | str:
    """A plain scalar as the number it is, else as text; ``ValueError`` for what readers take differently."""
    if _LEADING_ZERO.fullmatch(text):
        plain = text.lstrip("+-").lstrip("0") or "0"
        raise ValueError(f"{text}: a leading zero; write {plain}, or '{text}' if it is text")
    if _NOT_A_NUMBER.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    is_int = _INT.fullmatch(text) or _OTHER_BASE.fullmatch(text)
    if not is_int and not _FLOAT.fullmatch(text):
        return text
    if len(text) > DIGITS_MAX:
        raise ValueError(f"{show(text)}: a number of more than {DIGITS_MAX} characters")
    if is_int:
        return int(text, 0)
    if math.isinf(float(text)):
        raise ValueError(f"{text} is not a finite number")
    return float(text)


def _explicit_tag(event: Event) -> str | None:
    tag = getattr(event, "ctag", None)
    return None if tag is None or not str(tag) or str(tag) == "None" else str(tag)


def _one_line(text: str | None) -> str:
    return " ".join((text or "cannot be parsed").split())


# --- explaining what a model refused ---


def _at(path: Path, place: Place) -> str:
    """``"<path>: line N: "`` of a place, or of the innermost part of it that the file has."""
    try:
        lines = _read(path)[1]
    except InputError:
        return f"{path}: "
    while place and place not in lines:
        place = place[:-1]
    return f"{path}: line {lines[place]}: " if place in lines else f"{path}: "


def _worst(problems: list[Any], model: type[BaseModel], data: object) -> tuple[Any, int]:
    """The problem to report, and how many others there are.

    A value that could be one of several models is judged by the one it shares the most keys with. An unknown
    key comes before the rest: a key missing elsewhere is often the same slip.
    """
    kept = [problem for problem in problems if _is_of_likeliest(problem["loc"], model, data)] or problems
    unknown = [problem for problem in kept if problem["type"] == "extra_forbidden"]
    first = (unknown or kept)[0]
    return first, len({_place(problem, data) for problem in kept} - {_place(first, data)})


def _is_of_likeliest(loc: Place, model: type[BaseModel], data: object) -> bool:
    types: list[Any] = [model]
    for part in loc:
        members = {one.__name__: one for one in types if _is_model(one)}
        if isinstance(data, dict) and part in members and part not in data and len(members) > 1:
            shared = {name: _keys_shared(one, data) for name, one in members.items()}
            if shared[str(part)] < max(shared.values()):
                return False
            types = [members[str(part)]]
            continue
        types = _inside(types, part)
        data = _step(data, part)
    return True


def _keys_shared(model: type[BaseModel], data: dict[str, object]) -> int:
    """How many keys of ``data`` a model has, near misses included."""
    return sum(bool(difflib.get_close_matches(key, model.model_fields, n=1)) for key in data)


def _inside(types: list[Any], part: str | int) -> list[Any]:
    """The types a value may have one step further in."""
    found: list[Any] = []
    for one in types:
        if _is_model(one) and one.__name__ == part and part not in one.model_fields:
            found.append(one)
        elif _is_model(one):
            field = one.model_fields.get(str(part))
            found += _alternatives(field.annotation) if field else []
        elif get_args(one):
            found += [inner for argument in get_args(one) for inner in _alternatives(argument)]
    return found


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union (or of ``Annotated``), else the type itself."""
    if isinstance(annotation, type) or getattr(annotation, "__origin__", None) in (list, tuple, dict):
        return [annotation]
    return [inner for argument in get_args(annotation) for inner in _alternatives(argument)]


def _is_model(one: Any) -> bool:
    return isinstance(one, type) and not get_args(one) and issubclass(one, BaseModel)


def _step(data: object, part: str | int) -> object:
    if isinstance(data, dict) and part in data:
        return data[part]
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return data


def _place(problem: Any, data: object) -> Place:
    """Where a problem is in the file: its location without the names pydantic adds for members of unions."""
    place: Place = ()
    for position, part in enumerate(problem["loc"]):
        is_last_missing = problem["type"] == "missing" and position == len(problem["loc"]) - 1
        in_data = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if in_data or is_last_missing:
            place = (*place, part)
            data = _step(data, part)
    return place


def _explain(problem: Any, model: type[BaseModel]) -> str:
    value = show(problem["input"])
    match problem["type"]:
        case "extra_forbidden":
            key = str(problem["loc"][-1])
            types: list[Any] = [model]
            for part in problem["loc"][:-1]:
                types = _inside(types, part)
            valid = dict.fromkeys(name for one in types if _is_model(one) for name in one.model_fields)
            return f"unknown key; {nearest(key, valid)}"
        case "missing":
            return "is missing"
        case "literal_error" | "enum":
            return f"{value} is not known; {nearest(str(problem['input']), _words_of(problem))}"
        case "value_error":
            reason = _one_line(str(problem["ctx"]["error"]))
            return reason if isinstance(problem["input"], dict | list) else f"{value}: {reason}"
        case _:
            return f"{value}: {_one_line(problem['msg'])[0].lower()}{_one_line(problem['msg'])[1:]}"


def _words_of(problem: Any) -> list[str]:
    return re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
