"""One policy's run as a picture, in numbers: step areas of memory, the levers, and a lane for each tenant.

Paths are SVG path data in a box of ``CHART_WIDTH`` x height units that the page stretches over whatever width there
is; text is placed beside the box by percentages. Time runs from 0 to the end of the longest run, and the
memory axis is the same for every policy, so charts can be compared by eye.

A column is one unit of width. Where memory changes faster, a column shows the highest usage in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reports import formatting
from reports.run_log import Attempt, Fate, Record, RunLog
from reports.texts import ending
from reports.timeline import Doing, TimelinePhase, phases

CHART_WIDTH = 1000
MEMORY_HEIGHT = 200
LANE_HEIGHT = 24
RUNG_COLOURS = 6
MARK_COLUMNS = 400
BUDGET_STEPS_SHOWN = 12
_ROUND_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Scale:
    """The axes that all charts of a page share."""

    end_ns: int
    top_bytes: int

    def x(self, at_ns: int) -> float:
        """Units from the left."""
        return CHART_WIDTH * at_ns / self.end_ns

    def y(self, size_bytes: int) -> float:
        """Units from the top; what is higher than the box is drawn at its edge."""
        return MEMORY_HEIGHT * (1 - min(1.0, size_bytes / self.top_bytes))

    def left(self, at_ns: int) -> str:
        """Percent from the left."""
        return _number(100 * at_ns / self.end_ns)


@dataclass(frozen=True, slots=True)
class AreaShape:
    """A path and the CSS classes that colour it."""

    style: str
    path: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign or a label at ``at`` percent of an axis; ``label`` says what it is."""

    at: str
    label: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Levers:
    """One kind of lever and when it was used."""

    name: str
    style: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """One tenant over time."""

    tenant: str
    kind: str
    shapes: tuple[AreaShape, ...]
    marks: tuple[Mark, ...]
    alternative: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything a template needs to draw a run."""

    areas: tuple[AreaShape, ...]
    over: str
    budget: str
    usage: str
    bytes_axis: tuple[Mark, ...]
    time_axis: tuple[Mark, ...]
    kills: tuple[Mark, ...]
    levers: tuple[Levers, ...]
    lanes: tuple[Lane, ...]
    alternative: str


def rung_style(run: RunLog, rung: str) -> str:
    """The CSS class of a rung."""
    return f"r{run.rungs.index(rung) % RUNG_COLOURS}"


def shared_scale(runs: Iterable[RunLog]) -> Scale:
    """Axes that hold every run. A budget of more than twice the highest usage does not stretch the axis."""
    runs = list(runs)
    peak = max((sample.usage for run in runs for sample in run.samples), default=0)
    budgets = [level.budget for run in runs for level in run.levels]
    fitting = [budget for budget in budgets if not peak or budget <= 2 * peak]
    top = max([peak, *fitting, 1])
    return Scale(max([run.end_ns for run in runs] + [1]), top + top // 12 + 1)


def chart(run: RunLog, scale: Scale) -> Chart:
    """The picture of one run on shared axes."""
    steps = list(_steps(run, scale))
    return Chart(
        areas=tuple(_areas(run, steps, scale)),
        over=_over(run, scale),
        budget=_line([(scale.x(lv.start_ns), scale.y(lv.budget)) for lv in run.levels], scale.x(run.end_ns)),
        usage=_line([(x, scale.y(usage)) for x, usage, _ in steps], scale.x(run.end_ns)),
        bytes_axis=tuple(_bytes_axis(scale)),
        time_axis=tuple(_time_axis(scale)),
        kills=tuple(_kills(run, scale)),
        levers=tuple(_levers(run, scale)),
        lanes=tuple(_lanes(run, scale)),
        alternative=_alternative(run),
    )


# --- memory -------------------------------------------------------------------------------------------------

Parts = Mapping[str, Mapping[str, int]]
Step = tuple[float, int, Parts]  # from x on: usage and its parts


def _steps(run: RunLog, scale: Scale) -> Iterator[Step]:
    """The usage, at most two steps a column: the highest usage in a column, and what remains after it."""
    changes: list[tuple[int, int, Parts]] = [(s.at_ns, s.usage, s.parts) for s in run.samples]
    changes += [(kill["at_ns"], 0, {}) for kill in run.events("ProcessKilled")]
    changes.sort(key=lambda change: change[0])
    columns: dict[int, list[tuple[int, Parts]]] = {}
    for at_ns, usage, parts in changes:
        columns.setdefault(int(scale.x(at_ns)), []).append((usage, parts))
    drawn: tuple[int, Parts] | None = None
    for column, here in columns.items():
        for x, step in ((column, max(here, key=lambda step: step[0])), (column + 1, here[-1])):
            if step != drawn and x <= CHART_WIDTH and (x == column or x not in columns):
                yield x, *step
                drawn = step


def _areas(run: RunLog, steps: Sequence[Step], scale: Scale) -> Iterator[AreaShape]:
    """Stacked from the bottom: weights by rung, scratch, caches, what is transient, and the rest."""
    layers: list[tuple[str, list[int]]] = [
        (rung_style(run, rung), [parts.get("weights", {}).get(rung, 0) for _, _, parts in steps])
        for rung in reversed(run.rungs)
    ]
    layers += [
        (part, [sum(parts.get(part, {}).values()) for _, _, parts in steps])
        for part in ("scratch", "kv", "transient")
    ]
    known = [sum(values) for values in zip(*(sizes for _, sizes in layers), strict=True)]
    rest = [max(0, usage - part) for (_, usage, _), part in zip(steps, known, strict=True)]
    layers.append(("other", rest))
    floor = [0] * len(steps)
    for style, sizes in layers:
        ceiling = [low + size for low, size in zip(floor, sizes, strict=True)]
        if any(sizes):
            yield AreaShape(style, _band(steps, floor, ceiling, scale, scale.x(run.end_ns)))
        floor = ceiling


def _band(steps: Sequence[Step], floor: list[int], ceiling: list[int], scale: Scale, end_x: float) -> str:
    """One closed path for every period in which the band has a height."""
    edges = [*(x for x, _, _ in steps), max(end_x, steps[-1][0])]
    path: list[str] = []
    start = 0
    for i in range(len(steps) + 1):
        if i < len(steps) and ceiling[i] > floor[i]:
            continue
        if start < i:
            path.append(_closed(edges[start : i + 1], floor[start:i], ceiling[start:i], scale))
        start = i + 1
    return "".join(path)


def _closed(edges: Sequence[float], floor: Sequence[int], ceiling: Sequence[int], scale: Scale) -> str:
    over = "".join(f"V{_number(scale.y(c))}H{_number(x)}" for c, x in zip(ceiling, edges[1:], strict=True))
    under = "".join(
        f"V{_number(scale.y(f))}H{_number(x)}"
        for f, x in zip(reversed(floor), reversed(edges[:-1]), strict=True)
    )
    return f"M{_number(edges[0])} {_number(scale.y(floor[0]))}{over}{under}Z"


def _over(run: RunLog, scale: Scale) -> str:
    """Where usage was over the budget, exactly, and never too thin to be seen."""
    return "".join(
        _box(scale.x(level.start_ns), scale.x(level.end_ns), scale.y(level.usage), scale.y(level.budget))
        for level in run.levels
        if level.usage > level.budget
    )


def _line(points: Sequence[tuple[float, float]], end_x: float) -> str:
    """A step line through points, each level held until the next."""
    if not points:
        return ""
    path = [f"M{_number(points[0][0])} {_number(points[0][1])}"]
    for (_, before), (x, y) in pairwise(points):
        if y != before:
            path.append(f"H{_number(x)}V{_number(y)}")
    return "".join([*path, f"H{_number(end_x)}"])


# --- axes and marks -----------------------------------------------------------------------------------------


def _bytes_axis(scale: Scale) -> Iterator[Mark]:
    unit = 1
    while 4 * 1024 * unit <= scale.top_bytes:
        unit *= 1024
    step = _round_step(max(1, scale.top_bytes // unit), 4) * unit
    for size_bytes in range(0, scale.top_bytes, step):
        yield Mark(_number(100 * size_bytes / scale.top_bytes), formatting.size(size_bytes))


def _time_axis(scale: Scale) -> Iterator[Mark]:
    tick_ns = 1
    while 4 * 1000 * tick_ns <= scale.end_ns:
        tick_ns *= 1000
    step = _round_step(max(1, scale.end_ns // tick_ns), 6) * tick_ns
    for at_ns in range(0, scale.end_ns + 1, step):
        side = "start" if at_ns == 0 else "end" if at_ns > 0.97 * scale.end_ns else ""
        yield Mark(scale.left(at_ns), formatting.moment(at_ns), side)


def _round_step(whole: int, parts: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that cuts ``whole`` into at most ``parts`` steps."""
    power = 1
    while True:
        for step in _ROUND_STEPS:
            if whole <= step * power * parts:
                return step * power
        power *= 10


def _kills(run: RunLog, scale: Scale) -> Iterator[Mark]:
    for record in run.events("ProcessKilled"):
        yield Mark(scale.left(record["at_ns"]), f"killed by the OS at {formatting.moment(record['at_ns'])}")


_LEVERS = (
    ("defer", "Defer"),
    ("demote", "Demote"),
    ("park", "Park"),
    ("spill", "Spill"),
    ("shed", "Shed"),
    ("promote", "Promote"),
    ("unpark", "Unpark"),
)


def _levers(run: RunLog, scale: Scale) -> Iterator[Levers]:
    """One row for each lever that was used, in order of harm, then recovery, then kills."""
    for name, decision in _LEVERS:
        marks = tuple(_lever_marks(run.decisions(decision), scale))
        if marks:
            yield Levers(name, name, marks)
    kills = tuple(_kills(run, scale))
    if kills:
        yield Levers("kill", "kill", kills)


def _lever_marks(decisions: Iterable[Record], scale: Scale) -> Iterator[Mark]:
    """Decisions too close to be distinguished share a mark."""
    columns: dict[int, list[Record]] = {}
    for record in decisions:
        columns.setdefault(int(scale.x(record["at_ns"])) * MARK_COLUMNS // CHART_WIDTH, []).append(record)
    for together in columns.values():
        yield Mark(scale.left(together[0]["at_ns"]), "; ".join(map(_lever_label, together)))


def _lever_label(record: Record) -> str:
    words = [
        formatting.moment(record["at_ns"]),
        str(record["type"]).lower(),
        formatting.printable(record["tenant"]),
    ]
    if record.get("dest") is not None:
        source = f"{record['source']} → " if record.get("source") is not None else "→ "
        words.append(formatting.printable(source + record["dest"]))
    if record.get("route") is not None:
        words.append(f"({record['route']})")
    if record.get("keep_cells") is not None:
        words.append(f"to {formatting.count(record['keep_cells'], 'cell')}")
    return " ".join(words)


# --- tenants ------------------------------------------------------------------------------------------------


def _lanes(run: RunLog, scale: Scale) -> Iterator[Lane]:
    """The process while it loads weights, then every tenant."""
    doings: dict[str, list[TimelinePhase]] = {}
    for phase in phases(run):
        doings.setdefault(phase.tenant, []).append(phase)
    if loads := doings.get("", []):
        parts = ", ".join(
            f"{p.rung} from {formatting.moment(p.start_ns)} to {formatting.moment(p.end_ns)}" for p in loads
        )
        shapes = tuple(_phase_shapes(run, loads, scale))
        yield Lane("loading", "weights", shapes, (), formatting.printable(f"weights loaded: {parts}."))
    for tenant, attempts in run.answers.items():
        yield Lane(
            tenant=formatting.printable(tenant),
            kind=attempts[0].kind,
            shapes=(*_phase_shapes(run, doings.get(tenant, []), scale), *_ticks(run, attempts, scale)),
            marks=tuple(_endings(attempts, scale)),
            alternative=_lane_alternative(tenant, attempts),
        )


def _phase_shapes(run: RunLog, of_one: Iterable[TimelinePhase], scale: Scale) -> Iterator[AreaShape]:
    boxes: dict[str, list[str]] = {}
    for phase in of_one:
        top, bottom = (10, 14) if phase.doing in (Doing.WAITING, Doing.PARKED) else (3, 21)
        colour = f" {rung_style(run, phase.rung)}" if phase.rung in run.rungs else ""
        box = _box(scale.x(phase.start_ns), scale.x(phase.end_ns), top, bottom)
        boxes.setdefault(f"{phase.doing}{colour}", []).append(box)
    return (AreaShape(style, "".join(paths)) for style, paths in boxes.items())


def _ticks(run: RunLog, attempts: Sequence[Attempt], scale: Scale) -> Iterator[AreaShape]:
    """One tick a token, at most two a column, coloured by rung; those of lost attempts are pale."""
    ticks: dict[str, dict[str, None]] = {}
    for attempt in attempts:
        lost = " lost" if attempt.fate is Fate.LOST else ""
        for token in attempt.tokens:
            x = _number(round(2 * scale.x(token.at_ns)) / 2)
            ticks.setdefault(f"token {rung_style(run, token.rung)}{lost}", {})[x] = None
    for style, xs in ticks.items():
        yield AreaShape(style, "".join(f"M{x} 3V21" for x in xs))


def _endings(attempts: Sequence[Attempt], scale: Scale) -> Iterator[Mark]:
    for attempt in attempts:
        if attempt.ended_ns is not None:
            label = f"{formatting.moment(attempt.ended_ns)}: {ending(attempt)}"
            yield Mark(scale.left(attempt.ended_ns), label, attempt.fate.value)


def _lane_alternative(tenant: str, attempts: Sequence[Attempt]) -> str:
    parts = []
    for attempt in attempts:
        words = [f"attempt {attempt.number} arrived at {formatting.moment(attempt.arrived_ns)}"]
        words.append(formatting.count(len(attempt.tokens), "token"))
        words += [f"{s.source} to {s.dest} at {formatting.moment(s.at_ns)}" for s in attempt.switches]
        parts.append(", ".join([*words, ending(attempt)]))
    return formatting.printable(f"{tenant}: {'; '.join(parts)}.")


def _alternative(run: RunLog) -> str:
    """The memory chart in words."""
    changes = [(level.start_ns, level.budget) for level in run.levels]
    kept = [now for before, now in pairwise([(0, -1), *changes]) if now[1] != before[1]]
    parts = [
        f"{formatting.size(budget)} from {formatting.moment(at_ns)}"
        for at_ns, budget in kept[:BUDGET_STEPS_SHOWN]
    ]
    if len(kept) > BUDGET_STEPS_SHOWN:
        parts.append(f"and {formatting.count(len(kept) - BUDGET_STEPS_SHOWN, 'more change')}")
    peak = max(run.samples, key=lambda sample: sample.usage, default=None)
    if peak is None:
        return "No memory was recorded."
    highest = f"{formatting.size(peak.usage)} at {formatting.moment(peak.at_ns)}"
    words = f"Budget: {', '.join(parts)}. Highest usage: {highest}."
    kills = [formatting.moment(record["at_ns"]) for record in run.events("ProcessKilled")]
    return f"{words} Killed at {', '.join(kills)}." if kills else f"{words} Never killed."


def _box(x1: float, x2: float, top: float, bottom: float) -> str:
    """A rectangle, at least one unit wide."""
    x2 = max(x2, x1 + 1)
    return f"M{_number(x1)} {_number(top)}H{_number(x2)}V{_number(bottom)}H{_number(x1)}Z"


def _number(value: float) -> str:
    """A coordinate to a tenth of a unit."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")  # + 0.0 makes -0.0 positive
