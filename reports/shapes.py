"""Shapes of the files that pages are made of: campaigns and proofs. A file that has another one is refused in one line.

The models say what a page needs, and a file may have further keys. ``reports.schema`` has the one of ``summary.json``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from molt.errors import InputError
from molt.formats.yaml_file import show
from molt.units import QUANTITY_MAX

Whole = Annotated[int, Field(ge=-QUANTITY_MAX, le=QUANTITY_MAX)]
Count = Annotated[int, Field(ge=0, le=QUANTITY_MAX)]
Number = Annotated[float, Field(ge=-1e100, le=1e100)]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class PageShape(BaseModel):
    """Further keys are allowed; nothing is converted."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class ProvenanceMachine(PageShape):
    """A machine, as ``molt.formats.provenance.machine`` describes it."""

    processor: str | None
    cores: Count | None
    memory_bytes: Count | None
    system: str | None


def checked(model: type[BaseModel], raw: bytes | str, where: str) -> Any:
    """The content of a JSON text that has the shape of ``model``; ``InputError`` begins with ``where``."""
    try:
        content = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    check(model, content, where)
    return content


def check(model: type[BaseModel], content: object, where: str) -> None:
    """``InputError``, in one line that begins with ``where``, for JSON that has not the shape of ``model``."""
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        found = "" if first["type"] == "missing" else f"{show(first['input'])}: "
        raise InputError(f"{where}: {place}{': ' if place else ''}{found}{first['msg']}") from None


def read_bytes(path: Path) -> bytes:
    """A file; ``InputError`` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def read_text(path: Path) -> str:
    """A file of UTF-8 text; ``InputError`` if it is none."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start})") from None


def file_name(name: object, where: str) -> str:
    """A name out of a file that published files are to be called by; ``InputError`` for one that may lead elsewhere."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{where}: {show(name)} is no name for a file")
    return name


# --- summaries ---


class SummaryBefore(PageShape):
    """What an older ``summary.json`` knows and no log does: the order of the policies, and what the run took."""

    wall_s: Number | None
    policies: dict[str, Any]


# --- campaigns ---


class CampaignSession(PageShape):
    """A line that says under which conditions the pairs below it were made."""

    session: str
    ladder: str
    signal: str
    left_bytes: Count
    machine: ProvenanceMachine
    commit: str
    scenario: str = ""
    room_ns: Count = 0


class ReliefShape(PageShape):
    """The parts of a relief; older files have fewer."""

    boundary_ns: Whole
    release_ns: Whole
    held_bytes: Whole | None
    signal_ns: Whole | None = None
    load_ns: Whole | None = None
    transplant_ns: Whole | None = None


class TrialShape(PageShape):
    """One process under pressure."""

    kills: Count
    line_bytes: Whole
    over_line_bytes: Whole
    peak_bytes: Whole | None
    fastest_bytes_per_s: Whole
    reliefs: list[ReliefShape]


class ControlShape(PageShape):
    """The process under a signal that comes late; void ones have no figures."""

    signal: str
    kills: Count = 0


class VoidPair(PageShape):
    """A line with a pair that does not count; there may be less of it."""

    pair: Annotated[int, Field(ge=0, le=10**9)]
    void: str | None = None
    control: ControlShape = ControlShape(signal="")
    room_bytes: Count = 0


class CampaignPair(VoidPair):
    """A line with two trials that count, and perhaps a control."""

    rate_bytes_per_s: Count | None
    huge: bool
    hold: TrialShape
    molt: TrialShape


# --- proofs ---


class RuleMachinesShape(PageShape):
    """Stateful machines: counts by machine and what happened, steps by commit."""

    steps: Count
    examples: Count
    seeds: Count
    commits: dict[str, Count]
    fired: dict[str, dict[str, Count]]
    mended: list[str]
    failures: list[str]


class FuzzShape(PageShape):
    """Worlds from seeds."""

    seeds: Annotated[int, Field(ge=1, le=QUANTITY_MAX)]
    failures: list[str]
    mechanisms: dict[str, Count]
    simulated_hours: Number
    tokens: Count
    tokens_healed: Count
    overshoot_bytes_max: Whole
    wall_s: Number


class WorstShape(PageShape):
    """The worst world that a search found for one policy."""

    worlds: Count
    after_enforcement_bytes: Whole
    before_enforcement_bytes: Whole
    since_fall_ns: Whole
    at_a_stretch_ns: Whole
    share_of_bound: Number


class WorstFoundShape(PageShape):
    """The worst worlds by policy."""

    worst: dict[str, WorstShape]


class SmallWorldShape(PageShape):
    """Every state of one small world."""

    states: Count
    transitions: Count
    depth: Count
    live: Count
    complete: bool


class SuiteShape(PageShape):
    """Tests that are a part of the proof."""

    passed: Count
    failed: list[str]
    files: list[str]


class PartShape(PageShape):
    """What every part has that was run at a commit."""

    commit: str
    wall_s: Number
    commits: list[str] | dict[str, Count] = []


class SmallWorldsShape(PageShape):
    """Small worlds by name, beside the commit and the failures."""

    failures: list[str]


class ProofShape(PageShape):
    """What ``molt prove`` writes, but for the parts that ``checked_proof`` checks one by one."""

    command: str
    commit: str
    machine: ProvenanceMachine
    versions: dict[str, str]
    failures: list[str]
    silent: list[str]
    rule_machines: RuleMachinesShape
    small_worlds: SmallWorldsShape
    fuzz: FuzzShape
    worst_found: WorstFoundShape


def checked_proof(raw: bytes | str, where: str) -> Any:
    """The content of a JSON that ``molt prove`` wrote; ``InputError`` for anything else."""
    content = checked(ProofShape, raw, where)
    parts = [(name, part) for name, part in content.items() if isinstance(part, dict)]
    worlds = [(name, part) for name, part in content["small_worlds"].items() if isinstance(part, dict)]
    for model, key, found in (
        (PartShape, "commit", parts),
        (SuiteShape, "passed", parts),
        (SmallWorldShape, "states", worlds),
    ):
        for name, part in found:
            if key in part:
                check(model, part, f"{where}: {name}")
    fuzz = content["fuzz"]
    if len(fuzz["failures"]) > fuzz["seeds"]:
        raise InputError(f"{where}: fuzz: {len(fuzz['failures'])} failures in {fuzz['seeds']} worlds")
    return content


# --- sessions of molt demo ---


class PressureShape(PageShape):
    """Usage and budget when the scheduler acted."""

    usage_bytes: Count
    budget_bytes: Count


class LeverShape(PageShape):
    """A lever other than a switch."""

    event: str
    rung: str | None = None
    pressure: PressureShape | None = None
    flops_saved: Number | None = None


class SwitchLeverShape(LeverShape):
    """A switch, as reported while it happened."""

    source: str = Field(alias="from")
    dest: str = Field(alias="to")
    kind: str
    ms: Number


class TimeShape(PageShape):
    """A time that was measured or predicted."""

    ms: Number | None


class SessionSwitchShape(PageShape):
    """A switch, as summed up at the end."""

    source: str = Field(alias="from")
    dest: str = Field(alias="to")
    kind: str
    measured: TimeShape
    predicted: TimeShape
    flops_saved: Number | None
    after_tokens: Count


class SessionSummaryShape(PageShape):
    """What the server sent when the answer was complete."""

    killed: bool
    switches: list[SessionSwitchShape]
    rungs: dict[str, Count]
    tokens: Count
    switch_ms: Number
    prompt_tokens: Count | None = None


class SessionItemShape(PageShape):
    """One part of the stream; of the three kinds only a cut of the budget has ``budget_bytes``."""

    at_ms: Number
    budget_bytes: Count = 0


class SessionShape(PageShape):
    """What the page of a session needs beyond the types of ``molt.client.demo.Session``."""

    machine: ProvenanceMachine
    load: Number
    summary: SessionSummaryShape
    items: list[SessionItemShape]


def check_session(raw: bytes, where: str) -> None:
    """``InputError`` for a session whose stream or summary is not what a server sends."""
    content = checked(SessionShape, raw, where)
    if not any("text" in item for item in content["items"]):
        raise InputError(f"{where}: there is no token in it")
    for number, item in enumerate(content["items"]):
        if "molt" in item:
            is_switch = isinstance(item["molt"], dict) and item["molt"].get("event") == "switch"
            check(SwitchLeverShape if is_switch else LeverShape, item["molt"], f"{where}: items.{number}")
