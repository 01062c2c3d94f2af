"""Fit the maps of a ladder: every directed pair of different weights, from one pass over the documents.

All models prefill the same windows of text; the sums over their cells hold what every pair needs, up and down.
The finished maps are then applied to held-out documents, as a switch applies them. A killed fit goes on from
its checkpoint. Same documents, same options: same files.

    python -m molt.fitting.fit LADDER [--documents FOLDER] [--out FOLDER]
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
from torch import Tensor

import molt.kv  # noqa: F401  (before torch)
from molt.errors import InputError
from molt.fitting.bf16_decoder import bf16_decoder
from molt.fitting.checkpoint import Checkpoint
from molt.fitting.collect import (
    WINDOW_TOKENS,
    WINDOWS_PER_DOCUMENT_MAX,
    Corpus,
    collect,
    folder_corpus,
    windows,
)
from molt.fitting.documents import default_corpus
from molt.fitting.holdout import Holdout, hold_out
from molt.fitting.ridge import solve, solve_reduced
from molt.fitting.sums import BlockSums, Regression, products
from molt.formats.new_file import check_folder
from molt.formats.weights_file import file_sha256, weights_sha256
from molt.kv import map_file
from molt.kv.features import nearest_layers
from molt.kv.loaded_rung import LoadedRung, as_loaded_rung
from molt.kv.map_file import MapCard
from molt.kv.project import Code, KVMap, LayerMap, whole_numbers
from molt.models.ladder_file import LadderSpec, RungSpec, resolve
from molt.models.loader import load
from molt.models.tokenizer_file import read_tokenizer
from molt.program import run_command

ROWS = 120_000
HELDOUT_ROWS = 12_000
RIDGE = 1e-5
"""Penalty relative to the mean variance of the features."""

FIRST_RIDGE = 1e-6
"""The same for the first mapped layer, which is linear in its own input: there is nothing to hold back."""

SHARPEN = 0.25
"""How much further outputs are from their means, over the share that their layer leaves unexplained
(docs/lab-notes/kv-maps.md)."""

SPREAD_MIN = 1e-6


@dataclass(frozen=True, slots=True)
class Options:
    """How to fit.

    At most ``rows`` rows are collected to fit on, the first ``windows`` windows of ``window`` tokens of a document;
    each destination layer sees ``sources`` source layers (``None``: all); the destination runs its first
    ``native_layers`` layers itself; ``ridge`` is the relative penalty. With a ``rank`` the maps are shared ones:
    all layers see that many numbers made of all source layers and the input. ``bf16``: rungs prefill the documents
    with matrices in bfloat16. ``sharpen`` is the strength of ``Holdout.sharpen``.
    """

    rows: int = ROWS
    heldout_rows: int = HELDOUT_ROWS
    sources: int | None = None
    native_layers: int = 0
    ridge: float = RIDGE
    rank: int | None = None
    window: int = WINDOW_TOKENS
    windows: int = WINDOWS_PER_DOCUMENT_MAX
    bf16: bool = False
    sharpen: float = SHARPEN


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
    """Fit and write the maps of a ladder into the folder ``out``; without a corpus, on ``documents.default_corpus``.

    ``progress`` is called with the phase (``fit`` or ``held out``) and the rows in it so far. Raises
    ``InputError`` for a ladder with nothing to fit or documents that are missing or too short.
    """
    options = options or Options()
    spec = resolve(ladder)
    names = tuple(dict.fromkeys(rung.weights for rung in spec.rungs))
    if len(names) < 2:
        raise InputError(f"{spec.path}: all rungs have the same weights; there is no map to fit")
    positions = min(spec.ladder.rung(name).max_positions for name in names)
    if options.window > positions:
        if options.window != WINDOW_TOKENS:
            raise InputError(
                f"{spec.path}: windows of {options.window} tokens, but a rung has {positions} positions"
            )
        options = replace(options, window=positions)
    fewest = min(spec.ladder.rung(name).kv.layers for name in names)
    if options.native_layers >= fewest:
        raise InputError(
            f"{spec.path}: {options.native_layers} native layers, but a rung has only {fewest} in all"
        )
    tokenizer = read_tokenizer(spec.tokenizer)
    corpus = corpus or default_corpus(tokenizer)
    models = tuple(load_for_fit(spec, spec.rung(name), bf16=options.bf16) for name in names)
    firsts = accumulate((model.layout.layers + 1 for model in models[:-1]), initial=0)
    sides = [
        _Side(name, model, first, weights_sha256(spec.rung(name).folder))
        for name, model, first in zip(names, models, firsts, strict=True)
    ]
    tokenizer_sha256 = file_sha256(spec.tokenizer)
    plans = [_Plan(source, dest, options) for source, dest in permutations(sides, 2)]
    pairs = products(regression for plan in plans for regression in plan.regressions)
    checkpoint = Checkpoint(out / ".fit.sums", _key(corpus, sides, tokenizer_sha256, options))
    fit_texts, heldout_texts = (
        windows(part, tokenizer, options.window, options.windows) for part in (corpus.fit, corpus.heldout)
    )
    sums = collect(
        models, options.native_layers, fit_texts, options.rows, pairs, checkpoint, partial(progress, "fit")
    )
    held = [
        Holdout(_fit_pair(plan, sums), plan.source.first, plan.dest.first, plan.dest.inputs) for plan in plans
    ]
    hold_out(models, held, heldout_texts, options.heldout_rows, partial(progress, "held out"))
    for one in held:
        one.sharpen(options.sharpen)
    fitted = tuple(
        _write(plan, one, sums.rows, tokenizer_sha256, corpus.sources, out)
        for plan, one in zip(plans, held, strict=True)
    )
    checkpoint.drop()
    return fitted


def load_for_fit(spec: LadderSpec, rung: RungSpec, *, bf16: bool = False) -> LoadedRung:
    """Load a rung to fit with; ``bf16`` as in ``Options``, whatever the rung's precision."""
    if bf16:
        decoder = bf16_decoder(load(replace(rung, precision="bf16", residency="anonymous")).decoder)
    else:
        decoder = load(rung).decoder
    return as_loaded_rung(decoder, spec, rung.name)


def _key(corpus: Corpus, sides: Sequence[_Side], tokenizer_sha256: str, options: Options) -> str:
    """What must be the same for the sums of an unfinished fit to be taken up."""
    facts = [asdict(options), [side.sha256 for side in sides], tokenizer_sha256]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, text in corpus.fit:
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Side:
    """One model and where its blocks start in the sums."""

    name: str
    model: LoadedRung
    first: int
    sha256: str

    @property
    def inputs(self) -> int:
        """The block of the input of the first mapped layer; those before it are its layers, in order."""
        return self.first + self.model.layout.layers


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the layers of one map are fitted from."""

    source: _Side
    dest: _Side
    options: Options

    @property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Source layers of every mapped layer. The first needs none: it is linear in its own input."""
        source, dest = self.source.model.layout.layers, self.dest.model.layout.layers
        seen = self.options.sources
        count = source if seen is None or self.options.rank is not None else seen
        later = range(self.options.native_layers + 1, dest)
        return ((), *(nearest_layers(number, dest, source, count) for number in later))

    @property
    def regressions(self) -> tuple[Regression, ...]:
        """Blocks that every mapped layer is fitted from: its source layers, and the input."""
        first = self.dest.first + self.options.native_layers
        return tuple(
            Regression((*(self.source.first + layer for layer in sources), self.dest.inputs), first + number)
            for number, sources in enumerate(self.sources)
        )


def _fit_pair(plan: _Plan, sums: BlockSums) -> KVMap:
    """The map of one directed pair."""
    options, dest = plan.options, plan.dest.model
    first, *later = plan.regressions
    layers = [_fit_layer((), first, sums, FIRST_RIDGE)]
    code = None
    if options.rank is None:
        layers += [
            _fit_layer(sources, regression, sums, options.ridge)
            for sources, regression in zip(plan.sources[1:], later, strict=True)
        ]
    elif later:
        code, shared = _fit_shared(later, plan.sources[-1], sums, options)
        layers += shared
    return KVMap(
        plan.source.model.layout, dest.layout, dest.hidden, options.native_layers, tuple(layers), code
    )


def _fit_layer(sources: tuple[int, ...], regression: Regression, sums: BlockSums, ridge: float) -> LayerMap:
    features, target = regression.features, (regression.target,)
    weight = solve(sums.covariance(features, features), sums.covariance(features, target), ridge)
    bias = sums.mean(target) - sums.mean(features) @ weight
    return LayerMap(sources, weight.half().float(), bias.float())


def _fit_shared(
    regressions: Sequence[Regression], sources: tuple[int, ...], sums: BlockSums, options: Options
) -> tuple[Code, list[LayerMap]]:
    """A code and what all layers make of it, fitted together; K and V of every layer are equally important."""
    assert options.rank is not None
    features, targets = regressions[0].features, tuple(one.target for one in regressions)
    spread = torch.cat([sums.variance(block) for block in features]).sqrt_().clamp_min_(SPREAD_MIN)
    xx, xy = sums.covariance(features, features), sums.covariance(features, targets)
    xx.div_(spread).div_(spread[:, None])
    xy.div_(spread[:, None])
    importance = torch.cat([_importance(sums.variance(block)) for block in targets])
    encoder, decoder = solve_reduced(xx, xy, importance, options.rank, options.ridge)
    code = Code(sums.mean(features).float(), spread.float(), *whole_numbers(encoder))
    bias = sums.mean(targets).float()
    layers = []
    for part, offset in zip(decoder.chunk(len(targets), dim=1), bias.chunk(len(targets)), strict=True):
        weight, scale = whole_numbers(part)
        layers.append(LayerMap(sources, weight, offset.clone(), scale))
    return code, layers


def _importance(variance: Tensor) -> Tensor:
    """So that K and V of a layer, halves of its columns, both have a variance of 1 in all."""
    halves = variance.chunk(2)
    return torch.cat(
        [torch.full_like(half, float(half.sum().clamp_min(SPREAD_MIN**2).rsqrt())) for half in halves]
    )


def _write(
    plan: _Plan, held: Holdout, rows: int, tokenizer_sha256: str, calibration: tuple[str, ...], out: Path
) -> Fitted:
    kv_map, (residual_k, residual_v) = held.kv_map, held.unexplained()
    features = [len(layer.weight) for layer in kv_map.layers]
    card = MapCard(
        source=plan.source.name,
        dest=plan.dest.name,
        source_sha256=plan.source.sha256,
        dest_sha256=plan.dest.sha256,
        tokenizer_sha256=tokenizer_sha256,
        hidden=kv_map.hidden,
        native_layers=kv_map.native_layers,
        sources=plan.sources,
        ridge=plan.options.ridge,
        rows=rows,
        features_per_row=max(features if kv_map.code is None else (len(kv_map.code.weight),)) / rows,
        residual_k=residual_k,
        residual_v=residual_v,
        heldout_rows=held.rows,
        calibration=calibration,
        sharpened=plan.options.sharpen,
    )
    path = out / map_file.file_name(card.source, card.dest)
    map_file.save(path, kv_map, card)
    return Fitted(path, map_file.read_card(path))


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
    ladder: Annotated[str, typer.Argument(metavar="LADDER", help="Name or file of the ladder.")],
    documents: Annotated[
        Path | None,
        typer.Option(help="Folder of UTF-8 texts; default: those of molt.fitting.documents."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write the maps to; default: maps/LADDER.")
    ] = None,
    rows: Annotated[int, typer.Option(min=100, help="Rows (tokens) to fit on, at most.")] = ROWS,
    sources: Annotated[
        int | None, typer.Option(min=1, help="Source layers per destination layer; default: all.")
    ] = None,
    native_layers: Annotated[
        int,
        typer.Option(min=0, help="First layers that the destination computes itself, unmapped."),
    ] = 0,
    ridge: Annotated[
        float, typer.Option(min=0.0, help="Ridge penalty, relative to the mean variance.")
    ] = RIDGE,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Shared maps: one code of this many numbers a token, from and for all layers.",
        ),
    ] = None,
    window: Annotated[
        int, typer.Option(min=32, help="Length of a window of text in tokens.")
    ] = WINDOW_TOKENS,
    windows_each: Annotated[
        int, typer.Option("--windows", min=1, help="Windows of one document, at most.")
    ] = WINDOWS_PER_DOCUMENT_MAX,
    bf16: Annotated[bool, typer.Option(help="Prefill the documents with matrices in bfloat16.")] = False,
    sharpen: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Move outputs away from their means, by this much of the unexplained share.",
        ),
    ] = SHARPEN,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cards of the maps as JSON.")] = False,
) -> None:
    """Fit the maps between the rungs of LADDER, write them, and print the share of variance that they do not explain.

    Example: molt fit pico --documents my-texts --out maps/pico
    """
    if documents is not None and not documents.is_dir():
        raise InputError(f"{documents}: no such folder")
    corpus = None if documents is None else folder_corpus(documents)
    if rank is not None and sources is not None:
        raise InputError("--sources: a shared map (--rank) sees all source layers")
    resolve(ladder)
    folder = out or Path("maps") / Path(ladder).stem
    check_folder(folder)
    options = Options(
        rows=rows,
        sources=sources,
        native_layers=native_layers,
        ridge=ridge,
        rank=rank,
        window=window,
        windows=windows_each,
        bf16=bf16,
        sharpen=sharpen,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        tasks = {
            "fit": bars.add_task("rows to fit on", total=rows),
            "held out": bars.add_task("rows held out", total=options.heldout_rows),
        }
        fitted = fit_ladder(
            ladder,
            folder,
            corpus,
            options,
            lambda phase, done: bars.update(tasks[phase], completed=done),
        )
    if as_json:
        print(json.dumps([asdict(one.card) for one in fitted], indent=1))
    else:
        print("\n\n".join(table(one) for one in fitted))
        print(
            f"to use them, write into the ladder's file: maps: {{folder: {fitted[0].path.parent}}}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run_command(command)
