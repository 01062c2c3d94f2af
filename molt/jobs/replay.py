"""Decides a log again: the same facts through a fresh scheduler must lead to the same decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molt.core.costs import CostModel
from molt.core.ladder import Ladder
from molt.core.scheduler import Scheduler
from molt.errors import InputError
from molt.formats import log
from molt.jobs.plugins import make_policy


@dataclass(frozen=True, slots=True)
class Replay:
    """How many facts and decisions agreed, and the first that did not: ``(seq, recorded, decided again)``.

    ``complete`` is false for a log that was cut off: then only what is there was compared, of the decisions on the last
    fact those that were written.
    """

    events: int
    decisions: int
    complete: bool
    difference: tuple[int, object, object] | None


def replay(path: Path, policy: str | None = None) -> Replay:
    """Replay a log file, with ``policy`` in place of the name it gives.

    Raises ``LogError`` if it cannot be read, ``InputError`` if its policy is not installed: a log, which may come from
    others, cannot choose code to run.
    """
    header, records = log.read(path)
    seq = events = decisions = 0
    try:
        scheduler = Scheduler(
            log.restore(Ladder, header["ladder"]),
            log.restore(CostModel, header["costs"]),
            make_policy(policy or _installed_name(path, header), header["policy"]["params"]),
        )
        complete = bool(records) and records[-1]["kind"] == "end"
        last = max((r["seq"] for r in records if r["kind"] in {"event", "outcome"}), default=0)
        for record, recorded in _facts(records):
            seq = record["seq"]
            decided = [
                {"type": type(decision).__name__, **log.plain(decision)}
                for decision in scheduler.handle(log.event_from(record))
            ]
            cut = not complete and seq == last and decided[: len(recorded)] == recorded
            if decided != recorded and not cut:
                return Replay(events, decisions, complete, (seq, recorded, decided))
            events += 1
            decisions += len(recorded)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise log.LogError(f"{path}: after seq {seq}: {type(error).__name__}: {error}") from error
    return Replay(events, decisions, complete, None)


def _installed_name(path: Path, header: Mapping[str, Any]) -> str:
    name = header["policy"]["source"]
    if not isinstance(name, str) or ":" in name:
        raise InputError(f"{path}: policy {name!r}: a log cannot choose code to run; say --policy {name}")
    return name


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
