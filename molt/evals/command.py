"""The commands of ``molt eval``: measure, print, save.

Every command checks its gates first; where one fails it prints them, saves nothing and exits with status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

import molt.kv  # noqa: F401  (before torch)
from molt.core.ladder import Route
from molt.errors import InputError
from molt.evals import setup as benches
from molt.evals import text_tables
from molt.evals.ablation import ablation
from molt.evals.drift import TOKENS_BETWEEN, drift, journeys, tokens_needed
from molt.evals.handoff import check_gates, handoff
from molt.evals.residuals import residuals
from molt.evals.result import Gate, Table, to_json, write
from molt.evals.setup import JudgedText, LoadedLadder, Settings
from molt.evals.switch_cost import CONTEXT_MAX, CONTEXT_MIN, REPEATS, switch_cost
from molt.kv.transplant import Islands

DEFAULTS = Settings()

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure how good and how dear the switches of a ladder are.",
)

Ladder = Annotated[str, typer.Argument(metavar="LADDER", help="A ladder's name or file.")]
From = Annotated[str | None, typer.Option("--from", help="Only routes from this rung.")]
To = Annotated[str | None, typer.Option("--to", help="Only routes to this rung.")]
Documents = Annotated[int, typer.Option(min=2, help="Most documents to judge on.")]
Context = Annotated[int, typer.Option(min=8, help="Tokens both rungs have read before the switch.")]
Continuation = Annotated[int, typer.Option(min=1, help="Tokens after the switch that are judged.")]
Seed = Annotated[int, typer.Option(min=0, help="Decides order of documents, noise, intervals.")]
First = Annotated[int, typer.Option(min=0, help="First tokens the destination reads itself.")]
Last = Annotated[int, typer.Option(min=0, help="Last tokens the destination reads itself.")]
Between = Annotated[int, typer.Option(min=0, help="Tokens read between two switches.")]
Longest = Annotated[
    int, typer.Option(min=CONTEXT_MIN, help="Longest context, where the rungs have positions for it.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Timings of each length.")]
TextFolder = Annotated[
    Path | None, typer.Option("--text", help="Folder of UTF-8 texts; default: held-out excerpts in Molt.")
]
Out = Annotated[Path | None, typer.Option(help="File to save to; default: runs/TABLE-LADDER.json.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON instead of tables.")]


def _on_documents(name: str, measure: Callable[..., Table], says: str, *, only_maps: bool = False) -> None:
    """Add the command of a table that judges caches on documents, route by route."""

    @app.command(name, help=says)
    def table_command(
        ladder: Ladder,
        source: From = None,
        dest: To = None,
        documents: Documents = DEFAULTS.documents,
        context: Context = DEFAULTS.context,
        continuation: Continuation = DEFAULTS.continuation,
        seed: Seed = DEFAULTS.seed,
        first: First = DEFAULTS.islands.first,
        last: Last = DEFAULTS.islands.last,
        folder: TextFolder = None,
        out: Out = None,
        as_json: AsJson = False,
    ) -> None:
        settings = Settings(documents, context, continuation, seed, Islands(first, last))
        path = _place(out, name, ladder)
        bench = benches.open_ladder(ladder)
        routes = benches.routes(bench.spec, source, dest, only_maps=only_maps)
        found, documents_from = benches.documents(folder)
        texts = benches.texts(bench.spec, found, settings)
        with _bars() as progress:
            gates = _passed(bench, routes, texts, progress)
            table = measure(
                bench,
                routes,
                texts,
                settings,
                command=_spoken(),
                documents_from=documents_from,
                gates=gates,
                progress=progress,
            )
        _finish(table, path, as_json)


_on_documents(
    "handoff",
    handoff,
    "Judge one switch on every route of LADDER, beside the controls it must beat and without each of its parts.",
)
_on_documents(
    "ablation",
    ablation,
    "Turn one dial of the switch at a time, on every route of LADDER that goes through a map.",
    only_maps=True,
)
_on_documents(
    "residuals",
    residuals,
    "Show layer by layer what the maps of LADDER leave unexplained, and what attention notices of it.",
    only_maps=True,
)


@app.command("drift")
def drift_command(
    ladder: Ladder,
    source: From = None,
    dest: To = None,
    documents: Documents = DEFAULTS.documents,
    context: Context = DEFAULTS.context,
    continuation: Continuation = DEFAULTS.continuation,
    seed: Seed = DEFAULTS.seed,
    first: First = DEFAULTS.islands.first,
    last: Last = DEFAULTS.islands.last,
    between: Between = TOKENS_BETWEEN,
    folder: TextFolder = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Switch there, back and there again, and judge every switch beside a single one at the same place."""
    settings = Settings(documents, context, continuation, seed, Islands(first, last))
    path = _place(out, "drift", ladder)
    bench = benches.open_ladder(ladder)
    paths = journeys(benches.routes(bench.spec, None, None), source, dest)
    if not paths:
        raise InputError(f"{bench.spec.path}: no two rungs here have a way there and back")
    legs = [bench.spec.ladder.route(*pair) for one in paths for pair in pairwise(one)]
    found, documents_from = benches.documents(folder)
    texts = benches.texts(bench.spec, found, tokens_needed(settings, between))
    with _bars() as progress:
        gates = _passed(bench, legs, texts, progress)
        table = drift(
            bench,
            paths,
            texts,
            settings,
            command=_spoken(),
            documents_from=documents_from,
            gates=gates,
            between=between,
            progress=progress,
        )
    _finish(table, path, as_json)


@app.command("switch-cost")
def switch_cost_command(
    ladder: Ladder,
    source: From = None,
    dest: To = None,
    longest: Longest = CONTEXT_MAX,
    repeats: Repeats = REPEATS,
    seed: Seed = DEFAULTS.seed,
    first: First = DEFAULTS.islands.first,
    last: Last = DEFAULTS.islands.last,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time carrying against reading again, by length of the context. Let the machine do nothing else meanwhile."""
    settings = Settings(seed=seed, islands=Islands(first, last))
    path = _place(out, "switch-cost", ladder)
    bench = benches.open_ladder(ladder)
    found = benches.routes(bench.spec, source, dest)
    ids = benches.texts(bench.spec, benches.documents(None)[0], settings)[0].known
    with _bars() as progress:
        table = switch_cost(
            bench,
            found,
            settings,
            ids,
            command=_spoken(),
            longest=longest,
            repeats=repeats,
            progress=progress,
        )
    _finish(table, path, as_json)


# -------------------------------------------------------------------------------------------------------------- detail


def _passed(
    bench: LoadedLadder, routes: Sequence[Route], texts: Sequence[JudgedText], progress: benches.Progress
) -> list[Gate]:
    """The gates, all passed; else they are printed and the command ends with status 1."""
    gates = check_gates(bench, routes, texts, progress)
    if not all(gate.passed for gate in gates):
        print(text_tables.text([text_tables.gate_grid(gates)]))
        print("molt: a gate failed, so nothing was measured and nothing saved", file=sys.stderr)
        raise typer.Exit(1)
    return gates


def _place(out: Path | None, name: str, ladder: str) -> Path:
    """Where a table will be saved; what cannot be written is refused before anything is measured."""
    path = out or Path("runs") / f"{name}-{Path(ladder).stem}.json"
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; name a file")
    if out is not None and not path.parent.is_dir():
        raise InputError(f"--out: {path.parent}: no such folder")
    return path


def _finish(table: Table, path: Path, as_json: bool) -> None:
    """Save, and print."""
    write(path, table)
    print(
        to_json(table)
        if as_json
        else text_tables.text(text_tables.grids(table)) + "\n\n" + text_tables.note(table)
    )
    print(f"saved: {path}", file=sys.stderr)


def _spoken() -> str:
    """The command as it was given, but for where it saves: that changes no figure."""
    words: list[str] = []
    skipped = False
    for word in sys.argv[1:]:
        if not skipped and word != "--out" and not word.startswith("--out="):
            words.append(word)
        skipped = word == "--out"
    return " ".join(("molt", *words))


@contextmanager
def _bars() -> Iterator[benches.Progress]:
    """Progress on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
