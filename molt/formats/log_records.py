"""What the records of a log must be like before anything is computed from them.

A log may come from others, be damaged or be altered. Either every field that a reader may use has its type and is
within its range, or the log is refused with one line: ``check_header``, ``check_record``.

Rules of this module:

- Fields of events and decisions are those of their dataclasses in ``molt.core``; a field with a default may be absent.
- Every number is within ``QUANTITY_MAX``; times, lengths and most sizes are not negative. So sums are finite.
- A record has at most one token a stamp: no log makes its reader hold more than it has itself.
- Kinds and types that this version does not know need only what all records have; readers skip them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic_core import SchemaValidator, ValidationError
from pydantic_core import core_schema as cs

from molt.core import decisions, events
from molt.formats.yaml_file import show
from molt.units import QUANTITY_MAX

FLOAT_MAX = 1e100

Schema = cs.CoreSchema
Fields = Mapping[str, tuple[Schema, bool]]
"""Schema of every field by its name, and whether it must be there."""

_COUNT = cs.int_schema(strict=True, ge=0, le=QUANTITY_MAX)
_SIGNED = cs.int_schema(strict=True, ge=-QUANTITY_MAX, le=QUANTITY_MAX)
_NUMBER = cs.float_schema(strict=True, allow_inf_nan=False, ge=-FLOAT_MAX, le=FLOAT_MAX)
_TEXT = cs.str_schema(strict=True)
_BOOL = cs.bool_schema(strict=True)


def check_header(header: Mapping[str, Any]) -> None:
    """``ValueError``, in one line that names the place, for a header that no reader can use."""
    _check(_HEADER, header)


def check_record(record: Mapping[str, Any]) -> None:
    """``ValueError``, in one line that names the place, for a record that no reader can use."""
    key = _key(record)
    _check(_VALIDATORS.get(key, _ANY_RECORD), record)
    if key[1] == events.TokensProduced.__name__:
        stamps = len(record.get("stamps_ns", ()))
        if (most := max(record["count"], len(record.get("pieces", ())))) > max(1, stamps):
            raise ValueError(f"count: {most} tokens with {stamps} of stamps_ns")


def is_known(record: Mapping[str, Any]) -> bool:
    """Whether this version knows the kind of a record and, of an event or a decision, its type."""
    return _key(record) in _VALIDATORS and (record["kind"] in _TYPED or "type" not in record)


def _key(record: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and type; the type is empty for kinds that have none."""
    kind = str(record.get("kind"))
    return kind, str(record.get("type")) if kind in _TYPED else ""


def _check(validator: SchemaValidator, value: Mapping[str, Any]) -> None:
    try:
        validator.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ValueError(f"{place} is missing") from None
        raise ValueError(f"{place}: {show(first['input'])}: {first['msg']}") from None


# --- fields ---


def _required(**fields: Schema) -> Fields:
    return {name: (schema, True) for name, schema in fields.items()}


def _optional(**fields: Schema) -> Fields:
    return {name: (schema, False) for name, schema in fields.items()}


def _nullable(**fields: Schema) -> Fields:
    return _optional(**{name: cs.nullable_schema(schema) for name, schema in fields.items()})


def _object(*parts: Fields) -> Schema:
    fields = {name: field for part in parts for name, field in part.items()}
    return cs.typed_dict_schema(
        {name: cs.typed_dict_field(schema, required=needed) for name, (schema, needed) in fields.items()},
        extra_behavior="ignore",
        strict=True,
    )


def _list(items: Schema) -> Schema:
    return cs.list_schema(items, strict=True)


def _dict(values: Schema) -> Schema:
    return cs.dict_schema(_TEXT, values, strict=True)


def _fields_of(record_type: type) -> Fields:
    """The fields of a dataclass of the core as they are in JSON."""
    hints = typing.get_type_hints(record_type)
    return {
        field.name: (_schema_of(field.name, hints[field.name]), field.default is dataclasses.MISSING)
        for field in dataclasses.fields(record_type)
    }


def _schema_of(name: str, hint: Any) -> Schema:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        (member,) = (one for one in typing.get_args(hint) if one is not type(None))
        return cs.nullable_schema(_schema_of(name, member))
    if origin is tuple:
        return _list(_schema_of(name, typing.get_args(hint)[0]))
    if hint is events.Handoff:
        return _HANDOFF
    if dataclasses.is_dataclass(hint):
        return _object(_fields_of(typing.cast(type, hint)))
    if hint is int:
        return _SIGNED if name in _SIGNED_FIELDS else _COUNT
    if hint is float:
        return _NUMBER
    assert issubclass(hint, str | Enum), f"{name} is of a type that no record has: {hint}"
    return _TEXT


_SIGNED_FIELDS = {"freed_bytes", "budget_bytes"}
_HANDOFF = _object(
    _nullable(**dict.fromkeys(("kl", "jsd", "jsd_floor", "recovered_context"), _NUMBER))
)  # of old logs, perhaps not all


# --- records and the header ---

_RECORD = {**_required(kind=_TEXT, seq=_COUNT, at_ns=_COUNT), **_optional(tenant=_TEXT)}
_TYPED = frozenset({"event", "outcome", "decision"})
_EVENTS: tuple[type, ...] = typing.get_args(events.AnyEvent)
_DECISIONS: tuple[type, ...] = typing.get_args(decisions.AnyDecision)

_UNTYPED: dict[str, tuple[Fields, ...]] = {
    "refusal": (_nullable(rule=_TEXT, reason=_TEXT),),
    "memory": (
        _required(budget_bytes=_SIGNED, usage_bytes=_COUNT),
        _optional(parts=_dict(_dict(_COUNT)), round=_BOOL, measured=_dict(_SIGNED)),
    ),
    "violation": (_nullable(invariant=_TEXT, detail=_TEXT),),
    "engine": (_nullable(what=_TEXT),),
    "signal": (_required(budget_bytes=_SIGNED), _nullable(held_bytes=_SIGNED, own_bytes=_SIGNED)),
    "pressure": (_required(taken_bytes=_COUNT, budget_bytes=_SIGNED),),
    "kernel": (
        _nullable(
            **dict.fromkeys(("kills", "peak_bytes", "stall_ns", "limit_bytes", "major_faults"), _COUNT),
            **dict.fromkeys(("line_bytes", "base_bytes", "held_max_bytes", "own_max_bytes"), _SIGNED),
        ),
    ),
    "victim": (_required(what=_TEXT, pid=_COUNT),),
    "end": (_nullable(reason=_TEXT),),
}

_TENANT = _object(_required(name=_TEXT), _optional(kind=_TEXT, arrives_ns=_COUNT))
_SCENARIO = _object(
    _nullable(name=_TEXT, seed=_SIGNED, profile=_TEXT),
    _optional(
        kill_after_ns=_COUNT,
        budgets=_list(cs.list_schema(_SIGNED, strict=True, min_length=2, max_length=2)),
        tenants=_list(_TENANT),
    ),
)
_RUNG = _object(_required(name=_TEXT, weight_bytes=_COUNT, scratch_bytes=_COUNT), _optional(mapped=_BOOL))
_HEADER = SchemaValidator(
    _object(
        _optional(
            scenario=_SCENARIO,
            ladder=_object(_nullable(name=_TEXT), _optional(rungs=_list(_RUNG))),
            policy=_object(_nullable(name=_TEXT)),
            engine=_TEXT,
            memory=_TEXT,
            machine=_object(_nullable(processor=_TEXT, cores=_COUNT, memory_bytes=_COUNT, system=_TEXT)),
            versions=_dict(cs.nullable_schema(_TEXT)),
            real=_object(_nullable(rate_bytes_per_s=_COUNT, slowdown=_NUMBER), _optional(huge=_BOOL)),
        ),
        _nullable(commit=_TEXT),
    )
)
_ANY_RECORD = SchemaValidator(_object(_RECORD))


def _validator(*parts: Fields) -> SchemaValidator:
    return SchemaValidator(_object(_RECORD, *parts))


_VALIDATORS: dict[tuple[str, str], SchemaValidator] = {
    **{(kind, ""): _validator(*parts) for kind, parts in _UNTYPED.items()},
    **{("event", one.__name__): _validator(_fields_of(one)) for one in _EVENTS},
    **{("outcome", one.__name__): _validator(_fields_of(one), _required(decision=_COUNT)) for one in _EVENTS},
    **{
        ("decision", one.__name__): _validator(_fields_of(one), _required(cause=_COUNT)) for one in _DECISIONS
    },
}
