"""Tables as people read them: grids of words, printed for a terminal or as Markdown. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from tabulate import tabulate

from molt.evals.result import (
    Ablation,
    Drift,
    Figure,
    Gate,
    HandoffTable,
    JudgedRow,
    LayerResidual,
    Origin,
    Residuals,
    RouteCost,
    RouteTable,
    SwitchCost,
    Table,
    Texts,
)
from molt.units import ABSENT, show_percent, show_size

JUDGED = (
    "Nats. [a, b] is a 95 % interval of the mean, from resampling documents; p95 is the bad end over documents "
    "(p5 where more is better). KL and top-1 are against what the rung named in the heading predicts with its own "
    'cache, JSD is to the source, "x floor" its multiple of what the own cache has. Recovered context: (NLL none '
    '- NLL this) / (NLL none - NLL own), sums over documents. "greedy": along what the source produces; '
    "all else along the document."
)
TIMED = (
    "Medians of wall time, both rungs in memory and warm. FLOPs are two a multiply-add, masked scores included. "
    'What is "over bare" is over the median of the bare steps of its row.'
)
LAYERS = (
    "[a, b] is a 95 % interval from resampling documents. The destination's own queries along the document look "
    "into its own cells and into the transplanted ones: attention cosine is between what they read, routing TV between "
    "their attention weights (0: the same, 1: disjoint), routing top-1 the share whose most attended cell is the same."
)


@dataclass(frozen=True, slots=True)
class Grid:
    """One table: a title, a line under it, headers, rows of text."""

    title: str
    note: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def text(grids: Sequence[Grid]) -> str:
    """Grids for a terminal."""
    return "\n\n".join(
        "\n".join(filter(None, (grid.title, grid.note, _tabulated(grid, "simple")))) for grid in grids
    )


def markdown(grid: Grid) -> str:
    """The table of a grid as Markdown."""
    return _tabulated(grid, "pipe")


def _tabulated(grid: Grid, form: str) -> str:
    align = ("left", *("right" for _ in grid.headers[1:]))
    return str(
        tabulate(grid.rows, headers=grid.headers, colalign=align, disable_numparse=True, tablefmt=form)
    )


def grids(table: Table) -> list[Grid]:
    """What is shown of a table, gates first."""
    match table:
        case HandoffTable() | Ablation():
            routes = [grid for route in table.routes for grid in _route(route, table.texts)]
            return [gate_grid(table.gates), *routes]
        case Drift():
            return [gate_grid(table.gates), *_drift(table)]
        case SwitchCost():
            return _switch_cost(table)
        case Residuals():
            return [gate_grid(table.gates), *_residuals(table)]
    assert_never(table)


def note(table: Table) -> str:
    """What the figures of a table mean, and where they come from."""
    match table:
        case HandoffTable() | Ablation() | Drift():
            meaning = JUDGED
        case SwitchCost():
            meaning = TIMED
        case Residuals():
            meaning = LAYERS
        case _:
            assert_never(table)
    return f"{meaning}\n\n{origin_line(table.origin)}"


def origin_line(origin: Origin) -> str:
    """Command, commit, machine, versions and seed in one line."""
    machine = {
        **origin.machine,
        "cores": f"{origin.machine.get('cores')} cores, {origin.threads} threads",
        "memory_bytes": show_size(int(origin.machine.get("memory_bytes") or 0)),
    }
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    facts = (origin.command, f"commit {origin.commit}", ", ".join(map(str, machine.values())), versions)
    return "; ".join((*facts, f"seed {origin.seed}"))


def gate_grid(gates: Sequence[Gate]) -> Grid:
    """The gates, a failing one in capitals."""
    return Grid(
        "Gates",
        "Each must hold before any figure counts.",
        ("gate", "rung", "measured", "limit", "", "what is measured"),
        tuple(
            (
                gate.name,
                gate.rung,
                f"{gate.value:.2g}",
                f"{gate.limit:g}",
                "passed" if gate.passed else "FAIL",
                gate.detail,
            )
            for gate in gates
        ),
    )


def setting(texts: Texts) -> str:
    """One line on the documents and the lengths."""
    return (
        f"{len(texts.documents)} documents ({texts.source}), {texts.context} tokens of context, "
        f"{texts.continuation} after the switch."
    )


# -------------------------------------------------------------------------------------------------- rows of a route


def _route(route: RouteTable, texts: Texts) -> list[Grid]:
    title = f"{route.source} -> {route.dest} ({route.route}), judged against {route.judged_against}"
    missing = [f"Left out: {one.row} ({one.why})." for one in route.left_out]
    return [
        Grid(title, " ".join((setting(texts), *missing)), QUALITY_HEADERS, tuple(map(_quality, route.rows))),
        _by_position(title, route.rows, texts.marks),
        Grid(
            f"{title}: what it costs",
            "Stall with weights and map in memory; FLOPs are two a multiply-add.",
            ("cache", "stall ms, median", "stall ms, p95", "MFLOP", "FLOPs saved", "map"),
            tuple(_cost(row, route.reread_flops) for row in route.rows if row.cost is not None),
        ),
    ]


QUALITY_HEADERS = (
    "cache",
    "KL mean",
    "KL median",
    "KL p95",
    "KL first",
    "JSD first",
    "JSD",
    "x floor",
    "top-1",
    "NLL",
    "recovered",
    "recovered p5",
    "recovered greedy",
)


def _quality(row: JudgedRow) -> tuple[str, ...]:
    of = row.columns
    return (
        row.name,
        _with_interval(of["kl"], nats),
        nats(of["kl"].median),
        nats(of["kl"].tail),
        nats(of["kl_first"].mean),
        nats(of["jsd_first"].mean),
        nats(of["jsd"].mean),
        f"{of['jsd_to_floor'].mean:.3g}",
        f"{of['top1'].mean:.2f}",
        nats(of["nll"].mean),
        _with_interval(of["recovered"], _whole_percent, " %"),
        show_percent(of["recovered"].tail),
        show_percent(of["recovered_greedy"].mean),
    )


def _by_position(title: str, rows: Sequence[JudgedRow], marks: Sequence[int]) -> Grid:
    figures = ("kl", "nll", "recovered")
    words = {"kl": "KL", "nll": "NLL", "recovered": "recovered"}
    return Grid(
        f"{title}: by position after the switch",
        "A figure at m is the mean over the tokens after the mark before, up to the m-th.",
        ("cache", *(f"{words[figure]} at {mark}" for figure in figures for mark in marks)),
        tuple(
            (
                row.name,
                *(
                    show_percent(row.columns[f"{figure}@{mark}"].mean)
                    if figure == "recovered"
                    else nats(row.columns[f"{figure}@{mark}"].mean)
                    for figure in figures
                    for mark in marks
                ),
            )
            for row in rows
        ),
    )


def _cost(row: JudgedRow, reread_flops: int) -> tuple[str, ...]:
    assert row.cost is not None
    return (
        row.name,
        f"{row.cost.stall_ms.median:.3g}",
        f"{row.cost.stall_ms.tail:.3g}",
        f"{row.cost.flops / 1e6:,.0f}",
        flops_saved(row.cost.flops, reread_flops),
        show_size(row.cost.map_bytes) if row.cost.map_bytes else ABSENT,
    )


# -------------------------------------------------------------------------------------------------------- the others


def _drift(table: Drift) -> list[Grid]:
    made = []
    for journey in table.paths:
        title = " -> ".join(journey.path)
        note = f"{setting(table.texts)} {table.tokens_between} tokens between two switches."
        made.append(Grid(title, note, QUALITY_HEADERS, tuple(map(_quality, journey.rows))))
    return made


def _switch_cost(table: SwitchCost) -> list[Grid]:
    made = []
    for route in table.routes:
        made.append(cost_by_length(route))
        made += [grid for grid in (_map_alone(route), _healing(route)) if grid.rows]
    return made


def cost_by_length(route: RouteCost) -> Grid:
    """What a switch costs on one route beside prefilling again, by length of the context."""
    return Grid(
        f"{route.source} -> {route.dest} ({route.route}), map {show_size(route.map_bytes)}",
        f"Taking the cache along is faster {_break_even(route)}. Medians, both rungs warm.",
        (
            "context",
            "transplant ms",
            "map load ms",
            "prefill ms",
            "times faster",
            "transplant MFLOP",
            "prefill MFLOP",
            "FLOPs saved",
        ),
        tuple(
            (
                str(step.context),
                f"{step.carry_ms:.3g}",
                f"{step.map_load_ms:.3g}",
                f"{step.reread_ms:.3g}",
                f"{step.reread_ms / step.carry_ms:.3g}",
                f"{step.carry_flops / 1e6:,.0f}",
                f"{step.reread_flops / 1e6:,.0f}",
                flops_saved(step.carry_flops, step.reread_flops),
            )
            for step in route.steps
        ),
    )


def _break_even(route: RouteCost) -> str:
    """From which length on the cache is worth taking along."""

    def beginning(at: int | None) -> str:
        return f"from {'no measured context' if at is None else f'{at} tokens'} on"

    if route.route == "carry":
        return beginning(route.crossover)
    return (
        f"with the map in memory {beginning(route.crossover)}; "
        f"with the map read from its file {beginning(route.crossover_with_load)}"
    )


def _map_alone(route: RouteCost) -> Grid:
    return Grid(
        f"{route.source} -> {route.dest}: the map alone",
        "The same without a token that the destination prefills.",
        ("context", "map ms", "prefill ms", "times faster", "map MFLOP", "FLOPs saved"),
        tuple(
            (
                str(step.context),
                f"{step.map_ms:.3g}",
                f"{step.reread_ms:.3g}",
                f"{step.reread_ms / step.map_ms:.3g}",
                f"{step.map_flops / 1e6:,.0f}",
                flops_saved(step.map_flops, step.reread_flops),
            )
            for step in route.steps
            if step.map_ms is not None and step.map_flops is not None
        ),
    )


def _healing(route: RouteCost) -> Grid:
    return Grid(
        f"{route.source} -> {route.dest}: decode steps while the cache heals",
        "Steps that heal tokens and bare ones, in turn; the longest gap between two tokens is the longest step.",
        (
            "tokens healed",
            "context",
            "timings",
            "bare ms",
            "bare p95",
            "bare longest",
            "healing ms",
            "healing p95",
            "healing longest",
            "over bare",
            "p95 over bare",
            "longest over bare",
        ),
        tuple(
            (
                str(pace.tokens),
                f"{pace.context:,}",
                str(pace.n),
                *(
                    f"{ms:.3g}"
                    for times in (pace.bare, pace.healing)
                    for ms in (times.median_ms, times.p95_ms, times.longest_ms)
                ),
                *(
                    f"{ms / pace.bare.median_ms:.2f}"
                    for ms in (pace.healing.median_ms, pace.healing.p95_ms, pace.healing.longest_ms)
                ),
            )
            for pace in route.healing
        ),
    )


def flops_saved(flops: int, of_prefill: int) -> str:
    """The share of the FLOPs of a prefill that something cheaper saves."""
    return show_percent(1 - flops / of_prefill)


def _residuals(table: Residuals) -> list[Grid]:
    return [
        Grid(
            f"{route.source} -> {route.dest}: p/n {route.features_per_row:.3f}, fitted on {route.rows} rows",
            f"{setting(table.texts)} 1 - R2 of the mapped cells, and what attention makes of them.",
            (
                "layer",
                "K: 1 - R2",
                "V: 1 - R2",
                "K, as fitted",
                "V, as fitted",
                "attention cosine",
                "routing TV",
                "routing top-1",
            ),
            tuple(map(_layer, route.layers)),
        )
        for route in table.routes
    ]


def _layer(one: LayerResidual) -> tuple[str, ...]:
    return (
        str(one.layer),
        _with_interval(one.residual_k, nats),
        _with_interval(one.residual_v, nats),
        ABSENT if one.card_k is None else nats(one.card_k),
        ABSENT if one.card_v is None else nats(one.card_v),
        f"{one.attention_cosine.mean:.4f}",
        nats(one.routing_tv.mean),
        f"{one.routing_top1.mean:.2f}",
    )


def nats(value: float) -> str:
    """Three digits after the point, and two digits at all of what is smaller than that."""
    return "0" if value == 0 else f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"


def _whole_percent(share: float) -> str:
    return show_percent(share).removesuffix(" %")


def _with_interval(summary: Figure, show: Callable[[float], str], unit: str = "") -> str:
    if summary.low is None or summary.high is None:
        return show(summary.mean) + unit
    return f"{show(summary.mean)}{unit} [{show(summary.low)}, {show(summary.high)}]"
