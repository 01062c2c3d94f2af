"""Results of a campaign of paired runs: how often each process was killed, how long relief took, how far usage went.

``python -m reports.campaign FILE.jsonl`` writes ``reports/published/real/NAME.md`` and a picture beside it, and copies
the file there. Nothing is typed: page and picture are made of the file alone (a test makes them again and compares).

Rules of this module:

- A void pair counts as void and nowhere else. A pair whose changing process was killed is never void.
- Bounds are exact, one-sided, at 95 % (``confidence.py``): with them a small campaign claims little.
- A *miss* is a trial in which usage went further above the line than the written bound and its grain say, or that
  ended in a kill. It is counted by looks, which may miss a peak, and by the kernel's peak, which may be of pages that
  could be dropped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tabulate import tabulate

from molt.errors import InputError
from molt.program import run_words
from molt.units import MIB, MS_NS, SECOND_NS, format_size, show_percent
from reports import formatting
from reports.confidence import lower_bound, upper_bound
from reports.metrics import nearest_rank
from reports.publish import OUT, PUBLISHED, command, each, run_command
from reports.shapes import CampaignPair, CampaignSession, PageShape, VoidPair, check, checked, read_text

PUBLISHED_REAL = PUBLISHED / "real"
SIGNAL_LOOK_NS = 10_000_000
"""How long after it was true a usage is seen at the latest, by the signal that looks every 10 ms."""
GRAIN_BYTES = 3 * MIB // 2
"""What is not seen: a change of less than a MiB is not reported, and the kernel counts in batches of half a MiB."""

Row = Mapping[str, Any]
Trial = Mapping[str, Any]


@dataclass(frozen=True)
class Campaign:
    """The lines of a file: sessions, and pairs by their numbers."""

    sessions: tuple[Row, ...]
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, file: Path) -> Campaign:
        """``InputError`` for a file that is none. A line that is being written is passed over."""
        where = f"{file}: not the file of a campaign"
        lines = read_text(file).rpartition("\n")[0].splitlines()
        sessions: list[Row] = []
        pairs: dict[int, Row] = {}
        for number, line in enumerate(lines, start=1):
            content = checked(PageShape, line, f"{where}: line {number}")
            if "session" in content:
                check(CampaignSession, content, f"{where}: line {number}")
                sessions.append(content)
            elif "pair" in content:
                model = CampaignPair if content.get("void") is None else VoidPair
                check(model, content, f"{where}: line {number}")
                pairs[content["pair"]] = content
        if not sessions or not pairs:
            raise InputError(f"{where}: no pairs")
        return cls(tuple(sessions), tuple(pairs[number] for number in sorted(pairs)))

    @cached_property
    def valid(self) -> tuple[Row, ...]:
        """Pairs that count."""
        return tuple(row for row in self.rows if row.get("void") is None)

    @cached_property
    def void(self) -> tuple[Row, ...]:
        """Pairs that do not."""
        return tuple(row for row in self.rows if row.get("void") is not None)


# --- numbers ------------------------------------------------------------------------------------------------


def kills(rows: Iterable[Row], policy: str) -> int:
    """Trials of a policy (``hold`` or ``molt``) in which the kernel killed a process."""
    return sum(row[policy]["kills"] > 0 for row in rows)


def latencies_ms(rows: Iterable[Row], part: str) -> list[float]:
    """A part of the relief of the process that changes its model, milliseconds, of the first release of each trial,
    which was the urgent one. ``signal`` only where memory was short before the budget was reported, ``load`` and
    ``transplant`` only where the answer went on with a smaller rung before the next report; none in files of old
    campaigns."""
    firsts = (row["molt"]["reliefs"][0] for row in rows if row["molt"]["reliefs"])
    return sorted(took / MS_NS for first in firsts if (took := first.get(f"{part}_ns")) is not None)


def overshoot_bytes(trial: Trial) -> int:
    """How far usage that cannot be dropped went above the line (the limit less a margin), by looks every 10 ms or so;
    negative: it stayed below."""
    over_bytes: int = trial["over_line_bytes"]
    return over_bytes


def peak_overshoot_bytes(trial: Trial) -> int:
    """The same by the kernel's own peak, which misses nothing between two looks, and has clean pages of files in it,
    which fill whatever is free; by looks where the kernel does not count."""
    return (
        overshoot_bytes(trial) if trial["peak_bytes"] is None else trial["peak_bytes"] - trial["line_bytes"]
    )


def bound_bytes(trial: Trial) -> float | None:
    """The written bound: ``R * (L_signal + L_boundary + L_release) - H``. R is how fast the others really were, H the
    room below the line when the budget was reported, L_signal the 10 ms between two looks; boundary and release are
    those of this trial. ``None``: nothing was released."""
    parts = [part for part in trial["reliefs"] if part["held_bytes"] is not None]
    if not parts:
        return None
    first = parts[0]
    reaction_ns = SIGNAL_LOOK_NS + first["boundary_ns"] + first["release_ns"]
    room = trial["line_bytes"] - first["held_bytes"]
    return float(trial["fastest_bytes_per_s"] * reaction_ns / SECOND_NS - room)


def is_miss(trial: Trial, overshoot: Callable[[Trial], int] = overshoot_bytes) -> bool:
    """Whether a trial of molt went beyond line and bound, by more than the grain, or ended in a kill."""
    bound = bound_bytes(trial)
    return trial["kills"] > 0 or (bound is not None and overshoot(trial) > max(0.0, bound) + GRAIN_BYTES)


def bounded(rows: Iterable[Row]) -> list[Trial]:
    """The trials of molt that have a bound: those that released weights."""
    return [row["molt"] for row in rows if bound_bytes(row["molt"]) is not None]


# --- tables -------------------------------------------------------------------------------------------------


def kill_table(campaign: Campaign) -> str:
    """Kills by rate and pages, and in all."""
    groups = [*_by_pressure(campaign.valid), ("all", campaign.valid)]
    body = [
        [
            name,
            len(rows),
            kills(rows, "hold"),
            kills(rows, "molt"),
            show_percent(upper_bound(kills(rows, "molt"), len(rows)), 1),
            formatting.rate(max((row["molt"]["fastest_bytes_per_s"] for row in rows), default=0)),
        ]
        for name, rows in groups
    ]
    headers = ["others take", "pairs", "hold killed", "molt killed", "molt: at most (95 %)", "fastest seen"]
    return _table(headers, body)


def control_table(campaign: Campaign) -> str:
    """The same process under signals that come late."""
    trials: dict[str, list[Trial]] = {}
    for row in campaign.rows:
        if "control" in row and "kills" in row["control"]:
            trials.setdefault(row["control"]["signal"], []).append(row["control"])
    body = [
        [
            signal,
            len(found),
            dead := sum(t["kills"] > 0 for t in found),
            show_percent(lower_bound(dead, len(found)), 1),
        ]
        for signal, found in sorted(trials.items())
    ]
    return _table(["signal", "trials", "killed", "at least (95 %)"], body)


def relief_table(campaign: Campaign) -> str:
    """How long relief took, part by part."""
    body = [
        [part, len(found), *(formatting.span(nearest_rank(found, p)) for p in (50, 90, 99))]
        for part in ("signal", "boundary", "release", "load", "transplant")
        if (found := latencies_ms(campaign.valid, part))
    ]
    return _table(["part", "n", "p50", "p90", "p99"], body)


def page(campaign: Campaign, name: str, command_line: str) -> str:
    """The page of a campaign, as Markdown."""
    first = campaign.sessions[0]
    valid = campaign.valid
    dead, count = kills(valid, "molt"), len(valid)
    points = bounded(valid)
    misses = sum(map(is_miss, points))
    peak_misses = sum(is_miss(trial, peak_overshoot_bytes) for trial in points)
    reasons = {reason: sum(row["void"] == reason for row in campaign.void) for reason in _reasons(campaign)}
    return "\n".join(
        [
            f"# Paired runs under real pressure: {first['ladder']}",
            "",
            f"Made by `{command_line}`; the figures are in [{name}.jsonl]({name}.jsonl), a pair a line.",
            "",
            f"Of {len(campaign.rows)} pairs {len(campaign.void)} were void. In the other {count} the process that "
            f"holds its model was killed {kills(valid, 'hold')} times, the one that changes it {dead} times: "
            f"with 95 % confidence it is killed in at most {show_percent(upper_bound(dead, count), 1)} of such cases.",
            "",
            kill_table(campaign),
            "",
            *(
                ["Void: " + "; ".join(f"{reason} ({n})" for reason, n in reasons.items()) + ".", ""]
                if reasons
                else []
            ),
            *_controls(campaign),
            "## How long relief took",
            "",
            "The first release of every trial. *Signal* counts from when memory was short, and has no entry where the "
            "budget was reported before. *Load* of the smaller rung and *transplant* of the cache come after relief.",
            "",
            relief_table(campaign),
            "",
            "## How far usage went",
            "",
            f"![Overshoot against its bound]({name}.svg)",
            "",
            "Each point is a trial of the changing process that had to release weights: to the right what the written "
            "bound allows, `R * (L_signal + L_boundary + L_release) - H`, upwards how far usage that cannot be dropped "
            f"was above the line, by looks every 10 ms. {len(points)} points, {misses} misses (killed, or above both "
            f"the line and their bound by more than the {GRAIN_BYTES / MIB:g} MiB that are not seen or not reported); "
            f"{peak_misses} by the kernel's own peak, which misses nothing between two looks "
            "but has clean pages of files in it.",
            "",
            "## Where from",
            "",
            f"- commit {', '.join(sorted({str(s['commit']) for s in campaign.sessions}))}",
            f"- machine: {formatting.machine(first['machine'])}",
            f"- signal {first['signal']}; others leave {formatting.size(first['left_bytes'])}{_of_room(campaign.rows)}",
            f"- {len(campaign.sessions)} sessions, the first on {first['session']}",
            "",
        ]
    )


# --- the picture --------------------------------------------------------------------------------------------

PICTURE_WIDTH, HEIGHT, EDGE = 640, 400, 60
COLOURS = ("#3b6fb6", "#3a9d6e", "#c08a2e", "#8b5fbf")
MISS = "#c62828"


def picture(campaign: Campaign) -> str:
    """Overshoot against its bound as SVG, a point a trial; the diagonal is the bound."""
    rates = sorted({_rate_key(row) for row in campaign.valid})
    points = [
        (bound_bytes(row["molt"]), overshoot_bytes(row["molt"]), _rate_key(row), is_miss(row["molt"]))
        for row in campaign.valid
    ]
    placed = [(b / MIB, o / MIB, rate, miss) for b, o, rate, miss in points if b is not None]
    low = min([-10.0, *(min(b, o) for b, o, _, _ in placed)])
    high = max([10.0, *(max(b, o) for b, o, _, _ in placed)])

    def x(value: float) -> float:
        return EDGE + (PICTURE_WIDTH - 2 * EDGE) * (value - low) / (high - low)

    def y(value: float) -> float:
        return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (value - low) / (high - low)

    colour = dict(zip(rates, COLOURS, strict=False))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE_WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Overshoot against its bound</title>",
        f'<rect width="{PICTURE_WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<line x1="{x(low):.1f}" y1="{y(low):.1f}" x2="{x(high):.1f}" y2="{y(high):.1f}" stroke="#444"/>',
        f'<line x1="{x(low):.1f}" y1="{y(0):.1f}" x2="{x(high):.1f}" y2="{y(0):.1f}" stroke="#bbb"/>',
        *(
            f'<circle cx="{x(b):.1f}" cy="{y(o):.1f}" r="3.5" fill="{MISS if miss else colour[rate]}" '
            f'fill-opacity="0.7"><title>{_shown_rate(rate)}: {o:.1f} MiB, bound {b:.1f} MiB</title></circle>'
            for b, o, rate, miss in placed
        ),
        *(
            f'<text x="{EDGE}" y="{20 + 15 * i}" fill="{colour[rate]}">{_shown_rate(rate)}</text>'
            for i, rate in enumerate(rates)
        ),
        f'<text x="{EDGE}" y="{20 + 15 * len(rates)}" fill="{MISS}">miss</text>',
        f'<text x="{PICTURE_WIDTH / 2}" y="{HEIGHT - 20}" text-anchor="middle">'
        f"bound, MiB ({low:.0f} to {high:.0f})</text>",
        f'<text x="18" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 18 {HEIGHT / 2})">'
        f"above the line, MiB ({low:.0f} to {high:.0f})</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


# --- details ------------------------------------------------------------------------------------------------


def _by_pressure(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for rate in sorted({_rate_key(row) for row in rows}):
        for huge in (False, True):
            found = [row for row in rows if _rate_key(row) == rate and row["huge"] == huge]
            if found:
                yield f"{_shown_rate(rate)}, {'huge' if huge else 'small'} pages", found


def _controls(campaign: Campaign) -> list[str]:
    """The section of the late signals; nothing where there were none."""
    if not any("control" in row for row in campaign.rows):
        return []
    return [
        "## Controls: the same process under a signal that comes late",
        "",
        control_table(campaign),
        "",
    ]


def _options(campaign: Campaign) -> str:
    """The options of the command, as far as the file has them; old files have none."""
    first = campaign.sessions[0]
    if "room_ns" not in first:
        return ""
    scenario = command(first["scenario"]).split()[-1]
    words = [
        f"--scenario {scenario}",
        f"--room {first['room_ns'] / SECOND_NS:g}s",
        f"--left {format_size(first['left_bytes'])}",
    ]
    return " ".join([*words, *([] if _controls(campaign) else ["--no-controls"])]) + " "


def _of_room(rows: Sequence[Row]) -> str:
    """Of how much room; nothing in files of old campaigns, in which it was the same for all."""
    rooms = [row["room_bytes"] for row in rows if "room_bytes" in row]
    return f" of {formatting.size(min(rooms))} to {formatting.size(max(rooms))}, by the rate" if rooms else ""


def _rate_key(row: Row) -> float:
    return float("inf") if row["rate_bytes_per_s"] is None else row["rate_bytes_per_s"]


def _shown_rate(rate: float) -> str:
    return "flat out" if rate == float("inf") else formatting.rate(rate)


def _reasons(campaign: Campaign) -> list[str]:
    return list(dict.fromkeys(row["void"] for row in campaign.void))


def _table(headers: list[str], body: list[list[Any]]) -> str:
    align = ["left", *("right" for _ in headers[1:])]
    return tabulate(body, headers, tablefmt="github", colalign=align if body else None, disable_numparse=True)


def publish(file: Path, folder: Path = PUBLISHED_REAL) -> str:
    """Copy a campaign's file and write its page and picture beside it; returns their name."""
    campaign = Campaign.read(file)
    folder.mkdir(parents=True, exist_ok=True)
    name = file.stem
    if file.resolve() != (folder / file.name).resolve():
        shutil.copyfile(file, folder / file.name)
    for ending, text in pages(campaign, name).items():
        (folder / f"{name}{ending}").write_text(text, encoding="utf-8", newline="\n")
    return name


def pages(campaign: Campaign, name: str) -> dict[str, str]:
    """What is published of a campaign, by the ending of its file."""
    return {".md": page(campaign, name, made_by(campaign, name)), ".svg": picture(campaign)}


def made_by(campaign: Campaign, name: str) -> str:
    """The command that ran the pairs of a campaign."""
    pairs = 1 + max(row["pair"] for row in campaign.rows)
    return f"molt real campaign --pairs {pairs} {_options(campaign)}--out {name}.jsonl"


_USAGE = f"python -m reports.campaign FILE.jsonl ... {OUT}"


def main(arguments: list[str]) -> int:
    """Publish the files given."""
    return run_command(_USAGE, arguments, each(_publish_beside_runs))


def _publish_beside_runs(file: Path, published: Path) -> str:
    return publish(file, PUBLISHED_REAL if published == PUBLISHED else published)


if __name__ == "__main__":
    run_words(main, _USAGE)
