"""All measured results on one page, made of the JSON files in ``reports/published`` alone.

``python -m reports.results_page`` writes ``docs/results.md``. Nothing is typed: every table is one of the published
pages, or its main columns, and a test makes the page again and compares. What is measured, and against which control,
is said once for each kind of table; the pages have everything else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from molt.evals import text_tables
from molt.evals.result import Drift, Figure, HandoffTable, Residuals, RouteResiduals, SwitchCost, Table, read
from molt.evals.text_tables import Grid, markdown
from molt.program import run_words
from molt.units import show_percent
from reports import campaign, eval_page, prove_page, publish
from reports.campaign import Campaign
from reports.confidence import upper_bound
from reports.publish import DOCS, PUBLISHED, published_folder

PAGE = DOCS / "results.md"
_USAGE = "python -m reports.results_page"
SIMULATED = ("spike_mid_answer", "three_tenants")
REAL = ("spike_mid_answer", "qwen_three_tenants")
HANDOFFS = ("handoff-pico", "handoff-qwen2.5-coder", "handoff-qwen2.5-coder-up")
LADDERS = ("pico", "qwen2.5-coder")
CAMPAIGNS = ("campaign-pico-300", "campaign-pico-1000", "campaign-qwen")
"""Those whose kills are shown by rate and pages; the first table has all campaigns."""

Kind = TypeVar("Kind", HandoffTable, SwitchCost, Drift, Residuals)

INTRODUCTION = """\
Every table here is made from a JSON file in [reports/published](../reports/published) by
`python -m reports.results_page`; no number is typed. Each table links to its full page, which names commit and machine.
Words are explained in the [glossary](reference/glossary.md); what was tried on the way, and what failed, is in the
[lab notes](README.md#lab-notes-what-was-tried-and-measured)."""


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """One table: where its page is, below ``reports/published``, and the command that measured it."""

    title: str
    table: str
    page: str
    command: str


@dataclass(frozen=True, slots=True)
class Chapter:
    """Tables of one kind, with a sentence on what is measured and against which control."""

    title: str
    measured: str
    results: tuple[MeasuredTable, ...]


def page(published: Path = PUBLISHED) -> str:
    """The page, as Markdown."""
    parts = ["# Results", INTRODUCTION]
    for chapter in _chapters(published):
        parts += [f"## {chapter.title}", chapter.measured]
        for result in chapter.results:
            origin = f"From [{result.page}](../reports/published/{result.page}), made by `{result.command}`."
            parts += [f"### {result.title}", result.table, origin]
    return "\n\n".join(parts) + "\n"


def _chapters(published: Path) -> Iterator[Chapter]:
    yield Chapter(
        "Simulated runs",
        "Policies under the same memory, in the simulator with real models and caches. The control is `hold`, which "
        "never reacts.",
        tuple(_run(published / f"{name}.json", "sim.run") for name in SIMULATED),
    )
    yield Chapter(
        "Runs with real processes",
        "The same policies as real processes in a control group with a memory limit that the kernel enforces, while "
        "other programs take memory. The control is `hold`, under the same pressure. Options of the command are on the "
        "page.",
        tuple(_run(published / "real" / f"{name}.json", "realproc.run") for name in REAL),
    )
    yield Chapter(
        "Kills in campaigns",
        "Pairs of real processes under the same pressure: one holds its model, which is the control, and one changes "
        "it. The kernel counts the kills. Bounds are exact, one-sided, at 95 %. A *miss* is a trial in which usage "
        "went further above the line than the written bound allows, or that ended in a kill.",
        tuple(_campaigns(published / "real")),
    )
    yield Chapter(
        "Handoff quality",
        "A cache is given to the destination at the point of a switch, and its predictions are compared with those "
        "with its own cache, the first row. The controls must do worse: no history, another document's cache, and the "
        "last tokens alone.",
        tuple(_handoffs(published)),
    )
    yield Chapter(
        "Cost of a switch",
        "Wall time and FLOPs of a switch that takes the cache along, by length of the context. The control is "
        "prefilling the same tokens again, timed in turn.",
        tuple(_costs(published)),
    )
    yield Chapter(
        "Switch after switch",
        "Handoff quality right after every one of several switches, without healing between them. The control is a "
        "single switch at the same place, from the source's own cache.",
        tuple(_drifts(published)),
    )
    yield Chapter(
        "What the maps do not explain",
        "1 - R2 of K and V on documents that no map was fitted on, and what attention makes of the mapped cells, as "
        "means over the mapped layers. The control is attention over the destination's own cells: cosine 1, routing "
        "TV 0, top-1 1.",
        tuple(_residuals(published)),
    )
    yield Chapter(
        "The proof",
        "Searches for a broken promise of the core and its policies. The control is a sample of "
        "[mutants](lab-notes/mutants.md): small faults, most of which the tests must notice.",
        (_proof(published / "prove.json"),),
    )


def _run(path: Path, module: str) -> MeasuredTable:
    summary = json.loads(path.read_text(encoding="utf-8"))
    ladder = f"{summary['scenario']}, ladder {summary['ladder']}"
    folder = "real/" if path.parent.name == "real" else ""
    command = publish.command(path.stem, module)
    return MeasuredTable(ladder, publish.readme_table(summary), f"{folder}{path.stem}.md", command)


# --- campaigns ---


def _campaigns(folder: Path) -> Iterator[MeasuredTable]:
    found = {path.stem: Campaign.read(path) for path in sorted(folder.glob("*.jsonl"))}
    yield MeasuredTable("All campaigns", markdown(_overview(found)), "real", "molt real campaign")
    for name in CAMPAIGNS:
        made_by = campaign.made_by(found[name], name)
        yield MeasuredTable(name, campaign.kill_table(found[name]), f"real/{name}.md", made_by)


def _overview(found: dict[str, Campaign]) -> Grid:
    """One line a campaign."""
    headers = (
        "campaign",
        "pairs",
        "void",
        "hold killed",
        "molt killed",
        "molt: at most (95 %)",
        "trials with a bound",
        "misses",
    )
    return Grid("", "", headers, tuple(_overview_row(name, one) for name, one in found.items()))


def _overview_row(name: str, of: Campaign) -> tuple[str, ...]:
    hold, molt = (campaign.kills(of.valid, policy) for policy in ("hold", "molt"))
    trials = campaign.bounded(of.valid)
    return (
        f"[{name}](../reports/published/real/{name}.md)",
        str(len(of.rows)),
        str(len(of.void)),
        str(hold),
        str(molt),
        show_percent(upper_bound(molt, len(of.valid)), 1),
        str(len(trials)),
        str(sum(map(campaign.is_miss, trials))),
    )


# --- tables of molt eval ---


def _handoffs(published: Path) -> Iterator[MeasuredTable]:
    for name in HANDOFFS:
        table = _read(published, name, HandoffTable)
        for route in table.routes:
            shown = eval_page.readme_table(table, route.source, route.dest)
            title = f"{table.origin.ladder}: {route.source} to {route.dest} ({route.route})"
            yield MeasuredTable(title, shown, f"{name}.md", table.origin.command)


def _costs(published: Path) -> Iterator[MeasuredTable]:
    for ladder in LADDERS:
        table = _read(published, f"switch-cost-{ladder}", SwitchCost)
        for route in table.routes:
            grid = text_tables.cost_by_length(route)
            title = f"{ladder}: {route.source} to {route.dest} ({route.route})"
            yield _evaluated(title, f"{markdown(grid)}\n\n{grid.note}", table)


def _drifts(published: Path) -> Iterator[MeasuredTable]:
    for ladder in LADDERS:
        table = _read(published, f"drift-{ladder}", Drift)
        for journey in table.paths:
            shown = markdown(eval_page.judged("cache", journey.rows))
            setting = (
                f"{text_tables.setting(table.texts)} {table.tokens_between} tokens between two switches."
            )
            yield _evaluated(f"{ladder}: {' to '.join(journey.path)}", f"{shown}\n\n{setting}", table)


def _residuals(published: Path) -> Iterator[MeasuredTable]:
    headers = (
        "route",
        "rows",
        "p/n",
        "K: 1 - R2",
        "V: 1 - R2",
        "attention cosine",
        "routing TV",
        "routing top-1",
    )
    for ladder in LADDERS:
        table = _read(published, f"residuals-{ladder}", Residuals)
        grid = Grid("", "", headers, tuple(map(_residual_row, table.routes)))
        yield _evaluated(ladder, f"{markdown(grid)}\n\n{text_tables.setting(table.texts)}", table)


def _residual_row(route: RouteResiduals) -> tuple[str, ...]:
    """Means over the layers that a map gives; a layer that the destination runs itself has no card."""
    mapped = [layer for layer in route.layers if layer.card_k is not None]

    def mean(figure: Callable[[Any], Figure]) -> float:
        return fmean(figure(layer).mean for layer in mapped)

    return (
        f"{route.source} to {route.dest}",
        f"{route.rows:,}",
        f"{route.features_per_row:.3f}",
        text_tables.nats(mean(lambda layer: layer.residual_k)),
        text_tables.nats(mean(lambda layer: layer.residual_v)),
        f"{mean(lambda layer: layer.attention_cosine):.4f}",
        text_tables.nats(mean(lambda layer: layer.routing_tv)),
        f"{mean(lambda layer: layer.routing_top1):.2f}",
    )


def _evaluated(title: str, shown: str, table: Table) -> MeasuredTable:
    return MeasuredTable(title, shown, f"{table.table}-{table.origin.ladder}.md", table.origin.command)


def _read(published: Path, name: str, kind: type[Kind]) -> Kind:
    table = read(published / f"{name}.json")
    assert isinstance(table, kind), f"{name} is a table of another kind"
    return table


def _proof(path: Path) -> MeasuredTable:
    of = json.loads(path.read_text(encoding="utf-8"))
    summary = f"{len(of['failures'])} failures, {len(of['silent'])} mechanisms that never fired."
    return MeasuredTable(
        "molt prove", f"{prove_page.parts_table(of)}\n\n{summary}", "prove.md", of["command"]
    )


def main(arguments: list[str]) -> int:
    """Write ``docs/results.md``; there are no arguments."""
    if arguments:
        print(f"usage: {_USAGE}", file=sys.stderr)
        return 2
    published_folder(None)
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    run_words(main, _USAGE)
