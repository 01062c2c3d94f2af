"""Fit the maps of a ladder: every directed pair of different weights, from one pass over the documents.

All models read the same windows of text; the sums over their contents hold what every pair needs, up and down.
Held-out documents are summed alike, so a residual costs no second pass. A killed fit goes on from its
checkpoint. Same documents, same options: same files.

    python -m molt.kv.fit LADDER [--documents FOLDER] [--out FOLDER]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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

import molt.kv  # noqa: F401  (before torch)
from molt.errors import InputError
from molt.kv import map_file
from molt.kv.brisk import brisk
from molt.kv.calibrate import Corpus, Document, collect, folder_corpus, windows
from molt.kv.checkpoint import Checkpoint
from molt.kv.corpus import default_corpus
from molt.kv.features import columns_per_layer, nearest_layers
from molt.kv.map_file import MapCard
from molt.kv.project import KVMap, LayerMap, Standard, plain, whole_numbers
from molt.kv.resident import Resident, as_resident
from molt.kv.ridge import solve, unexplained
from molt.kv.sums import BlockSums, Regression, products
from molt.models.ladder_file import LadderSpec, RungSpec, resolve
from molt.models.loader import load
from molt.models.weights_file import file_sha256, weights_sha256

ROWS = 120_000
HELDOUT_ROWS = 12_000
RIDGE = 1e-5
"""Penalty relative to the mean variance of the features."""

SPREAD_MIN = 1e-6


@dataclass(frozen=True, slots=True)
class Options:
    """How to fit.

    At most ``rows`` rows are read to fit on; each destination layer sees ``sources`` source layers (``None``:
    all); the destination runs its first ``native_layers`` layers itself; ``ridge`` is the relative penalty.
    ``whole``: maps in whole numbers, of which only the first layer sees the destination's input. ``bf16``:
    rungs read the documents with matrices in bfloat16.
    """

    rows: int = ROWS
    heldout_rows: int = HELDOUT_ROWS
    sources: int | None = None
    native_layers: int = 0
    ridge: float = RIDGE
    whole: bool = False
    bf16: bool = False


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
    """Fit and write the maps of a ladder into the folder ``out``; without a corpus, on the one of ``corpus``.

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
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    corpus = corpus or default_corpus(tokenizer)
    models = tuple(resident(spec, spec.rung(name), bf16=options.bf16) for name in names)
    firsts = accumulate((model.layout.layers + 1 for model in models[:-1]), initial=0)
    sides = [
        _Side(name, model, first, weights_sha256(spec.rung(name).folder))
        for name, model, first in zip(names, models, firsts, strict=True)
    ]
    tokenizer_sha256 = file_sha256(spec.tokenizer)
    plans = [(source, dest, _plan(source, dest, options)) for source, dest in permutations(sides, 2)]
    pairs = products(layer.regression for _, _, plan in plans for layer in plan)

    def summed(phase: str, documents: Sequence[Document], rows: int) -> tuple[BlockSums, Checkpoint]:
        key = _key(documents, sides, tokenizer_sha256, options)
        checkpoint = Checkpoint(out / f".{phase.replace(' ', '-')}.sums", key)
        texts = windows(documents, tokenizer)
        told = partial(progress, phase)
        return collect(models, options.native_layers, texts, rows, pairs, checkpoint, told), checkpoint

    fit, fit_checkpoint = summed("fit", corpus.fit, options.rows)
    heldout, heldout_checkpoint = summed("held out", corpus.heldout, options.heldout_rows)
    sums = _Sums(fit, heldout, tokenizer_sha256, corpus.sources)
    fitted = tuple(_fit_pair(source, dest, plan, sums, options, out) for source, dest, plan in plans)
    for checkpoint in (fit_checkpoint, heldout_checkpoint):
        checkpoint.drop()
    return fitted


def resident(spec: LadderSpec, rung: RungSpec, *, bf16: bool = False) -> Resident:
    """Load a rung as this package uses it; ``bf16`` as in ``Options``, whatever the rung's precision."""
    if bf16:
        decoder = brisk(load(replace(rung, precision="bf16", residency="anonymous")).decoder)
    else:
        decoder = load(rung).decoder
    return as_resident(decoder, spec, rung.name)


def _key(
    documents: Sequence[Document], sides: Sequence[_Side], tokenizer_sha256: str, options: Options
) -> str:
    """What must be the same for the sums of an unfinished fit to be taken up."""
    facts = [asdict(options), [side.sha256 for side in sides], tokenizer_sha256]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, text in documents:
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Side:
    """One model and where its blocks start in the sums."""

    name: str
    model: Resident
    first: int
    sha256: str

    @property
    def inputs(self) -> int:
        """The block of the input of the first mapped layer; those before it are its layers, in order."""
        return self.first + self.model.layout.layers


@dataclass(frozen=True, slots=True)
class _LayerPlan:
    """What one destination layer is fitted from."""

    sources: tuple[int, ...]
    regression: Regression
    whole: bool


@dataclass(frozen=True, slots=True)
class _Sums:
    """What all pairs are fitted from."""

    fit: BlockSums
    heldout: BlockSums
    tokenizer_sha256: str
    calibration: tuple[str, ...]


def _plan(source: _Side, dest: _Side, options: Options) -> tuple[_LayerPlan, ...]:
    layers = []
    for number in range(options.native_layers, dest.model.layout.layers):
        sources = _sources(source.model, dest.model, number, options)
        whole = options.whole and bool(sources)
        features = tuple(source.first + layer for layer in sources) + (() if whole else (dest.inputs,))
        layers.append(_LayerPlan(sources, Regression(features, dest.first + number), whole))
    return tuple(layers)


def _fit_pair(
    source: _Side, dest: _Side, plan: Sequence[_LayerPlan], sums: _Sums, options: Options, out: Path
) -> Fitted:
    standard = _standard(source, sums.fit) if options.whole else None
    fitted = [_fit_layer(source, layer, standard, sums, options.ridge) for layer in plan]
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
    kv_map = KVMap(
        source.model.layout, dest.model.layout, dest.model.hidden, options.native_layers, layers, standard
    )
    map_file.save(path, kv_map, card)
    return Fitted(path, map_file.read_card(path))


def _standard(source: _Side, fit: BlockSums) -> Standard:
    """Mean and deviation of every source column; of layers that no map reads, 0 and 1."""
    width = columns_per_layer(source.model.layout)
    centre = torch.zeros(source.model.layout.layers, width, dtype=torch.float64)
    spread = torch.ones_like(centre)
    for layer in range(source.model.layout.layers):
        block = source.first + layer
        if (block, block) in fit.pairs:
            sums = fit.dense((block,))
            mean = sums.total / sums.rows
            centre[layer] = sums.origin + mean
            variance = sums.gram.diagonal() / sums.rows - mean**2
            spread[layer] = variance.clamp_min(SPREAD_MIN**2).sqrt()
    return Standard(centre.flatten().float(), spread.flatten().float())


def _fit_layer(
    source: _Side, plan: _LayerPlan, standard: Standard | None, sums: _Sums, ridge: float
) -> tuple[LayerMap, float, float]:
    """The map of one destination layer, and what it leaves unexplained of K and of V."""
    blocks = (*plan.regression.features, plan.regression.target)
    fit, heldout = sums.fit.dense(blocks), sums.heldout.dense(blocks)
    outputs = len(sums.fit.origins[plan.regression.target])
    features, targets = torch.arange(len(fit.origin)).split((len(fit.origin) - outputs, outputs))
    weight, bias = solve(fit, features, targets, ridge)
    if plan.whole and standard is not None:
        layer = whole_numbers(plan.sources, weight, bias, standard, source.model.layout)
    else:
        layer = LayerMap(plan.sources, weight.half().float(), bias.float())
    weight, bias = plain(layer, standard, source.model.layout)  # what is stored is what is judged
    keys, values = (
        unexplained(heldout, features, targets[half], weight[:, half], bias[half])
        for half in (slice(0, outputs // 2), slice(outputs // 2, None))
    )
    return layer, keys, values


def _sources(source: Resident, dest: Resident, number: int, options: Options) -> tuple[int, ...]:
    """Source layers for a destination layer. The first mapped one needs none: it is linear in its own input."""
    if number == options.native_layers:
        return ()
    count = source.layout.layers if options.sources is None else options.sources
    return nearest_layers(number, dest.layout.layers, source.layout.layers, count)


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
        Path | None, typer.Option(help="Folder of UTF-8 texts; default: those of molt.kv.corpus.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the maps; default: maps/LADDER.")] = None,
    rows: Annotated[int, typer.Option(min=100, help="Most rows (tokens) to fit on.")] = ROWS,
    sources: Annotated[
        int | None, typer.Option(min=1, help="Source layers per destination layer; default: all.")
    ] = None,
    native_layers: Annotated[int, typer.Option(min=0, help="Layers that the destination runs itself.")] = 0,
    ridge: Annotated[float, typer.Option(min=0.0, help="Penalty, relative to the mean variance.")] = RIDGE,
    whole: Annotated[
        bool, typer.Option(help="Maps in whole numbers: half of the file and of the memory.")
    ] = False,
    bf16: Annotated[bool, typer.Option(help="Read the documents with matrices in bfloat16.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the maps' cards as JSON.")] = False,
) -> None:
    """Fit the maps between the rungs of LADDER and print what they leave unexplained."""
    if documents is not None and not documents.is_dir():
        raise InputError(f"{documents}: no such folder")
    corpus = None if documents is None else folder_corpus(documents)
    options = Options(
        rows=rows, sources=sources, native_layers=native_layers, ridge=ridge, whole=whole, bf16=bf16
    )
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
