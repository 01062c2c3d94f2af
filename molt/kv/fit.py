"""Fit the maps of a ladder: every directed pair of different weights, from one pass over the documents.

All models read the same windows of text; the sums of ``ridge`` over their contents side by side hold every
pair, up and down. Held-out documents are summed alike, so a residual costs no second pass. Same documents,
same options: same files.

    python -m molt.kv.fit LADDER [--documents FOLDER] [--out FOLDER]
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, permutations
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tabulate import tabulate
from tokenizers import Tokenizer
from torch import Tensor

import molt.kv  # noqa: F401  (before torch)
from molt.errors import InputError
from molt.kv import map_file
from molt.kv.calibrate import Corpus, collect, folder_corpus, windows
from molt.kv.features import columns_per_layer, layer_columns, nearest_layers
from molt.kv.map_file import MapCard, file_sha256
from molt.kv.project import KVMap, LayerMap
from molt.kv.resident import Resident
from molt.kv.ridge import Statistics, solve, unexplained
from molt.models.ladder_file import LadderSpec, RungSpec, resolve
from molt.models.loader import load
from molt.models.weights_file import weights_sha256

ROWS = 120_000
HELDOUT_ROWS = 12_000
RIDGE = 1e-5
"""Penalty relative to the mean variance of the features."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to fit.

    At most ``rows`` rows are read to fit on; each destination layer sees ``sources`` source layers (``None``:
    all); the destination runs its first ``native_layers`` layers itself; ``ridge`` is the relative penalty.
    """

    rows: int = ROWS
    heldout_rows: int = HELDOUT_ROWS
    sources: int | None = None
    native_layers: int = 0
    ridge: float = RIDGE


@dataclass(frozen=True, slots=True)
class Fitted:
    """A map that was written."""

    path: Path
    card: MapCard


def fit_ladder(
    ladder: str,
    out: Path,
    corpus: Corpus | None = None,
    options: Options | None = None,
    progress: Callable[[str, int], None] = lambda phase, rows: None,
) -> tuple[Fitted, ...]:
    """Fit and write the maps of a ladder into the folder ``out``; without a corpus, on pico's documents.

    ``progress`` is told the phase (``fit`` or ``held out``) and the rows read in it so far. Raises
    ``InputError`` for a ladder with nothing to fit or documents that are missing or too short.
    """
    options = options or Options()
    spec = resolve(ladder)
    names = tuple(dict.fromkeys(rung.weights for rung in spec.rungs))
    if len(names) < 2:
        raise InputError(f"{spec.path}: all rungs have the same weights; there is no map to fit")
    fewest = min(spec.ladder.rung(name).kv.layers for name in names)
    if options.native_layers >= fewest:
        raise InputError(
            f"{spec.path}: {options.native_layers} native layers, but a rung has only {fewest} in all"
        )
    corpus = corpus or pico_corpus()
    models = tuple(resident(spec, spec.rung(name)) for name in names)
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    fit, heldout = (
        collect(models, options.native_layers, windows(documents, tokenizer), rows, partial(progress, phase))
        for phase, documents, rows in (
            ("fit", corpus.fit, options.rows),
            ("held out", corpus.heldout, options.heldout_rows),
        )
    )
    firsts = accumulate((_cache_columns(model) + model.hidden for model in models[:-1]), initial=0)
    sides = [
        _Side(name, model, first, weights_sha256(spec.rung(name).folder))
        for name, model, first in zip(names, models, firsts, strict=True)
    ]
    sums = _Sums(fit, heldout, file_sha256(spec.tokenizer), corpus.sources)
    return tuple(_fit_pair(source, dest, sums, options, out) for source, dest in permutations(sides, 2))


def pico_corpus() -> Corpus:
    """Documents of Debian packages, shuffled by a fixed seed; see ``molt.models.pico.corpus``."""
    from molt.models.pico.corpus import documents

    try:
        fit, heldout = list(documents("fit")), list(documents("heldout"))
    except FileNotFoundError as error:
        raise InputError(f"{error} (or name a folder of texts with --documents)") from error
    for part in (fit, heldout):
        random.Random(0).shuffle(part)  # noqa: S311
    packages = {name.partition("/")[0] for name, _ in fit}
    return Corpus(tuple(fit), tuple(heldout), tuple(sorted(packages)))


def resident(spec: LadderSpec, rung: RungSpec) -> Resident:
    """Load a rung as this package uses it."""
    numbers = spec.ladder.rung(rung.name)
    return Resident(load(rung).decoder, numbers.kv, numbers.max_positions, spec.vocabulary)


@dataclass(frozen=True, slots=True)
class _Side:
    """One model and where its columns start in the sums."""

    name: str
    model: Resident
    first: int
    sha256: str

    def layers(self, layers: tuple[int, ...]) -> Tensor:
        """Columns of K and V of some layers."""
        return self.first + layer_columns(layers, self.model.layout)

    @property
    def inputs(self) -> Tensor:
        """Columns of the input of the first mapped layer."""
        return self.first + _cache_columns(self.model) + torch.arange(self.model.hidden)


@dataclass(frozen=True, slots=True)
class _Sums:
    """What all pairs are fitted from."""

    fit: Statistics
    heldout: Statistics
    tokenizer_sha256: str
    calibration: tuple[str, ...]


def _fit_pair(source: _Side, dest: _Side, sums: _Sums, options: Options, out: Path) -> Fitted:
    numbers = range(options.native_layers, dest.model.layout.layers)
    fitted = [_fit_layer(source, dest, number, sums, options) for number in numbers]
    layers = tuple(layer for layer, _, _ in fitted)
    card = MapCard(
        source=source.name,
        dest=dest.name,
        source_sha256=source.sha256,
        dest_sha256=dest.sha256,
        tokenizer_sha256=sums.tokenizer_sha256,
        hidden=dest.model.hidden,
        native_layers=options.native_layers,
        sources=tuple(layer.sources for layer in layers),
        ridge=options.ridge,
        rows=sums.fit.rows,
        features_per_row=max(len(layer.weight) for layer in layers) / sums.fit.rows,
        residual_k=tuple(k for _, k, _ in fitted),
        residual_v=tuple(v for _, _, v in fitted),
        heldout_rows=sums.heldout.rows,
        calibration=sums.calibration,
    )
    path = out / map_file.file_name(source.name, dest.name)
    kv_map = KVMap(source.model.layout, dest.model.layout, dest.model.hidden, options.native_layers, layers)
    map_file.save(path, kv_map, card)
    return Fitted(path, map_file.read_card(path))


def _fit_layer(
    source: _Side, dest: _Side, number: int, sums: _Sums, options: Options
) -> tuple[LayerMap, float, float]:
    """The map of one destination layer, and what it leaves unexplained of K and of V."""
    chosen = _sources(source.model, dest.model, number, options)
    features, targets = torch.cat((source.layers(chosen), dest.inputs)), dest.layers((number,))
    weight, bias = solve(sums.fit, features, targets, options.ridge)
    weight, bias = weight.half().float(), bias.float()  # what is stored is what is judged
    keys, values = (
        unexplained(sums.heldout, features, targets[half], weight[:, half], bias[half])
        for half in (slice(0, len(targets) // 2), slice(len(targets) // 2, None))
    )
    return LayerMap(chosen, weight, bias), keys, values


def _sources(source: Resident, dest: Resident, number: int, options: Options) -> tuple[int, ...]:
    """Source layers for a destination layer. The first mapped one needs none: it is linear in its own input."""
    if number == options.native_layers:
        return ()
    count = source.layout.layers if options.sources is None else options.sources
    return nearest_layers(number, dest.layout.layers, source.layout.layers, count)


def _cache_columns(model: Resident) -> int:
    return model.layout.layers * columns_per_layer(model.layout)


# ------------------------------------------------------------------------------------------------------ command


def table(fitted: Fitted) -> str:
    """What a map leaves unexplained on held-out documents, layer by layer."""
    card = fitted.card
    rows = [
        (number, _span(sources), f"{k:.3f}", f"{v:.3f}")
        for number, (sources, k, v) in enumerate(
            zip(card.sources, card.residual_k, card.residual_v, strict=True), start=card.native_layers
        )
    ]
    title = f"{card.source} -> {card.dest}: {card.rows} rows, p/n {card.features_per_row:.3f}, ridge {card.ridge:g}"
    grid = tabulate(rows, headers=("layer", "source layers", "K: 1 - R2", "V: 1 - R2"), disable_numparse=True)
    return f"{title}\n{grid}\n{fitted.path} ({fitted.path.stat().st_size / 1e6:.2f} MB)"


def _span(layers: tuple[int, ...]) -> str:
    return f"{layers[0]}-{layers[-1]}" if layers else "none: exact"


def command(
    ladder: Annotated[str, typer.Argument(metavar="LADDER", help="A ladder's name or file.")],
    documents: Annotated[
        Path | None, typer.Option(help="Folder of UTF-8 texts; default: the documents pico was trained on.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the maps; default: maps/LADDER.")] = None,
    rows: Annotated[int, typer.Option(min=100, help="Most rows (tokens) to fit on.")] = ROWS,
    sources: Annotated[
        int | None, typer.Option(min=1, help="Source layers per destination layer; default: all.")
    ] = None,
    native_layers: Annotated[int, typer.Option(min=0, help="Layers that the destination runs itself.")] = 0,
    ridge: Annotated[float, typer.Option(min=0.0, help="Penalty, relative to the mean variance.")] = RIDGE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the maps' cards as JSON.")] = False,
) -> None:
    """Fit the maps between the rungs of LADDER and print what they leave unexplained."""
    if documents is not None and not documents.is_dir():
        raise InputError(f"{documents}: no such folder")
    corpus = None if documents is None else folder_corpus(documents)
    options = Options(rows=rows, sources=sources, native_layers=native_layers, ridge=ridge)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        tasks = {
            "fit": bars.add_task("rows to fit on", total=rows),
            "held out": bars.add_task("rows held out", total=options.heldout_rows),
        }
        fitted = fit_ladder(
            ladder,
            out or Path("maps") / Path(ladder).stem,
            corpus,
            options,
            lambda phase, done: bars.update(tasks[phase], completed=done),
        )
    if as_json:
        print(json.dumps([asdict(one.card) for one in fitted], indent=1))
    else:
        print("\n\n".join(table(one) for one in fitted))
        print(
            f"in use once the ladder's file says so: maps: {{folder: {fitted[0].path.parent}}}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    from molt.cli import run_command

    run_command(command)
