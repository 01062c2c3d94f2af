"""Publishes tables of ``molt eval``: one JSON becomes a page in ``reports/published``, and tables of other pages.

``python -m reports.eval_page FILE ...`` after ``molt eval TABLE LADDER --out FILE``. Nothing is typed: a page is made
of its JSON alone, and a table of the README or of ``docs``, between ``<!-- evaluated: NAME FROM TO -->`` and
``<!-- end -->``, of a published JSON (a test makes all of them again and compares).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from molt.evals import text_tables
from molt.evals.result import (
    HandoffTable,
    JudgedRow,
    Origin,
    RouteTable,
    SwitchCost,
    Table,
    joined,
    read,
    to_json,
)
from molt.program import run_words
from molt.units import ABSENT, show_percent
from reports.formatting import machine, printable
from reports.page import TEMPLATES
from reports.publish import OUT, PUBLISHED, run_command
from reports.shapes import file_name

TITLES: Mapping[str, str] = {
    "handoff": "Handoff quality",
    "ablation": "Handoff quality, one setting at a time",
    "drift": "Switch after switch",
    "residuals": "What the maps do not explain",
    "switch-cost": "What a switch costs",
}
HANDOFF_ROWS = (
    "own cache (floor)",
    "full mechanism",
    "after healing",
    "no islands: the map alone",
    "no map: islands alone",
    "last 32 tokens only, native",
    "another document's cache",
    "no history",
)


def name_of(table: Table, path: Path) -> str:
    """What its published files are called: by table and ladder, and by a further word that the name of ``path`` has.

    So tables that cannot be joined, as they are of other documents, stand side by side.
    """
    name = f"{table.table}-{table.origin.ladder}"
    return path.stem if path.stem.startswith(f"{name}-") else name


def page(table: Table, name: str) -> str:
    """The page of a table whose figures are in the file ``name``, as Markdown."""
    meaning, _, _ = text_tables.note(table).partition("\n\n")
    grids = [
        {"title": grid.title, "note": grid.note, "table": text_tables.markdown(grid)}
        for grid in text_tables.grids(table)
    ]
    rendered = template().render(
        title=f"{TITLES[table.table]}: {table.origin.ladder}",
        introduction=f"Made by `{table.origin.command}`; the figures are in [{name}.json]({name}.json).",
        grids=grids,
        meaning=meaning,
        facts=_facts(table),
    )
    return printable(rendered)


def template() -> Template:
    """The page of tables."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # noqa: S701 (Markdown; names of rungs and ladders are words)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("tables.md.j2")


def _facts(table: Table) -> dict[str, str]:
    origin: Origin = table.origin
    facts = {
        "command": f"`{origin.command}`",
        "commit": origin.commit,
        "machine": machine(origin.machine),
        "threads": str(origin.threads),
        "versions": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
        "seed": str(origin.seed),
        "islands": f"first {table.islands[0]}, last {table.islands[1]} tokens prefilled by the destination",
    }
    if not isinstance(table, SwitchCost):
        facts["documents"] = (
            f"{len(table.texts.documents)} ({table.texts.source}), sha256 {table.texts.sha256}"
        )
    return facts


def publish(paths: Sequence[Path], published: Path = PUBLISHED) -> list[str]:
    """Put the JSON and the page of every table into ``published``; returns their names.

    Tables of one kind and ladder that were made one route at a time become one.
    """
    tables: dict[str, list[Table]] = {}
    for path in paths:
        table = read(path)
        tables.setdefault(file_name(name_of(table, path), str(path)), []).append(table)
    published.mkdir(parents=True, exist_ok=True)
    for name, parts in tables.items():
        table = joined(parts)
        (published / f"{name}.json").write_text(to_json(table), encoding="utf-8", newline="\n")
        (published / f"{name}.md").write_text(page(table, name), encoding="utf-8", newline="\n")
    return list(tables)


def readme_table(table: HandoffTable, source: str, dest: str) -> str:
    """The main rows of one route as a Markdown table, and a line on what it was made from."""
    route = next(one for one in table.routes if (one.source, one.dest) == (source, dest))
    rows = [row for row in route.rows if row.name.startswith(HANDOFF_ROWS)]
    costs = ("FLOPs saved", *(_flops_saved(row, route) for row in rows))
    main = judged(f"cache given to {route.dest}", rows)
    headers, *body = ((*cells, cost) for cells, cost in zip((main.headers, *main.rows), costs, strict=True))
    grid = replace(main, headers=headers, rows=tuple(body))
    return f"{text_tables.markdown(grid)}\n\n{text_tables.setting(table.texts)}"


def judged(heading: str, rows: Sequence[JudgedRow]) -> text_tables.Grid:
    """The main columns of some rows; ``heading`` is that of their names."""
    headers = (heading, "KL, mean", "KL, p95", "top-1", "recovered context")
    return text_tables.Grid("", "", headers, tuple(map(_main_columns, rows)))


def _main_columns(row: JudgedRow) -> tuple[str, ...]:
    of = row.columns
    return (
        row.name,
        text_tables.nats(of["kl"].mean),
        text_tables.nats(of["kl"].tail),
        f"{of['top1'].mean:.2f}",
        show_percent(of["recovered"].mean),
    )


def _flops_saved(row: JudgedRow, route: RouteTable) -> str:
    return ABSENT if row.cost is None else text_tables.flops_saved(row.cost.flops, route.reread_flops)


def with_tables(text: str, published: Path = PUBLISHED) -> str:
    """A page with every table of ``molt eval`` between markers made anew."""

    def fill(match: re.Match[str]) -> str:
        name, source, dest = match[1], match[2], match[3]
        table = read(published / f"{name}.json")
        assert isinstance(table, HandoffTable), f"{name} is not a handoff table"
        made = readme_table(table, source, dest)
        return f"<!-- evaluated: {name} {source} {dest} -->\n{made}\n<!-- end -->"

    pattern = r"<!-- evaluated: (\S+) (\S+) (\S+) -->\n.*?<!-- end -->"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


_USAGE = f"python -m reports.eval_page FILE ... {OUT}"


def main(arguments: list[str]) -> int:
    """Publish the files given."""
    return run_command(_USAGE, arguments, publish, with_tables)


if __name__ == "__main__":
    run_words(main, _USAGE)
