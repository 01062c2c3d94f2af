"""What ``molt eval`` writes: one JSON file a table, and its strict schema.

Units are in the names: nats, ``_ms``, ``_bytes``; FLOPs are two a multiply-add. Nothing here needs torch, so
pages are made from the files alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from molt.errors import InputError
from molt.formats.new_file import save_new

DIGITS = 6
"""Significant digits that are kept: far more than any figure is certain to."""

FIGURE_MAX = 1e100
JUDGED_COLUMNS = (
    "kl",
    "kl_first",
    "jsd",
    "jsd_first",
    "jsd_to_floor",
    "top1",
    "nll",
    "recovered",
    "recovered_greedy",
)
MARKED_COLUMNS = ("kl", "nll", "recovered")
"""Columns that every judged row has, and those that it has once for every mark; ``molt.evals.scoring`` defines them."""


class ResultModel(BaseModel):
    """No unknown keys, no missing keys, no conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Figure(ResultModel):
    """One figure over documents.

    ``tail`` is the bad end: the 95th percentile, or the 5th of a figure where more is better. ``low`` and
    ``high`` are a 95 % interval of ``mean``, from resampling documents; nothing for a single one.
    """

    n: int
    mean: float
    median: float
    tail: float
    low: float | None
    high: float | None


class Gate(ResultModel):
    """Something that must hold on a rung before any figure counts: ``value`` must not exceed ``limit``."""

    name: str
    rung: str
    value: float
    limit: float
    detail: str

    @property
    def passed(self) -> bool:
        """Whether it holds; a value that is no number fails."""
        return self.value <= self.limit


def _without_folders(command: str) -> str:
    return re.sub(r"(?<![^\s=])/(?:\S*/)?", "", command)


class Origin(ResultModel):
    """Where a file comes from. Of an absolute path in its ``command`` the name is left: folders are a machine's own."""

    command: Annotated[str, AfterValidator(_without_folders)]
    ladder: str
    seed: int
    commit: str
    machine: dict[str, str | int | None]
    threads: int
    versions: dict[str, str]


class Texts(ResultModel):
    """The documents that were judged on, and how: ``context`` tokens, a switch, ``continuation`` tokens."""

    documents: list[str]
    source: str
    sha256: str
    context: int
    continuation: int
    marks: list[int]


class MapFacts(ResultModel):
    """The map of a route as its file says: ``residual_k`` and ``residual_v`` are 1 - R2 on held-out documents.

    ``features_per_row`` is p/n of the layer with most features.
    """

    bytes: int
    rows: int
    features_per_row: float
    residual_k: list[float]
    residual_v: list[float]
    calibration: list[str]


class Cost(ResultModel):
    """What making a cache takes: wall time with weights and map in memory, and FLOPs counted by hand."""

    stall_ms: Figure
    flops: int
    map_bytes: int


class JudgedRow(ResultModel):
    """One kind of cache, judged: ``columns`` as defined in ``molt.evals.scoring``.

    ``by_document`` has the mean KL of every document, in order. ``cost`` is ``None`` for
    caches that no switch would make.
    """

    name: str
    kind: Literal["reference", "control", "mechanism", "without"]
    columns: dict[str, Figure]
    by_document: list[float]
    cost: Cost | None


class LeftOut(ResultModel):
    """A row that could not be made here, and why."""

    row: str
    why: str


class RouteTable(ResultModel):
    """All rows of one route; ``judged_against`` says whose predictions KL and top-1 are measured from."""

    source: str
    dest: str
    route: Literal["carry", "project"]
    judged_against: str
    reread_flops: int
    map: MapFacts | None
    rows: list[JudgedRow]
    left_out: list[LeftOut]


class HandoffTable(ResultModel):
    """The table of ``molt eval handoff``; ``islands``: first and last tokens that the destination prefills itself."""

    table: Literal["handoff"]
    origin: Origin
    texts: Texts
    islands: list[int]
    gates: list[Gate]
    routes: list[RouteTable]


class Ablation(ResultModel):
    """The table of ``molt eval ablation``: one setting at a time, the others as they ship."""

    table: Literal["ablation"]
    origin: Origin
    texts: Texts
    islands: list[int]
    gates: list[Gate]
    routes: list[RouteTable]


class Journey(ResultModel):
    """Switch after switch along one path; every row is one switch, judged right after it."""

    path: list[str]
    rows: list[JudgedRow]


class Drift(ResultModel):
    """The table of ``molt eval drift``: ``tokens_between`` two switches, the rows beside single switches."""

    table: Literal["drift"]
    origin: Origin
    texts: Texts
    islands: list[int]
    tokens_between: int
    gates: list[Gate]
    paths: list[Journey]


class LengthCost(ResultModel):
    """One context length: medians of ``n`` timings each, rungs and files warm.

    ``carry_ms`` with the map in memory; ``map_load_ms`` is what bringing it in adds. ``map_ms`` and ``map_flops`` are
    those of a switch without islands; nothing on a route without a map, and where that was not timed.
    """

    context: int
    n: int
    carry_ms: float
    map_ms: float | None
    map_load_ms: float
    reread_ms: float
    carry_flops: int
    map_flops: int | None
    reread_flops: int


class Times(ResultModel):
    """Wall time of one thing done again and again; ``p95_ms`` is nearest-rank."""

    median_ms: float
    p95_ms: float
    longest_ms: float


class HealingPace(ResultModel):
    """Decode steps that heal ``tokens`` of a transplanted cache of ``context`` tokens, and bare ones, ``n`` of each in
    turn, evenly from the first cells to the last."""

    context: int
    tokens: int
    n: int
    bare: Times
    healing: Times


class RouteCost(ResultModel):
    """Taking the cache along against prefilling again, on one route.

    ``crossover`` is the shortest measured context from which on taking the cache along is faster, with the map in
    memory and with loading it; nothing where prefilling is faster at every length. ``healing`` by falling numbers of
    tokens, empty where a cache needs none, and where it was not timed.
    """

    source: str
    dest: str
    route: Literal["carry", "project"]
    map_bytes: int
    steps: list[LengthCost]
    crossover: int | None
    crossover_with_load: int | None
    healing: list[HealingPace]


class SwitchCost(ResultModel):
    """The table of ``molt eval switch-cost``."""

    table: Literal["switch-cost"]
    origin: Origin
    islands: list[int]
    routes: list[RouteCost]


class LayerResidual(ResultModel):
    """One layer of the destination.

    ``residual_*`` are 1 - R2 of the mapped cells here, ``card_*`` what the map's file says (nothing for a layer
    that the destination runs itself); ``attention_cosine`` compares what the heads read, ``routing_tv`` is the total
    variation between the attention weights, ``routing_top1`` the share of queries with the same most attended
    cell. All over the queries of the first tokens after the switch.
    """

    layer: int
    residual_k: Figure
    residual_v: Figure
    card_k: float | None
    card_v: float | None
    attention_cosine: Figure
    routing_tv: Figure
    routing_top1: Figure


class RouteResiduals(ResultModel):
    """Layer by layer, what a map leaves unexplained, and what of it attention notices."""

    source: str
    dest: str
    features_per_row: float
    rows: int
    layers: list[LayerResidual]


class Residuals(ResultModel):
    """The table of ``molt eval residuals``."""

    table: Literal["residuals"]
    origin: Origin
    texts: Texts
    islands: list[int]
    gates: list[Gate]
    routes: list[RouteResiduals]


Table = HandoffTable | Ablation | Drift | SwitchCost | Residuals
_TABLE: TypeAdapter[Table] = TypeAdapter(Annotated[Table, Field(discriminator="table")])


def joined(tables: Sequence[Table]) -> Table:
    """Tables that were made one route at a time as one, all else being equal; raises ``InputError`` if it is not."""
    first = tables[0]
    if len(tables) == 1:
        return first
    content = first.model_dump()
    listed = "paths" if isinstance(first, Drift) else "routes"
    commands = [first.origin.command]
    for other in tables[1:]:
        more = other.model_dump()
        for found in (content, more):
            found["origin"]["command"] = ""
        differing = [key for key in content if key not in (listed, "gates") and content[key] != more.get(key)]
        if differing:
            raise InputError(f"tables of {first.origin.ladder} differ in {differing[0]} and cannot be joined")
        content[listed] += more[listed]
        content["gates"] = content.get("gates", []) + [
            gate for gate in more.get("gates", []) if gate not in content["gates"]
        ]
        commands.append(other.origin.command)
    if isinstance(first, SwitchCost):
        del content["gates"]
    content["origin"]["command"] = "; ".join(commands)
    return type(first).model_validate(content)


def to_json(table: Table) -> str:
    """The text of a file: floats with ``DIGITS`` digits, one line an entry of a list."""

    def rounded(value: object) -> object:
        match value:
            case bool() | int() | str() | None:
                return value
            case float():
                return float(f"{value:.{DIGITS}g}")
            case dict():
                return {key: rounded(inner) for key, inner in value.items()}
            case list() | tuple():
                return [rounded(inner) for inner in value]
        raise AssertionError(f"not JSON: {value!r}")

    return json.dumps(rounded(table.model_dump()), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(path: Path, table: Table) -> None:
    """Write a table into a new file; see ``save_new`` for what happens where that cannot be."""
    save_new(path, to_json(table))


def read(path: Path) -> Table:
    """A validated table. Raises ``InputError`` for anything else."""
    try:
        table = _TABLE.validate_json(path.read_bytes())
        _check_figures(table)
        return table
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: not a table of molt eval: {place}: {first['msg']}") from error
    except _FigureError as error:
        raise InputError(f"{path}: not a table of molt eval: {error}") from None


class _FigureError(ValueError):
    """A table of the right types that cannot be shown."""


def _check_figures(table: Table) -> None:
    """Every number is finite and of a size that can be shown; every row has the columns of its table."""
    for number in _numbers(table.model_dump()):
        if not abs(number) <= FIGURE_MAX:
            raise _FigureError(f"{number!r:.40} is no figure")
    if len(table.islands) != 2:
        raise _FigureError(f"islands: {len(table.islands)} numbers instead of two")
    if isinstance(table, SwitchCost | Residuals):
        return
    parts = table.paths if isinstance(table, Drift) else table.routes
    needed = {
        *JUDGED_COLUMNS,
        *(f"{figure}@{mark}" for figure in MARKED_COLUMNS for mark in table.texts.marks),
    }
    for row in (row for part in parts for row in part.rows):
        if missing := sorted(needed - row.columns.keys()):
            raise _FigureError(f"row {row.name!r}: no column {missing[0]}")


def _numbers(value: object) -> Iterator[float]:
    match value:
        case bool():
            return
        case int() | float():
            yield value
        case dict():
            for inner in value.values():
                yield from _numbers(inner)
        case list() | tuple():
            for inner in value:
                yield from _numbers(inner)
