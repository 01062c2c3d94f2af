"""A run folder to its reports: reads ``<policy>/events.jsonl``, writes ``summary.json``, ``report.html``,
``report.md`` and ``<policy>/<tenant>.txt``. Logs alone are enough, and the same logs give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from molt.errors import InputError
from molt.formats.log import FILE_NAME, LogError
from reports.page import contents, html_page, markdown_page
from reports.run_log import RunLog
from reports.shapes import SummaryBefore, checked, read_bytes
from reports.summary import summarise_runs, summary_json
from reports.texts import file_names, tenant_text

SUMMARY_NAME = "summary.json"


def write_reports(
    out_dir: Path, *, wall_s: float | None = None, policies: Iterable[str] = ()
) -> dict[str, Any]:
    """Write every report of a run folder and return the summary.

    ``policies`` gives the order of those it names, ``wall_s`` what the run took; no log has either. Where
    they are missing, those of a summary that is already there are kept; policies it does not name come last,
    by name. Raises ``molt.formats.log.LogError`` for a folder without logs and for a log that cannot be read.
    """
    order_before, wall_s_before = _summary_before(out_dir / SUMMARY_NAME)
    runs = _ordered(_read_runs(out_dir), (*policies, *order_before))
    summary = summarise_runs(runs, wall_s=wall_s_before if wall_s is None else wall_s)
    for policy, run in runs.items():
        _write_texts(out_dir / policy, run)
    _write(out_dir / SUMMARY_NAME, summary_json(summary))
    shown = contents(summary, runs)
    _write(out_dir / "report.html", html_page(shown))
    _write(out_dir / "report.md", markdown_page(shown))
    return summary


def _read_runs(out_dir: Path) -> dict[str, RunLog]:
    paths = sorted(out_dir.glob(f"*/{FILE_NAME}"))
    if not paths:
        raise LogError(f"{out_dir}: no log here (looked for */{FILE_NAME})")
    return {path.parent.name: RunLog.read(path) for path in paths}


def _ordered(runs: Mapping[str, RunLog], first: Iterable[str]) -> dict[str, RunLog]:
    return {policy: runs[policy] for policy in dict.fromkeys([*first, *runs]) if policy in runs}


def _summary_before(path: Path) -> tuple[tuple[str, ...], float | None]:
    """Order of the policies and wall time of an existing summary; nothing from any other file."""
    try:
        summary = checked(SummaryBefore, read_bytes(path), str(path))
    except InputError:
        return (), None
    return tuple(summary["policies"]), summary["wall_s"]


def _write_texts(policy_dir: Path, run: RunLog) -> None:
    for tenant, name in file_names(run).items():
        _write(policy_dir / name, tenant_text(run.answers[tenant]))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
