"""One run read back from its log: the records, and the answers and memory levels that follow from them.

Rules of this module:

- Nothing is known but the log. Unknown kinds of record, unknown types and extra fields are skipped.
- Order is the order of the records; ``seq`` says what caused what, ``at_ns`` when it was true.
- Times are integer nanoseconds since the start of the run, sizes integer bytes, lengths integer tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from molt.formats import log
from molt.formats.log_records import is_known

Record = Mapping[str, Any]


class Fate(StrEnum):
    """How one attempt at an answer ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    LOST = "lost"  # admitted, and its process was killed or a later attempt took its place
    OPEN = "open"  # the run ended first


class LoggedToken(NamedTuple):
    """One token: when it was complete, the rung that produced it, its text (empty when none is known)."""

    at_ns: int
    rung: str
    text: str


@dataclass(frozen=True, slots=True)
class SwitchInAnswer:
    """A switch: the answer goes on with another rung from the token at ``position`` on.

    ``route`` is ``"reread"`` where the tokens were prefilled again; ``duration_ns`` is what the switch itself took
    (0 where the log has only the prefill). ``handoff`` is the measured quality, if any, ``predicted_kl`` the
    predicted one.
    """

    position: int
    at_ns: int
    source: str
    dest: str
    route: str
    cells: int
    duration_ns: int
    handoff: Mapping[str, float | None] | None = None
    predicted_kl: float | None = None


@dataclass(slots=True)
class Attempt:
    """One attempt at one tenant's answer."""

    tenant: str
    kind: str
    number: int
    arrived_ns: int
    tokens: list[LoggedToken] = field(default_factory=list)
    switches: list[SwitchInAnswer] = field(default_factory=list)
    admitted_ns: int | None = None
    deferred: bool = False
    rung: str | None = None
    fate: Fate = Fate.OPEN
    reason: str | None = None
    ended_ns: int | None = None

    def pause_ns(self, switch: SwitchInAnswer) -> int | None:
        """The gap between the tokens on both sides of a switch; ``None`` where one side has no token."""
        if not 0 < switch.position < len(self.tokens):
            return None
        return self.tokens[switch.position].at_ns - self.tokens[switch.position - 1].at_ns


class UsageSample(NamedTuple):
    """A memory record. ``parts`` has ``weights`` and ``scratch`` by rung, ``kv`` by tenant, ``transient`` by
    purpose; ``enforced``: taken after the levers of a round; ``alive``: while a process ran."""

    at_ns: int
    budget: int
    usage: int
    parts: Mapping[str, Mapping[str, int]]
    enforced: bool
    alive: bool


class Level(NamedTuple):
    """Budget and usage from ``start_ns`` until ``end_ns``, both constant."""

    start_ns: int
    end_ns: int
    budget: int
    usage: int


@dataclass(frozen=True)
class RunLog:
    """A parsed log. What is derived from it is computed once, at first use."""

    header: Mapping[str, Any]
    records: tuple[Record, ...]
    sha256: str = ""

    @classmethod
    def read(cls, path: Path) -> RunLog:
        """Read a log file; one torn last line is tolerated. Raises ``molt.formats.log.LogError``."""
        header, records = log.read(path)
        _, _, body = path.read_bytes().partition(b"\n")
        return cls(header, tuple(filter(is_known, records)), hashlib.sha256(body).hexdigest())

    @property
    def scenario(self) -> Mapping[str, Any]:
        """The resolved scenario of the header."""
        return _mapping(self.header.get("scenario"))

    @property
    def complete(self) -> bool:
        """Whether the log was written to its end."""
        return bool(self.records) and self.records[-1].get("kind") == "end"

    @cached_property
    def end_ns(self) -> int:
        """When the run ended; for a log cut short, its last moment."""
        return max((moment for record in self.records for moment in _moments(record)), default=0)

    @cached_property
    def mapped_rungs(self) -> frozenset[str]:
        """Names of the rungs whose weights are pages of a file."""
        rungs = _mapping(self.header.get("ladder")).get("rungs", ())
        return frozenset(str(rung["name"]) for rung in rungs if rung.get("mapped"))

    @cached_property
    def rungs(self) -> tuple[str, ...]:
        """Names of the rungs from largest to smallest; rungs the header does not know come last."""
        known = [str(rung["name"]) for rung in _mapping(self.header.get("ladder")).get("rungs", ())]
        used = [token.rung for attempt in self.attempts for token in attempt.tokens]
        switched = [
            rung
            for attempt in self.attempts
            for switch in attempt.switches
            for rung in (switch.source, switch.dest)
        ]
        return tuple(dict.fromkeys([*known, *used, *switched]))

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every attempt at every answer, in the order of the log; requests that are not in the log come last."""
        return tuple(_attempts(self.records, self.scenario.get("tenants", ()), self.end_ns))

    @cached_property
    def answers(self) -> Mapping[str, tuple[Attempt, ...]]:
        """The attempts by tenant, tenants in order of first arrival."""
        by_tenant: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            by_tenant.setdefault(attempt.tenant, []).append(attempt)
        return {tenant: tuple(attempts) for tenant, attempts in by_tenant.items()}

    @cached_property
    def surviving(self) -> tuple[Attempt, ...]:
        """Attempts whose tokens reached the client: all but the lost ones."""
        return tuple(attempt for attempt in self.attempts if attempt.fate is not Fate.LOST)

    @cached_property
    def samples(self) -> tuple[UsageSample, ...]:
        """The memory records."""
        return tuple(_samples(self.records))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Budget and usage as step functions, from the first memory record to the end of the run."""
        return tuple(_levels(self.records, self.end_ns))

    def events(self, *types: str) -> Iterator[Record]:
        """Facts of these types, outcomes among them."""
        return (r for r in self.records if r.get("kind") in ("event", "outcome") and r.get("type") in types)

    def decisions(self, *types: str) -> Iterator[Record]:
        """Decisions of these types."""
        return (r for r in self.records if r.get("kind") == "decision" and r.get("type") in types)

    @cached_property
    def decision_types(self) -> Mapping[int, str]:
        """The type of each decision, by its ``seq``."""
        return {r["seq"]: str(r["type"]) for r in self.records if r.get("kind") == "decision"}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _moments(record: Record) -> tuple[int, ...]:
    stamps = record.get("stamps_ns", ()) if record.get("type") == "TokensProduced" else ()
    return (record.get("at_ns", 0), *stamps)


# --- answers ------------------------------------------------------------------------------------------------


class _Answers:
    """Follows the records and keeps the latest attempt of each tenant."""

    def __init__(self) -> None:
        self.all: list[Attempt] = []
        self.latest: dict[str, Attempt] = {}

    def open(self, record: Record) -> Attempt:
        """The open attempt that a record is about; a tenant without an arrival before it arrives with it."""
        attempt = self.latest.get(record["tenant"])
        if attempt is None or attempt.fate is not Fate.OPEN:
            attempt = self.arrive(record)
        return attempt

    def arrive(self, record: Record) -> Attempt:
        """A request comes in, for the first time or again. One that was never admitted is still the same."""
        tenant = record["tenant"]
        before = self.latest.get(tenant)
        if before is not None and before.fate is Fate.OPEN:
            if before.admitted_ns is None:
                return before
            _close(before, Fate.LOST, record)
        number = record.get("attempt", before.number + 1 if before else 1)
        kind = record.get("tenant_kind", before.kind if before else "")
        return self.add(Attempt(tenant, kind, number, min(_moments(record))))

    def add(self, attempt: Attempt) -> Attempt:
        self.all.append(attempt)
        self.latest[attempt.tenant] = attempt
        return attempt


def _attempts(
    records: tuple[Record, ...], planned: Iterable[Mapping[str, Any]], end_ns: int
) -> list[Attempt]:
    """Requests of ``planned`` came in when planned, even where the process was dead and the log has none of them."""
    answers = _Answers()
    for record in records:
        follow = _FOLLOW.get((str(record.get("kind")).replace("outcome", "event"), str(record.get("type"))))
        if follow is not None:
            follow(answers, record)
    first = {attempt.tenant: attempt for attempt in reversed(answers.all)}
    for tenant in planned:
        name, arrives_ns = tenant["name"], tenant.get("arrives_ns", end_ns)
        if name in first:
            first[name].arrived_ns = min(first[name].arrived_ns, arrives_ns)
        elif arrives_ns < end_ns:
            answers.add(Attempt(name, tenant.get("kind", ""), 1, arrives_ns))
    return answers.all


def _close(attempt: Attempt, fate: Fate, record: Record) -> None:
    attempt.fate = fate
    attempt.reason = record.get("reason", fate.value)
    attempt.ended_ns = record["at_ns"]


def _arrived(answers: _Answers, record: Record) -> None:
    answers.arrive(record)


def _admitted(answers: _Answers, record: Record) -> None:
    _admit(answers.open(record), record)


def _admit(attempt: Attempt, record: Record) -> None:
    if attempt.admitted_ns is None:
        attempt.admitted_ns = record["at_ns"]


def _deferred(answers: _Answers, record: Record) -> None:
    answers.open(record).deferred = True


def _prefilled(answers: _Answers, record: Record) -> None:
    _work_on(answers.open(record), record)


def _produced(answers: _Answers, record: Record) -> None:
    attempt = answers.open(record)
    _work_on(attempt, record)
    stamps = record.get("stamps_ns", ())
    pieces = record.get("pieces", ())
    for i in range(record["count"]):
        at_ns = stamps[i] if i < len(stamps) else record["at_ns"]
        attempt.tokens.append(LoggedToken(at_ns, record["rung"], pieces[i] if i < len(pieces) else ""))


def _work_on(attempt: Attempt, record: Record) -> None:
    """A rung works on an answer; if another one did so before, the tokens were prefilled again."""
    rung = record["rung"]
    _admit(attempt, record)
    if attempt.rung not in (None, rung):
        source = str(attempt.rung)
        attempt.switches.append(
            SwitchInAnswer(len(attempt.tokens), record["at_ns"], source, rung, "reread", 0, 0)
        )
    attempt.rung = rung


def _switched(answers: _Answers, record: Record) -> None:
    attempt = answers.open(record)
    attempt.rung = record["dest"]
    if record["source"] == record["dest"]:
        return
    attempt.switches.append(
        SwitchInAnswer(
            position=len(attempt.tokens),
            at_ns=record["at_ns"],
            source=record["source"],
            dest=record["dest"],
            route=record["route"],
            cells=record["cells"],
            duration_ns=record["duration_ns"],
            handoff=record.get("handoff"),
            predicted_kl=record.get("predicted_kl"),
        )
    )


def _finished(answers: _Answers, record: Record) -> None:
    _close(answers.open(record), Fate.FINISHED, record)


def _cancelled(answers: _Answers, record: Record) -> None:
    _close(answers.open(record), Fate.CANCELLED, record)


def _killed(answers: _Answers, record: Record) -> None:
    for attempt in answers.latest.values():
        if attempt.fate is Fate.OPEN and attempt.admitted_ns is not None:
            _close(attempt, Fate.LOST, record)


_FOLLOW: dict[tuple[str, str], Callable[[_Answers, Record], None]] = {
    ("event", "TenantArrived"): _arrived,
    ("decision", "Admit"): _admitted,
    ("decision", "Defer"): _deferred,
    ("event", "PromptRead"): _prefilled,
    ("event", "TokensProduced"): _produced,
    ("event", "Switched"): _switched,
    ("event", "TenantFinished"): _finished,
    ("event", "TenantCancelled"): _cancelled,
    ("event", "ProcessKilled"): _killed,
}


# --- memory -------------------------------------------------------------------------------------------------


def _samples(records: tuple[Record, ...]) -> Iterator[UsageSample]:
    alive = True
    for record in records:
        match record.get("kind"), record.get("type"):
            case "event", "ProcessKilled":
                alive = False
            case "event", "ProcessStarted":
                alive = True
            case "memory", _:
                parts = _mapping(record.get("parts"))
                enforced = bool(record.get("round"))
                yield UsageSample(
                    record["at_ns"], record["budget_bytes"], record["usage_bytes"], parts, enforced, alive
                )


def _levels(records: tuple[Record, ...], end_ns: int) -> Iterator[Level]:
    """Memory records set both levels, ``BudgetChanged`` the budget, ``ProcessKilled`` sets the usage to 0."""
    since: int | None = None
    budget = usage = 0
    for record in records:
        changed = _level_after(record, budget, usage)
        if changed is None or (since is None and record.get("kind") != "memory"):
            continue
        at_ns = record["at_ns"]
        if since is not None and at_ns > since:
            yield Level(since, at_ns, budget, usage)
        since, (budget, usage) = at_ns, changed
    if since is not None and end_ns > since:
        yield Level(since, end_ns, budget, usage)


def _level_after(record: Record, budget: int, usage: int) -> tuple[int, int] | None:
    match record.get("kind"), record.get("type"):
        case "memory", _:
            return record["budget_bytes"], record["usage_bytes"]
        case "event", "BudgetChanged":
            return record["budget_bytes"], usage
        case "event", "ProcessKilled":
            return budget, 0
    return None
