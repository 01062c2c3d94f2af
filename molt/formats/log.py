"""The append-only log of one run: what happened, what was decided, what came of it. Every number is read here.

One JSON object a line, keys sorted. The first line is the header, everything after it is identical for two runs
with one seed. Kinds of record, each with ``seq`` (from 1) and ``at_ns``:

=========  ==========================================================================================
event      a fact; ``type`` names the class in ``molt.core.events``, the other keys are its fields
outcome    a fact that answers a decision: as above, ``decision`` is that decision's ``seq``
decision   ``type`` names the class in ``molt.core.decisions``; ``cause`` is the ``seq`` of the event
refusal    a wish of the policy that broke a rule: ``rule``, ``reason``, ``cause``
memory     what the world holds: ``budget_bytes``, ``usage_bytes``, ``parts`` (``weights`` and ``scratch`` by
           rung, ``kv`` by tenant, ``transient`` by purpose), ``round`` true when sampled after enforcement;
           ``measured`` readings beside the books, where some are taken
violation  an invariant that did not hold: ``invariant``, ``detail``
engine     of an engine in a process of its own: ``what`` is ``started`` (``pid``, ``took_ns``), ``ended`` (``reason``
           and ``status``, negative for the signal) or ``gave up`` (at whom: ``tenant``)
signal     of real processes: ``budget_bytes`` was reported to the process; what was in use then (``held_bytes``, the
           engine's ``own_bytes`` of it) and how fast others grew
pressure   of real processes: other programs have ``taken_bytes`` and leave ``budget_bytes``
kernel     of real processes, ten times a second: what the kernel has counted by then, limit and line of the group
victim     of real processes: who was killed, ``what`` and ``pid``
end        the last record of a complete log: ``reason``
=========  ==========================================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from molt.core import decisions, events
from molt.errors import InputError
from molt.formats.log_records import check_header, check_record
from molt.formats.yaml_file import show

T = TypeVar("T")
SCHEMA = 1

_EVENT_TYPES: dict[str, type] = {t.__name__: t for t in typing.get_args(events.AnyEvent)}


_PLAIN_TYPES = frozenset({int, str, float, bool, type(None)})
_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


RECORD_PARTS_MAX = 10_000
"""Parts of a rotated log that are read as one."""

FILE_NAME = "events.jsonl"
"""What a log is called in the folder of its policy."""

RETOLD = "retold"
"""What the header of a simulated run has as its ``memory`` where that is the memory of an earlier run."""


class LogError(InputError):
    """A log that cannot be read; the message names the file and the line."""


@functools.cache
def _field_names(record_type: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record_type))


def plain(value: Any) -> Any:
    """A value of the core as JSON types: dataclasses become objects, tuples lists, enums their value."""
    if type(value) in _PLAIN_TYPES:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _field_names(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(plain(item) for item in value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


@functools.cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def restore(kind: type[T], value: Any) -> T:
    """The inverse of ``plain`` for a dataclass of the core; keys that it does not have are passed over.

    ``ValueError`` in one line, naming the place, for a value of another type.
    """
    reader: TypeAdapter[T] = _reader(typing.cast(Any, kind))
    try:
        return reader.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {show(first['input'])}: {first['msg']}") from None


def event_from(record: Mapping[str, Any]) -> events.AnyEvent:
    """The event of a record of kind ``event`` or ``outcome``."""
    event: events.AnyEvent = restore(_EVENT_TYPES[record["type"]], record)
    return event


class Sink(Protocol):
    """Where a log is written: lines, each whole."""

    def write(self, line: str, /) -> object: ...

    def flush(self) -> object: ...


class Log:
    """Writes a log; keeps a running sha256 of everything after the header."""

    def __init__(self, sink: Sink, header: Mapping[str, Any]) -> None:
        self._sink = sink
        self._sha = hashlib.sha256()
        self._seq = 0
        sink.write(_line({"kind": "header", "schema": SCHEMA, **header}))

    def write(self, kind: str, at_ns: int, **fields: Any) -> int:
        """Append a record and return its ``seq``."""
        self._seq += 1
        line = _line({"kind": kind, "seq": self._seq, "at_ns": at_ns, **fields})
        self._sink.write(line)
        self._sha.update(line.encode())
        return self._seq

    def event(self, event: events.AnyEvent) -> int:
        """Append a fact."""
        fields = plain(event)
        kind = "outcome" if fields.get("decision") is not None else "event"
        return self.write(kind, type=type(event).__name__, **fields)

    def decision(self, decision: decisions.AnyDecision, at_ns: int, cause: int) -> int:
        """Append a decision and the event that caused it."""
        return self.write("decision", at_ns, type=type(decision).__name__, cause=cause, **plain(decision))

    def sha256(self) -> str:
        """Hex digest of every record so far, without the header."""
        return self._sha.hexdigest()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.flush()


def _line(record: Mapping[str, Any]) -> str:
    return _ENCODER.encode(record) + "\n"


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and records of a log file, each checked (``log_records``). One torn last line is tolerated; anything else
    raises ``LogError``.

    A log that was rotated is read from its first part on; ``LogError`` where a part before ``path`` is not there.
    """
    header, records = _read_file(path)
    part = header.get("part", 1)
    if part == 1:
        return header, records
    if not isinstance(part, int) or part < 1:
        raise LogError(f"{path}: line 1: part: not a number from 1 on")
    age = int(path.suffix[1:]) if path.suffix[1:].isdecimal() else 0
    name = path.stem if age else path.name
    earlier = [
        path.with_name(f"{name}.{age + part - number}") for number in range(1, min(part, RECORD_PARTS_MAX))
    ]
    if part > RECORD_PARTS_MAX or not all(one.is_file() for one in earlier):
        raise LogError(
            f"{path}: part {part} of a rotated log, which can be read from part 1 on only; not every part before "
            f"it is there as {path.with_name(name)}.N"
        )
    joined: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for number, one in enumerate(earlier, start=1):
        head, some = _read_file(one)
        if head.get("part", 1) != number or {**head, "part": part} != header:
            raise LogError(f"{one}: line 1: not part {number} of the log that {path} is a part of")
        first = first or head
        joined += some
    return first, joined + records


def _read_file(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    records = list(_records(path))
    if not records:
        raise LogError(f"{path}: line 1: not a molt log (no header)")
    return records[0], records[1:]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as source:
            lines = source.readlines()
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            record = from_json(line, allow_inf_nan=False)
        except ValueError as error:
            if 1 < number == len(lines) and not line.endswith(b"\n"):
                return
            raise LogError(f"{path}: line {number}: {_damage(line, error)}") from None
        try:
            _check(record, number)
        except ValueError as error:
            raise LogError(f"{path}: line {number}: {error}") from None
        yield record


def _damage(line: bytes, error: ValueError) -> str:
    """Why a line cannot be read at all."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as decoding:
        return f"not UTF-8 (byte {decoding.start}); not a molt log"
    return f"not JSON: {error}"


def _check(record: object, line: int) -> None:
    if not isinstance(record, dict):
        raise ValueError("not an object")
    if line > 1:
        check_record(record)
        return
    if record.get("kind") != "header":
        raise ValueError("not a molt log (no header)")
    if record.get("schema") != SCHEMA:
        raise ValueError(f"schema {show(record.get('schema'))}, this version reads {SCHEMA}")
    check_header(record)
