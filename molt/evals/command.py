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
from molt.evals import setup, text_tables
from molt.evals.ablation import ablation
from molt.evals.drift import TOKENS_BETWEEN, drift, journeys, tokens_needed
from molt.evals.handoff import check_gates, handoff
from molt.evals.residuals import residuals
from molt.evals.result import Gate, Table, to_json, write
from molt.evals.setup import JudgedText, LoadedLadder, Settings, TableSetup
from molt.evals.switch_cost import CONTEXT_MAX, CONTEXT_TOKENS_MIN, REPEATS, switch_cost
from molt.formats.new_file import check_new_file, unused
from molt.kv.transplant import Islands

DEFAULTS = Settings()

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure quality and cost of the switches of a ladder.\n\nExample: molt eval handoff pico",
)

Ladder = Annotated[str, typer.Argument(metavar="LADDER", help="Name or file of the ladder.")]
From = Annotated[str | None, typer.Option("--from", help="Measure only routes from this rung.")]
To = Annotated[str | None, typer.Option("--to", help="Measure only routes to this rung.")]
Documents = Annotated[int, typer.Option(min=2, help="Documents to measure on, at most.")]
Context = Annotated[
    int,
    typer.Option(min=8, help="Tokens that both rungs have prefilled before the switch."),
]
Continuation = Annotated[int, typer.Option(min=1, help="Tokens after the switch to measure on.")]
Seed = Annotated[
    int, typer.Option(min=0, help="Random seed: order of documents, noise, confidence intervals.")
]
First = Annotated[
    int, typer.Option(min=0, help="First tokens of the context that the destination prefills itself.")
]
Last = Annotated[
    int, typer.Option(min=0, help="Last tokens of the context that the destination prefills itself.")
]
Between = Annotated[int, typer.Option(min=0, help="Tokens prefilled between two switches.")]
Longest = Annotated[
    int,
    typer.Option(
        min=CONTEXT_TOKENS_MIN, help="Longest context in tokens; less where the rungs have fewer positions."
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="Timings for each length.")]
TextFolder = Annotated[
    Path | None,
    typer.Option(
        "--text",
        help="Folder of UTF-8 texts; default: held-out excerpts that ship with Molt.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="New file for the table; default: runs/TABLE-LADDER.json.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def _on_documents(
    name: str,
    measure: Callable[[TableSetup, Sequence[Route]], Table],
    help_text: str,
    *,
    only_maps: bool = False,
) -> None:
    """Add the command of a table that judges caches on documents, route by route."""

    @app.command(name, help=help_text)
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
        loaded = setup.open_ladder(ladder)
        path = _place(out, name, ladder)
        routes = setup.routes(loaded.spec, source, dest, only_maps=only_maps)
        found, documents_from = setup.documents(folder)
        texts = setup.texts(loaded.spec, found, settings)
        with _bars() as progress:
            gates = _passed(loaded, routes, texts, progress)
            made_with = TableSetup(loaded, texts, settings, documents_from, _command_line(), gates, progress)
            table = measure(made_with, routes)
        _finish(table, path, as_json)


_on_documents(
    "handoff",
    handoff,
    "Measure the handoff quality of one switch on every route of LADDER, beside controls and with parts left out."
    "\n\nExample: molt eval handoff pico --documents 16",
)
_on_documents(
    "ablation",
    ablation,
    "Vary one setting of the transplant at a time, on every route of LADDER that goes through a map."
    "\n\nExample: molt eval ablation pico --from tier0 --to tier1",
    only_maps=True,
)
_on_documents(
    "residuals",
    residuals,
    "Show, layer by layer, the variance that the maps of LADDER do not explain, and its effect on attention."
    "\n\nExample: molt eval residuals pico --from tier0 --to tier1",
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
    """Switch to another rung, back and there again; compare every switch with a single switch at the same place.

    Example: molt eval drift pico --between 32
    """
    settings = Settings(documents, context, continuation, seed, Islands(first, last))
    loaded = setup.open_ladder(ladder)
    path = _place(out, "drift", ladder)
    paths = journeys(setup.routes(loaded.spec, None, None), source, dest)
    if not paths:
        raise InputError(f"{loaded.spec.path}: no two rungs have routes in both directions")
    legs = [loaded.spec.ladder.route(*pair) for one in paths for pair in pairwise(one)]
    found, documents_from = setup.documents(folder)
    texts = setup.texts(loaded.spec, found, tokens_needed(settings, between))
    with _bars() as progress:
        gates = _passed(loaded, legs, texts, progress)
        made_with = TableSetup(loaded, texts, settings, documents_from, _command_line(), gates, progress)
        table = drift(made_with, paths, between)
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
    """Time a transplant against prefilling again, by length of the context. The machine must be idle.

    Example: molt eval switch-cost pico --longest 1024
    """
    settings = Settings(seed=seed, islands=Islands(first, last))
    loaded = setup.open_ladder(ladder)
    path = _place(out, "switch-cost", ladder)
    found = setup.routes(loaded.spec, source, dest)
    ids = setup.texts(loaded.spec, setup.documents(None)[0], settings)[0].known
    with _bars() as progress:
        table = switch_cost(
            loaded,
            found,
            settings,
            ids,
            command=_command_line(),
            longest=longest,
            repeats=repeats,
            progress=progress,
        )
    _finish(table, path, as_json)


# -------------------------------------------------------------------------------------------------------------- detail


def _passed(
    loaded: LoadedLadder, routes: Sequence[Route], texts: Sequence[JudgedText], progress: setup.Progress
) -> list[Gate]:
    """The gates, all passed; else they are printed and the command ends with status 1."""
    gates = check_gates(loaded, routes, texts, progress)
    if not all(gate.passed for gate in gates):
        print(text_tables.text([text_tables.gate_grid(gates)]))
        print("molt: a gate failed, so nothing was measured and nothing saved", file=sys.stderr)
        raise typer.Exit(1)
    return gates


def _place(out: Path | None, name: str, ladder: str) -> Path:
    """The file that a table will be saved to; one that cannot be written is refused before anything is measured."""
    path = out or unused(Path("runs") / f"{name}-{Path(ladder).stem}.json")
    check_new_file(path, make_folder=out is None)
    return path


def _finish(table: Table, path: Path, as_json: bool) -> None:
    """Save, and print."""
    try:
        write(path, table)
    finally:
        shown = text_tables.text(text_tables.grids(table)) + "\n\n" + text_tables.note(table)
        print(to_json(table) if as_json else shown)
    print(f"saved: {path}", file=sys.stderr)


def _command_line() -> str:
    """The command as it was given, without ``--out``, which changes no figure."""
    words: list[str] = []
    skipped = False
    for word in sys.argv[1:]:
        if not skipped and word != "--out" and not word.startswith("--out="):
            words.append(word)
        skipped = word == "--out"
    return " ".join(("molt", *words))


@contextmanager
def _bars() -> Iterator[setup.Progress]:
    """Progress on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
