"""The comparison of policies as rows for people: on stdout, in the page and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from molt.units import ABSENT, MIB
from reports import formatting

Policy = Mapping[str, Any]  # one policy's part of the summary


@dataclass(frozen=True, slots=True)
class Cell:
    """What one policy shows in one row; ``alarm`` marks a harm that should be seen first."""

    text: str
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the comparison; ``group`` names the lines it belongs to."""

    group: str
    label: str
    cells: tuple[Cell, ...]


def rows(summary: Mapping[str, Any]) -> list[TableRow]:
    """Every line of the comparison, one cell a policy."""
    policies = list(summary["policies"].values())
    return [
        TableRow(group, label, tuple(cell(policy) for policy in policies))
        for group, label, cell in (*_LINES, *_rung_lines(policies), *_real_lines(policies))
    ]


def text_table(summary: Mapping[str, Any]) -> str:
    """The comparison for a terminal, one column a policy."""
    body = [[row.label, *(cell.text for cell in row.cells)] for row in rows(summary)]
    headers = ["", *map(formatting.printable, summary["policies"])]
    align = ("left", *("right" for _ in summary["policies"]))
    return tabulate(body, headers=headers, colalign=align, disable_numparse=True, tablefmt="simple")


# --- the lines ----------------------------------------------------------------------------------------------

Line = tuple[str, str, Callable[[Policy], Cell]]


def _harm(key: str) -> Callable[[Policy], Cell]:
    return lambda p: Cell(str(p[key]), alarm=p[key] > 0)


def _plain(text: Callable[[Policy], str]) -> Callable[[Policy], Cell]:
    return lambda p: Cell(text(p))


def _pair(name: str) -> Callable[[Policy], Cell]:
    return _plain(lambda p: f"{formatting.span(p[name]['p50'])} / {formatting.span(p[name]['p99'])}")


def _answers(policy: Policy) -> Cell:
    return Cell(
        f"{policy['answers_finished']} of {policy['answers_asked']}", policy["answers_unfinished"] > 0
    )


def _overshoot(policy: Policy) -> Cell:
    over = policy["overshoot_bytes_max"]
    sign = "+" if over is not None and over > 0 else ""
    return Cell(sign + formatting.size(over), alarm=bool(sign))


def _over_time(policy: Policy) -> Cell:
    return Cell(f"{formatting.decimal(policy['overshoot_byte_seconds'] / MIB)} MiB·s")


def _quality(policy: Policy) -> str:
    return f"{formatting.decimal(policy['handoff']['kl'])} (n={policy['handoff']['n']})"


_LINES: tuple[Line, ...] = (
    ("Answers", "killed by the OS", _harm("killed")),
    ("Answers", "answers finished", _answers),
    ("Answers", "answers lost", _harm("answers_lost")),
    ("Answers", "tokens delivered", _plain(lambda p: str(p["tokens_out"]))),
    ("Answers", "tokens lost", _harm("tokens_lost")),
    ("Answers", "tokens prefilled again", _plain(lambda p: str(p["tokens_reread"]))),
    ("Answers", "context lost for good", _harm("context_lost_tokens")),
    ("Latency", "TTFT p50 / p99", _pair("ttft_ms")),
    ("Latency", "ITL p50 / p99", _pair("itl_ms")),
    ("Latency", "longest pause", _plain(lambda p: formatting.span(p["stall_ms_max"]))),
    ("Latency", "longest pause, foreground", _plain(lambda p: formatting.span(p["foreground_stall_ms_max"]))),
    ("Latency", "longest pause at a switch", _plain(lambda p: formatting.span(p["switch_pause_ms_max"]))),
    ("Memory", "over budget after reaction", _overshoot),
    ("Memory", "over budget × time", _over_time),
    ("Memory", "usage peak", _plain(lambda p: formatting.size(p["usage_peak_bytes"]))),
    ("Memory", "of it file-mapped", _plain(lambda p: formatting.size(p["file_mapped_peak_bytes"]))),
    ("Memory", "transient peak", _plain(lambda p: formatting.size(p["transient_peak_bytes"]))),
    ("Levers", "switches down / up", _plain(lambda p: f"{p['switches_down']} / {p['switches_up']}")),
    ("Levers", "tokens healed", _plain(lambda p: str(p["tokens_healed"]))),
    ("Levers", "deferred", _plain(lambda p: str(p["deferrals"]))),
    ("Levers", "parked", _plain(lambda p: str(p["parks"]))),
    ("Levers", "spilled to disk", _plain(lambda p: str(p["spills"]))),
    ("Levers", "shed", _plain(lambda p: str(p["sheds"]))),
    ("Quality", "handoff KL, nats", _plain(_quality)),
    ("Quality", "recovered context", _plain(lambda p: formatting.percent(p["handoff"]["recovered_context"]))),
)


def _rung_lines(policies: list[Policy]) -> Iterator[Line]:
    names = dict.fromkeys(rung for policy in policies for rung in policy["rung_token_share"])
    for rung in names:
        yield "Quality", f"tokens on {formatting.printable(rung)}", _share_of(rung)


def _real_lines(policies: list[Policy]) -> tuple[Line, ...]:
    return _REAL_LINES if any("real" in policy for policy in policies) else ()


def _real(text: Callable[[Mapping[str, Any]], str]) -> Callable[[Policy], Cell]:
    return _plain(lambda p: text(p["real"]) if "real" in p else ABSENT)


def _spread(name: str) -> Callable[[Policy], Cell]:
    return _real(
        lambda r: f"{formatting.span(r[name]['p50'])} / {formatting.span(r[name]['p99'])} (n={r[name]['n']})"
    )


_REAL_LINES: tuple[Line, ...] = (
    ("Kernel", "kills by its own count", _real(lambda r: formatting.number(r["kernel_kills"]))),
    ("Kernel", "victims", _real(lambda r: ", ".join(r["victims"]) or ABSENT)),
    ("Kernel", "peak of the group", _real(lambda r: formatting.size(r["kernel_peak_bytes"]))),
    ("Kernel", "least room below its limit", _real(lambda r: formatting.size(r["kernel_room_bytes_min"]))),
    ("Kernel", "in use above the line", _real(lambda r: formatting.size(r["over_line_bytes_max"]))),
    ("Kernel", "peak of the engine, beyond rest", _real(lambda r: formatting.size(r["own_peak_bytes"]))),
    ("Kernel", "major faults", _real(lambda r: formatting.number(r["major_faults"]))),
    ("Kernel", "stalled on memory", _real(lambda r: formatting.span(r["stalled_ms"]))),
    ("Speed", "tokens/s before pressure", _real(lambda r: formatting.decimal(r["tokens_per_s_before"]))),
    (
        "Speed",
        "tokens/s under pressure",
        _real(lambda r: formatting.decimal(r["tokens_per_s_under_pressure"])),
    ),
    ("Relief", "signal p50 / p99", _spread("signal_ms")),
    ("Relief", "token boundary p50 / p99", _spread("boundary_ms")),
    ("Relief", "release p50 / p99", _spread("release_ms")),
    ("Relief", "budget reported to relief p50 / p99", _spread("told_to_relief_ms")),
    ("Relief", "then: load p50 / p99", _spread("load_ms")),
    ("Relief", "then: transplant p50 / p99", _spread("transplant_ms")),
)


def _share_of(rung: str) -> Callable[[Policy], Cell]:
    return _plain(
        lambda p: formatting.percent(p["rung_token_share"].get(rung) if p["rung_token_share"] else None)
    )
