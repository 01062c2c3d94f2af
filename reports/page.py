"""The report of one scenario as a self-contained page (no script, no network) and as Markdown.

Everything comes from the logs; the same logs give the same bytes. Prompts, model text and names are hostile:
the page escapes every expression, the Markdown whatever Markdown or HTML could read as more than text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from molt.units import ABSENT, MS_NS
from reports import formatting
from reports.chart import CHART_WIDTH, LANE_HEIGHT, MEMORY_HEIGHT, Chart, chart, rung_style, shared_scale
from reports.real_processes import REAL_METRICS
from reports.run_log import Attempt, Fate, RunLog, SwitchInAnswer
from reports.summary import METRICS, Metric
from reports.table import rows
from reports.texts import MARK, RungSpan, SwitchMark, ending, fragments
from reports.verdict import Verdict, verdict

Contents = dict[str, Any]

TEMPLATES = Path(__file__).parent / "templates"
_MARKDOWN = re.compile(r"(?P<number>^\d+)(?=[.)](?:\s|$))|(?P<sign>[\\`*_\[\]<>|&~$]|^[-+#=])")


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of an answer on the page: tokens of one rung, or a switch."""

    style: str
    text: str
    label: str


@dataclass(frozen=True, slots=True)
class AnswerView:
    """One attempt on the page."""

    tenant: str
    title: str
    lost: bool
    unfolded: bool
    pieces: tuple[TextPiece, ...]


@dataclass(frozen=True, slots=True)
class SwitchView:
    """A row of the table of switches, every cell as text."""

    at: str
    tenant: str
    source: str
    dest: str
    route: str
    cells: str
    duration: str
    pause: str
    kl: str
    predicted_kl: str
    jsd: str
    jsd_floor: str
    recovered: str


@dataclass(frozen=True, slots=True)
class PolicyView:
    """One policy on the page."""

    name: str
    verdict: Verdict
    numbers: Mapping[str, Any]
    chart: Chart
    rungs: tuple[tuple[str, str], ...]
    switches: tuple[SwitchView, ...]
    answers: tuple[AnswerView, ...]
    setup: str
    log_sha256: str


def contents(summary: Mapping[str, Any], runs: Mapping[str, RunLog]) -> Contents:
    """What both pages show: the summary of some runs, and the runs it was made of, by policy."""
    scale = shared_scale(runs.values())
    header = next((run.header for run in runs.values()), {})
    return {
        "summary": summary,
        "policies": [_policy(name, summary, run, chart(run, scale)) for name, run in runs.items()],
        "rows": rows(summary),
        "definitions": {key: _definition(metric) for key, metric in _metrics(summary).items()},
        "box": {"width": CHART_WIDTH, "memory": MEMORY_HEIGHT, "lane": LANE_HEIGHT},
        "facts": {key: _plain(header.get(key)) for key in ("commit", "machine", "versions")},
        "scenario": _pretty(header.get("scenario")),
        "ladder": _pretty(header.get("ladder")),
    }


def _metrics(summary: Mapping[str, Any]) -> Mapping[str, Metric]:
    """The numbers that a summary has."""
    real = any("real" in policy for policy in summary["policies"].values())
    return {**METRICS, **REAL_METRICS} if real else METRICS


def html_page(shown: Contents) -> str:
    """``report.html``."""
    template = _environment("html").get_template("report.html.j2")
    return template.render(shown, style=(TEMPLATES / "style.css").read_text("utf-8"))


def markdown_page(shown: Contents) -> str:
    """``report.md``."""
    return _environment("md").get_template("report.md.j2").render(shown)


def markdown_text(value: Any) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = " ".join(formatting.printable(str(value)).split())
    return _MARKDOWN.sub(
        lambda found: found["number"] + "\\" if found["number"] else "\\" + found["sign"], line
    )


@cache
def _environment(kind: str) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=kind == "html",  # noqa: S701 (``finalize`` escapes the Markdown)
        finalize=None if kind == "html" else markdown_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        size=formatting.size, span=formatting.span, percent=formatting.percent, count=formatting.count
    )
    return environment


def _policy(name: str, summary: Mapping[str, Any], run: RunLog, picture: Chart) -> PolicyView:
    numbers = summary["policies"][name]
    broken = sum(violation["policy"] == name for violation in summary["violations"])
    return PolicyView(
        name=formatting.printable(name),
        verdict=verdict(numbers, run, broken),
        numbers=numbers,
        chart=picture,
        rungs=tuple((rung_style(run, rung), _rung_label(run, rung)) for rung in run.rungs),
        switches=tuple(_switches(run)),
        answers=tuple(_answers(run)),
        setup=_pretty(run.header.get("policy")),
        log_sha256=run.sha256,
    )


def _rung_label(run: RunLog, rung: str) -> str:
    return (
        f"{formatting.printable(rung)} (file-mapped)"
        if rung in run.mapped_rungs
        else formatting.printable(rung)
    )


def _switches(run: RunLog) -> Iterator[SwitchView]:
    switches = [(switch.at_ns, attempt, switch) for attempt in run.attempts for switch in attempt.switches]
    return (_switch(attempt, switch) for _, attempt, switch in sorted(switches, key=lambda found: found[0]))


def _switch(attempt: Attempt, switch: SwitchInAnswer) -> SwitchView:
    quality = switch.handoff or {}
    pause_ns = attempt.pause_ns(switch)
    return SwitchView(
        at=formatting.moment(switch.at_ns),
        tenant=formatting.printable(attempt.tenant),
        source=formatting.printable(switch.source),
        dest=formatting.printable(switch.dest),
        route=switch.route,
        cells=str(switch.cells),
        duration=formatting.span(switch.duration_ns / MS_NS if switch.duration_ns else None),
        pause=formatting.span(None if pause_ns is None else pause_ns / MS_NS),
        kl=formatting.decimal(quality.get("kl")),
        predicted_kl=formatting.decimal(switch.predicted_kl),
        jsd=formatting.decimal(quality.get("jsd")),
        jsd_floor=formatting.decimal(quality.get("jsd_floor")),
        recovered=formatting.percent(quality.get("recovered_context")),
    )


def _answers(run: RunLog) -> Iterator[AnswerView]:
    """Every attempt, by tenant; unfolded is the first foreground answer."""
    people = (attempts[-1] for attempts in run.answers.values() if attempts[-1].kind == "foreground")
    awaited = next(people, None)
    for attempts in run.answers.values():
        yield from (_answer(run, attempt, unfolded=attempt is awaited) for attempt in attempts)


def _answer(run: RunLog, attempt: Attempt, *, unfolded: bool) -> AnswerView:
    lost = attempt.fate is Fate.LOST
    number = f", attempt {attempt.number}" if attempt.number > 1 or lost else ""
    tokens = formatting.count(len(attempt.tokens), "token")
    return AnswerView(
        tenant=formatting.printable(attempt.tenant),
        title=f"{attempt.kind}{number} · {tokens} · {ending(attempt)}",
        lost=lost,
        unfolded=unfolded,
        pieces=tuple(_piece(run, fragment) for fragment in fragments(attempt)),
    )


def _piece(run: RunLog, fragment: RungSpan | SwitchMark) -> TextPiece:
    match fragment:
        case RungSpan(rung, text, tokens):
            label = f"{formatting.printable(rung)}, {formatting.count(tokens, 'token')}"
            marks = " marks" if text == MARK * tokens else ""
            return TextPiece(rung_style(run, rung) + marks, text, label)
        case SwitchMark(switch, pause_ms):
            names = formatting.printable(f"{switch.source} → {switch.dest}")
            pause = "" if pause_ms is None else f" · {formatting.span(pause_ms)}"
            return TextPiece("switch", f"{names}{pause}{_quality(switch)}", f"by {switch.route}")


def _quality(switch: SwitchInAnswer) -> str:
    quality = switch.handoff or {}
    shown = ""
    if quality.get("kl") is not None:
        shown += f" · KL {formatting.decimal(quality['kl'])}"
    if quality.get("recovered_context") is not None:
        shown += f" · context kept {formatting.percent(quality['recovered_context'])}"
    return shown


def _definition(metric: Any) -> str:
    return " ".join((inspect.getdoc(metric) or "").split())


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in sorted(value.items()))
    return ABSENT if value is None else str(value)


def _pretty(value: Any) -> str:
    return formatting.printable(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True))
