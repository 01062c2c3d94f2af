"""The memory of an earlier run with real processes: what others left of it at every moment, and what was
reported of that.

A supervisor of real processes looks ahead: it reports less than there is while others grow, and more than
there is when a signal is late. Where the simulator is in question, and not its picture of the signals, both worlds have
to decide upon the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molt.errors import InputError
from molt.formats import log

Budgets = tuple[tuple[int, int], ...]
"""Moments (ns, rising) and bytes from then on."""


@dataclass(frozen=True, slots=True)
class RecordedMemory:
    """What others ``left``, the first at 0, and what was ``reported`` to the process."""

    left: Budgets
    reported: Budgets


def read(run: Path, policy: str, scenario_name: str) -> RecordedMemory:
    """The memory that a policy met in the run of a folder.

    ``InputError``: no such log, not of real processes, or of another scenario than ``scenario_name``.
    """
    path = run / policy / log.FILE_NAME
    header, records = log.read(path)
    reported = tuple((r["at_ns"], r["budget_bytes"]) for r in records if _is_report(r))
    if "real" not in header or not reported:
        raise InputError(f"{path}: no run with real processes, or no budget was reported to its process")
    if not records or records[-1]["kind"] != "end":
        raise InputError(
            f"{path}: incomplete: the log has no end, so the memory after its last record is not known"
        )
    scenario = header.get("scenario", {})
    if scenario.get("name") != scenario_name:
        raise InputError(f"{path}: a run of {scenario.get('name')}, not of {scenario_name}")
    if not scenario.get("budgets") or "kill_after_ns" not in scenario:
        raise InputError(f"{path}: its header has no budgets, or does not say when the OS kills")
    all_bytes = scenario["budgets"][0][1]
    left = {0: all_bytes}
    for record in records:
        if record["kind"] == "pressure":
            left[record["at_ns"]] = record["budget_bytes"]
        elif record["kind"] == "victim" and record["what"] == "allocator":
            # What it had taken is free, but not before the simulated OS, which is slower, has killed as well.
            left[record["at_ns"] + scenario["kill_after_ns"] + 1] = all_bytes
    return RecordedMemory(tuple(sorted(left.items())), reported)


def _is_report(record: Mapping[str, Any]) -> bool:
    return record["kind"] == "event" and record.get("type") == "BudgetChanged"
