"""``docs/reference/event-log.md`` has every field of every record, with its type, and none that is not written."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from molt.core import costs, decisions, events, ladder
from molt.core.engine_protocol import EngineKind
from molt.formats import log
from molt.live.live_world import MemorySample
from molt.server import command as server_command
from realproc.supervisor.real_run import Setting
from sim.run import prepare, simulate
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "reference" / "event-log.md"
WRITERS = ("molt", "sim", "realproc")
EVENTS = typing.get_args(events.AnyEvent)
DECISIONS = typing.get_args(decisions.AnyDecision)
PARTS = (
    *(events.Handoff, decisions.Prediction),
    *(ladder.Ladder, ladder.Rung, ladder.KVLayout, ladder.Route),
    *(costs.CostModel, costs.DiskCosts, costs.RungCosts, costs.StepCost, costs.HealingFactor),
    *(costs.RouteCosts, costs.Divergence),
    Setting,
)
COMMON = {"kind", "seq", "at_ns"}
"""Fields of every record, which one table has for all of them."""

Fields = dict[str, tuple[str, str]]
"""Type and unit by the name of a field."""


def documented() -> dict[str, Fields]:
    """The tables of the page by their heading, which is the name of a class or of a kind in backquotes."""
    sections = re.split(r"^#+ `(\w+)`.*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {name: _fields(text) for name, text in zip(sections[::2], sections[1::2], strict=True)}


def _fields(text: str) -> Fields:
    before_next_heading = re.split(r"^#", text, maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", before_next_heading, re.MULTILINE)
    return {name: (kind.strip(), unit.strip()) for name, kind, unit in rows}


TABLES = documented()


def type_of(annotation: Any) -> str:
    """A type of the core as the page writes it: the JSON type, and ``or null`` where it may be absent."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        (member,) = (one for one in arguments if one is not type(None))
        return f"{type_of(member)} or null"
    if origin is tuple:
        return f"list of {type_of(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return f"object of {type_of(arguments[1])}"
    if dataclasses.is_dataclass(annotation):
        return f"`{typing.cast(type, annotation).__name__}`"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "str"
    return str(annotation.__name__)


def types_of(record: type, but: Iterable[str] = ()) -> dict[str, str]:
    """Field names and types of a dataclass, as the page writes them."""
    hints = typing.get_type_hints(record)
    return {
        field.name: type_of(hints[field.name])
        for field in dataclasses.fields(record)
        if field.name not in set(but)
    }


def documented_types(name: str) -> dict[str, str]:
    return {field: kind for field, (kind, _) in TABLES[name].items()}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_an_event_is_documented_field_by_field(event: type) -> None:
    assert documented_types(event.__name__) == types_of(event, but=COMMON)


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.__name__)
def test_a_decision_is_documented_field_by_field(decision: type) -> None:
    assert documented_types(decision.__name__) == types_of(decision, but=["prediction"])


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_part_of_a_record_is_documented_field_by_field(part: type) -> None:
    assert documented_types(part.__name__) == types_of(part)


def test_no_table_is_of_something_that_is_not_written() -> None:
    parts = {one.__name__ for one in (*EVENTS, *DECISIONS, *PARTS)}
    kinds = {"header", "record", "event", "outcome", "decision", *_written()}
    assert set(TABLES) == parts | kinds | HEADER_PARTS


def test_units_are_those_of_the_names() -> None:
    for name, fields in TABLES.items():
        for field, (_, unit) in fields.items():
            if field.endswith("_ns"):
                assert unit == "ns", f"{name}.{field}"
            if field.endswith("_bytes"):
                assert unit in ("bytes", "bytes a token"), f"{name}.{field}"


# --- records that are no dataclasses: what the code writes ---


def _calls() -> Iterator[tuple[str, ast.Call]]:
    """Calls of ``write`` with a literal kind, which is how every record of a log is written."""
    for path in (path for folder in WRITERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "write"
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and re.fullmatch(r"[a-z]+", str(node.args[0].value))
            ):
                yield str(node.args[0].value), node


def _written() -> dict[str, set[str]]:
    """Fields by kind of record, as the calls name them; those given as ``**fields`` are added by hand below."""
    found: dict[str, set[str]] = {}
    for kind, call in _calls():
        names = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        found.setdefault(kind, set()).update(names)
    return found


def _counters() -> set[str]:
    """Names of the kernel's counters: string keys in ``counters`` of the confinements."""
    tree = ast.parse((ROOT / "realproc" / "supervisor" / "confinement.py").read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "counters"]
    constants = {
        node.value
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {name for name in constants if re.fullmatch(r"\w+", name)}


def test_every_kind_of_record_has_the_fields_that_are_written() -> None:
    written = _written()
    written["memory"] |= set(types_of(MemorySample)) - COMMON
    written["kernel"] |= _counters()
    written["decision"].add("prediction")  # the one field that all decisions have
    for kind, fields in written.items():
        assert set(TABLES[kind]) == fields, kind
    assert {
        "memory",
        "refusal",
        "violation",
        "engine",
        "signal",
        "pressure",
        "kernel",
        "victim",
        "end",
    } <= set(written)


# --- a real log ---

HEADER_PARTS = {"scenario", "tenants", "policy", "machine", "versions", "server"}


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and records of a modelled run that pulls every lever."""
    folder = tmp_path_factory.mktemp("run")
    job = prepare(ROOT / "scenarios" / "three_tenants.yaml", policies=["molt"], engine=EngineKind.MODELLED)
    simulate(job, folder)
    return log.read(folder / "molt" / log.FILE_NAME)


def test_the_header_of_a_run_is_documented(modelled: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    header, _ = modelled
    written_elsewhere = {"memory", "real", "server", "part"}
    assert set(TABLES["header"]) == set(header) | written_elsewhere
    assert set(TABLES["scenario"]) == set(header["scenario"])
    assert set(TABLES["tenants"]) == set(header["scenario"]["tenants"][0])
    assert set(TABLES["policy"]) == set(header["policy"])
    assert set(TABLES["machine"]) == set(header["machine"])
    assert set(header["versions"]) <= set(TABLES["versions"])


def test_the_header_of_a_server_is_documented(tmp_path: Path) -> None:
    tree = ast.parse(Path(server_command.__file__).read_text(encoding="utf-8"))
    (made,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "header")
    keys = {
        key.value
        for node in ast.walk(made)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert keys == {"server", "engine", "clock"} | set(TABLES["server"])


def test_every_record_of_a_run_has_the_documented_fields(
    modelled: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    _, records = modelled
    for record in records:
        allowed = COMMON | set(TABLES[record["kind"]])
        if "type" in record:
            allowed |= set(TABLES[record["type"]])
        assert set(record) <= allowed, record
        assert set(record) >= COMMON
    assert {"event", "outcome", "decision", "memory", "end"} <= {record["kind"] for record in records}


def test_values_have_the_documented_json_type(
    modelled: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    json_types: Mapping[str, type | tuple[type, ...]] = {
        "int": int,
        "float": (int, float),
        "str": str,
        "bool": bool,
    }
    for record in modelled[1]:
        fields = {**TABLES["record"], **TABLES[record["kind"]], **TABLES.get(record.get("type", ""), {})}
        for name, value in record.items():
            kind = fields[name][0]
            if value is None:
                assert kind.endswith(" or null"), (record, name)
            elif (plain := kind.removesuffix(" or null")) in json_types:
                assert isinstance(value, json_types[plain]), (record, name)
