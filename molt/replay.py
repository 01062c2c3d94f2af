"""Decides a log again: the same facts through a fresh scheduler must lead to the same decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molt import log
from molt.core.costs import CostModel
from molt.core.ladder import Ladder
from molt.core.scheduler import Scheduler
from molt.plugins import make_policy


@dataclass(frozen=True, slots=True)
class Replay:
    """How many facts and decisions agreed, and the first that did not: ``(seq, recorded, decided again)``."""

    events: int
    decisions: int
    difference: tuple[int, object, object] | None


def replay(path: Path) -> Replay:
    """Replay a log file. Raises ``LogError`` if it cannot be read, ``InputError`` if its policy is not installed."""
    header, records = log.read(path)
    scheduler = Scheduler(
        log.restore(Ladder, header["ladder"]),
        log.restore(CostModel, header["costs"]),
        make_policy(header["policy"]["source"], header["policy"]["params"]),
    )
    events = decisions = 0
    for record, recorded in _facts(records):
        decided = [
            {"type": type(decision).__name__, **log.plain(decision)}
            for decision in scheduler.handle(log.event_from(record))
        ]
        if decided != recorded:
            return Replay(events, decisions, (record["seq"], recorded, decided))
        events += 1
        decisions += len(decided)
    return Replay(events, decisions, None)


def _facts(records: list[dict[str, Any]]) -> Iterator[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
    """Every fact, with the decisions that were recorded because of it."""
    caused: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        if record["kind"] == "decision":
            bare = {
                key: value for key, value in record.items() if key not in {"kind", "seq", "at_ns", "cause"}
            }
            caused.setdefault(record["cause"], []).append(bare)
    for record in records:
        if record["kind"] in {"event", "outcome"}:
            yield record, caused.get(record["seq"], [])
