"""A log as Chrome trace JSON, for Perfetto or chrome://tracing: one track a tenant, counters for budget and
usage, an instant for every decision.

    python -m reports.chrome_trace LOG OUT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from molt.errors import InputError
from molt.program import run_words
from reports.run_log import Record, RunLog
from reports.timeline import TimelinePhase, phases

PROCESS = 1
PROCESS_TRACK = 0
NS_PER_US = 1000
_NOTABLE = (
    "BudgetChanged",
    "ProcessKilled",
    "ProcessStarted",
    "TenantFinished",
    "TenantCancelled",
    "SwitchFailed",
)
_BOOKKEEPING = {"kind", "type", "seq", "at_ns", "tenant"}

TraceEvent = dict[str, Any]


def chrome_trace(run: RunLog) -> dict[str, Any]:
    """The trace object of a run; times in microseconds, as the format wants."""
    tracks = {"": PROCESS_TRACK, **{tenant: i for i, tenant in enumerate(run.answers, start=1)}}
    timed = [
        *(_slice(phase, tracks) for phase in phases(run)),
        *_counters(run),
        *(_instant(record, tracks) for record in run.records if record.get("kind") == "decision"),
        *(_instant(record, tracks) for record in run.events(*_NOTABLE)),
    ]
    timed.sort(key=lambda event: event["ts"])
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "scenario": run.scenario.get("name"),
            "policy": run.header.get("policy"),
            "engine": run.header.get("engine"),
            "log_sha256": run.sha256,
        },
        "traceEvents": [*_names(run, tracks), *timed],
    }


def write_trace(log_path: Path, out_path: Path) -> None:
    """Read a log and write its trace. Raises ``molt.formats.log.LogError`` and ``OSError``."""
    trace = chrome_trace(RunLog.read(log_path))
    out_path.write_text(json.dumps(trace, sort_keys=True, separators=(",", ":")), encoding="utf-8")


def _names(run: RunLog, tracks: dict[str, int]) -> Iterator[TraceEvent]:
    title = f"{run.scenario.get('name')}: {run.header.get('policy', {}).get('name')}"
    yield {"ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": title}}
    for tenant, track in tracks.items():
        common = {"ph": "M", "pid": PROCESS, "tid": track}
        yield {**common, "name": "thread_name", "args": {"name": tenant or "process"}}
        yield {**common, "name": "thread_sort_index", "args": {"sort_index": track}}


def _slice(phase: TimelinePhase, tracks: dict[str, int]) -> TraceEvent:
    return {
        "ph": "X",
        "name": f"{phase.doing} {phase.rung}".strip(),
        "cat": phase.doing.value,
        "pid": PROCESS,
        "tid": tracks.get(phase.tenant, PROCESS_TRACK),
        "ts": phase.start_ns / NS_PER_US,
        "dur": (phase.end_ns - phase.start_ns) / NS_PER_US,
        "args": {"rung": phase.rung, "tokens": phase.tokens},
    }


def _counters(run: RunLog) -> Iterator[TraceEvent]:
    before: tuple[int, int] | None = None
    for level in run.levels:
        if (level.budget, level.usage) != before:
            args = {"budget": level.budget, "usage": level.usage}
            ts = level.start_ns / NS_PER_US
            yield {"ph": "C", "name": "memory (bytes)", "pid": PROCESS, "ts": ts, "args": args}
        before = level.budget, level.usage


def _instant(record: Record, tracks: dict[str, int]) -> TraceEvent:
    tenant = record.get("tenant", "")
    return {
        "ph": "i",
        "name": record["type"],
        "cat": record["kind"],
        "pid": PROCESS,
        "tid": tracks.get(tenant, PROCESS_TRACK),
        "ts": record["at_ns"] / NS_PER_US,
        "s": "t" if tenant in tracks and tenant else "p",
        "args": {"seq": record["seq"], **{k: v for k, v in record.items() if k not in _BOOKKEEPING}},
    }


_USAGE = "python -m reports.chrome_trace LOG OUT"


def main(arguments: list[str]) -> int:
    """Exit status 0, or 2 with a one-line reason."""
    if len(arguments) != 2:
        print(f"usage: {_USAGE}", file=sys.stderr)
        return 2
    try:
        write_trace(Path(arguments[0]), Path(arguments[1]))
    except (InputError, OSError) as error:
        print(f"molt: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_words(main, _USAGE)
