"""A budget trace: how much memory the OS allows, from which moment on.

Rules of this module:

- A trace is a step function of time: its first step is at 0, times rise strictly, and a budget holds until
  the next step.
- A budget is a size, or a percentage of what a rung occupies while it is resident (weights and scratch, no
  cache), perhaps with a size added or taken away: ``40MiB``, ``150% of tier0``, ``100% of tier1 + 2MiB``. The
  second kind becomes bytes only when the ladder is known; fractions of a byte are dropped.
- Steps come from a scenario file or from a CSV file with the columns ``at,budget``; a step remembers where it
  stood, so that a message about it can still say so when it turns out to be wrong later.
- Further columns are what a recorder saw beside the budget (``realproc/kernel/record.py``), and are not read.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from molt import units
from molt.core.ladder import Ladder
from molt.errors import InputError
from molt.formats.yaml_file import nearest, read_text, show

COLUMNS = ("at", "budget")

T = TypeVar("T")

_SHARE = re.compile(r"(?P<share>\S+)\s+of\s+(?P<rung>\S+)(?:\s+(?P<sign>[+-])\s+(?P<offset>\S+))?")


@dataclass(frozen=True, slots=True)
class Budget:
    """``share_millionths`` of what ``rung`` occupies, plus ``offset_bytes``; without a rung, just those."""

    offset_bytes: int
    share_millionths: int = 0
    rung: str | None = None

    def on(self, ladder: Ladder) -> int:
        """Bytes on a ladder, perhaps not positive; ``KeyError`` if it has no such rung."""
        if self.rung is None:
            return self.offset_bytes
        return ladder.rung(self.rung).resident_bytes * self.share_millionths // 1_000_000 + self.offset_bytes


@dataclass(frozen=True, slots=True)
class BudgetStep:
    """From ``at_ns`` on, the budget is ``budget``. A message about it begins ``where`` + the field's name."""

    at_ns: int
    budget: Budget
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps in rising order of time, the first at 0. ``trace_of`` checks that."""

    steps: tuple[BudgetStep, ...]

    def on(self, ladder: Ladder) -> tuple[tuple[int, int], ...]:
        """Pairs of time (ns) and budget (bytes); ``InputError``: unknown rung, budget not positive."""
        return tuple((step.at_ns, _budget_bytes(step, ladder)) for step in self.steps)


def _budget_bytes(step: BudgetStep, ladder: Ladder) -> int:
    try:
        size_bytes = step.budget.on(ladder)
    except KeyError:
        rungs = [rung.name for rung in ladder.rungs]
        raise InputError(
            f"{step.where}budget: ladder {ladder.name} has no rung {show(step.budget.rung)}; "
            f"{nearest(str(step.budget.rung), rungs)}"
        ) from None
    if size_bytes <= 0:
        raise InputError(
            f"{step.where}budget: {show(format_budget(step.budget))} is {units.show_size(size_bytes)}; "
            "a budget is more than nothing"
        )
    return size_bytes


def trace_of(steps: Sequence[BudgetStep], where: str) -> Trace:
    """A trace of steps; ``InputError`` if they begin late, do not rise, or (at ``where``) are none."""
    if not steps:
        raise InputError(f"{where}no steps; a trace begins with a step at 0s")
    if steps[0].at_ns != 0:
        raise InputError(f"{steps[0].where}at: absent budget before {_at(steps[0])}; the first step is at 0s")
    for earlier, later in pairwise(steps):
        if later.at_ns <= earlier.at_ns:
            raise InputError(f"{later.where}at: {_at(later)} does not come after the step at {_at(earlier)}")
    return Trace(tuple(steps))


def _at(step: BudgetStep) -> str:
    return units.format_duration(step.at_ns)


# --- text of a budget ---


def parse_budget(value: object) -> Budget:
    """The budget that a text means; an ``InputError`` is like those of ``molt.units``."""
    if isinstance(value, str) and (match := _SHARE.fullmatch(value.strip())):
        offset_bytes = units.parse_size(match["offset"]) if match["offset"] else 0
        return Budget(
            offset_bytes=-offset_bytes if match["sign"] == "-" else offset_bytes,
            share_millionths=units.parse_percentage(match["share"]),
            rung=match["rung"],
        )
    if isinstance(value, str) and "%" in value:
        raise InputError("not a budget, write for example 150% of tier0 or 150% of tier0 - 8MiB")
    size_bytes = units.parse_size(value)
    if size_bytes == 0:
        raise InputError("a budget is more than nothing")
    return Budget(size_bytes)


def format_budget(budget: Budget) -> str:
    """The text of a budget; ``parse_budget`` gives it back."""
    if budget.rung is None:
        return units.format_size(budget.offset_bytes)
    share = f"{units.format_percentage(budget.share_millionths)} of {budget.rung}"
    if budget.offset_bytes == 0:
        return share
    return f"{share} {'-' if budget.offset_bytes < 0 else '+'} {units.format_size(abs(budget.offset_bytes))}"


# --- CSV ---


def read_csv(path: Path) -> Trace:
    """The trace in a CSV file whose header begins ``at,budget``; ``InputError`` names file, line and column."""
    return trace_of(list(_steps(path)), f"{path}: ")


def _steps(path: Path) -> Iterator[BudgetStep]:
    rows = _rows(path)
    number, header = next(rows, (1, []))
    if header[: len(COLUMNS)] != list(COLUMNS):
        raise InputError(
            f"{path}: line {number}: {show(','.join(header))}: the header is {','.join(COLUMNS)}"
        )
    for number, cells in rows:
        where = f"{path}: line {number}: "
        if len(cells) != len(header):
            raise InputError(f"{where}{len(cells)} cells instead of {','.join(header)}")
        at, budget, *_ = cells
        yield BudgetStep(
            at_ns=_cell(units.parse_duration, at, f"{where}at"),
            budget=_cell(parse_budget, budget, f"{where}budget"),
            where=where,
        )


def _cell(parse: Callable[[str], T], cell: str, where: str) -> T:
    try:
        return parse(cell)
    except InputError as error:
        raise InputError(f"{where}: {show(cell)}: {error}") from None


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row of a CSV file, without empty lines and blanks around cells."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}") from None
