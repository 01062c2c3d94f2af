"""Maps for comparison, fitted here and now on fewer rows than those that ship: from one source layer, or with the
keys left rotated.

They are compared with a full map fitted on the same rows, never with the shipped one. What all of them are solved
from is one matrix of sums; where that is large, fitting takes more than seconds, and ``Unfit`` is raised.
The regression of single layers is written a second time here, in its plainest form: every column beside every
other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor

from molt.core.ladder import Route
from molt.evals.setup import LoadedLadder, Progress, quietly
from molt.fitting.collect import WINDOW_TOKENS, WINDOWS_PER_DOCUMENT_MAX
from molt.fitting.ridge import solve_reduced
from molt.kv.features import columns_per_layer, layer_columns, nearest_layers, to_rows
from molt.kv.loaded_rung import LoadedRung
from molt.kv.project import Code, KVMap, LayerMap, whole_numbers
from molt.kv.transplant import Islands
from molt.models.pico.corpus import documents
from molt.models.rope import Rope
from molt.models.tokenizer_file import read_tokenizer

BASELINE_ROWS = 20_000
RIDGE = 1e-5
"""Penalty relative to the mean variance of the features."""

SUMS_BYTES_MAX = 256 * 1024 * 1024


class Unfit(Exception):
    """No map is fitted here; the message says why."""


@dataclass(slots=True, eq=False)
class Sums:
    """What any map of a route is solved from, in one space: sums over rows z about ``origin``.

    Columns are K and V of every source layer, of every destination layer, and the destination's first input. With
    ``within``, products are of what is left when the mean of its window is taken off every row: slopes are then those
    within a text, whatever differs between texts.
    """

    source: LoadedRung
    dest: LoadedRung
    origin: Tensor  # (w,) float64
    within: bool = False
    rows: int = 0
    total: Tensor = field(init=False)  # (w,) float64
    gram: Tensor = field(init=False)  # (w, w) float64

    def __post_init__(self) -> None:
        self.total = torch.zeros_like(self.origin)
        self.gram = torch.zeros(len(self.origin), len(self.origin), dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in a window of rows (n, w); products within one call are in the type of the rows."""
        centred = rows - self.origin.to(rows.dtype)
        self.rows += len(rows)
        self.total += centred.sum(0, dtype=torch.float64)
        if self.within:
            centred -= centred.mean(0)
        self.gram += centred.T @ centred

    def solve(
        self,
        sources: int | None = None,
        ridge: float = RIDGE,
        joint: bool = True,
        keys_from: Sums | None = None,
    ) -> KVMap:
        """The map that sees ``sources`` source layers (``None``: all), in float32.

        Not ``joint``: K from K alone, V from V alone. K is solved from the sums ``keys_from``, where there are some.
        """
        source, dest = self.source.layout, self.dest.layout
        width, dest_width = columns_per_layer(source), columns_per_layer(dest)
        first_target = source.layers * width
        inputs = first_target + dest.layers * dest_width + torch.arange(self.dest.hidden)
        count = source.layers if sources is None else sources
        layers = []
        for number in range(dest.layers):
            chosen = nearest_layers(number, dest.layers, source.layers, count) if number else ()
            features = torch.cat((layer_columns(chosen, source), inputs))
            weight = torch.zeros(len(features), dest_width, dtype=torch.float64)
            bias = torch.zeros(dest_width, dtype=torch.float64)
            for half in (0, 1):  # K, V
                is_other = (features < first_target) & (features % width // (width // 2) != half)
                seen = torch.ones_like(is_other) if joint else ~is_other
                part = slice(half * dest_width // 2, (half + 1) * dest_width // 2)
                targets = first_target + layer_columns((number,), dest)[part]
                sums = keys_from if keys_from is not None and half == 0 else self
                weight[seen, part], bias[part] = sums._regression(features[seen], targets, ridge)
            layers.append(LayerMap(chosen, weight.half().float(), bias.float()))
        return KVMap(source, dest, self.dest.hidden, 0, tuple(layers))

    def solve_shared(self, rank: int, ridge: float = RIDGE) -> KVMap:
        """The shared map of a ``rank``; its first layer is that of ``solve``."""
        source, dest = self.source.layout, self.dest.layout
        every = tuple(range(source.layers))
        first_target = source.layers * columns_per_layer(source)
        width = dest.layers * columns_per_layer(dest)
        targets = first_target + layer_columns(range(1, dest.layers), dest)
        inputs = first_target + width + torch.arange(self.dest.hidden)
        features = torch.cat((layer_columns(every, source), inputs))
        spread = (self.gram[features, features] / self.rows - (self.total[features] / self.rows) ** 2).sqrt()
        xx, xy = (self._covariance(features, of).div_(spread[:, None]) for of in (features, targets))
        encoder, decoder = solve_reduced(xx.div_(spread), xy, torch.ones(len(targets)), rank, ridge)
        centre, bias = (self.origin[of] + self.total[of] / self.rows for of in (features, targets))
        layers = [
            LayerMap(every, weight, offset.float(), scale)
            for part, offset in zip(
                decoder.chunk(dest.layers - 1, dim=1), bias.chunk(dest.layers - 1), strict=True
            )
            for weight, scale in (whole_numbers(part),)
        ]
        code = Code(centre.float(), spread.float(), *whole_numbers(encoder))
        first = self.solve(1, ridge).layers[0]
        return KVMap(source, dest, self.dest.hidden, 0, (first, *layers), code)

    def _covariance(self, left: Tensor, right: Tensor) -> Tensor:
        products = self.gram[left[:, None], right] / self.rows
        mean = self.total / self.rows
        return products if self.within else products - mean[left, None] * mean[right]

    def _regression(self, features: Tensor, targets: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """Centred ridge: weight (p, q) and bias (q,) of target columns from feature columns."""
        x_mean, y_mean = self.total[features] / self.rows, self.total[targets] / self.rows
        xx, xy = self._covariance(features, features), self._covariance(features, targets)
        xx.diagonal().add_(ridge * xx.diagonal().mean())
        weight = torch.cholesky_solve(xy, torch.linalg.cholesky(xx))
        return weight, self.origin[targets] + y_mean - (self.origin[features] + x_mean) @ weight


def flat(rope: Rope) -> Rope:
    """Positions that turn nothing."""
    return Rope(torch.zeros_like(rope.inv_freq))


def collect(
    loaded: LoadedLadder,
    route: Route,
    *,
    rotated: bool = False,
    within: bool = False,
    rows: int = BASELINE_ROWS,
    progress: Progress = quietly,
) -> Sums:
    """The sums of a route over the documents that pico's maps are fitted on; raises ``Unfit``.

    With ``rotated``, keys stay as attention sees them; ``within`` is that of ``Sums``.
    """
    names = (loaded.spec.rung(route.source).weights, loaded.spec.rung(route.dest).weights)
    kept = loaded.kept.get((names, rotated, within, rows))
    if isinstance(kept, Sums):
        return kept
    source, dest = (loaded.rung(name) for name in names)
    width = sum(one.layout.layers * columns_per_layer(one.layout) for one in (source, dest)) + dest.hidden
    if (size := width**2 * torch.float64.itemsize) > SUMS_BYTES_MAX:
        raise Unfit(
            f"fitting maps for comparison takes sums of {size / 2**30:.1f} GiB: too many for a comparison"
        )
    sums: Sums | None = None
    what = f"fitting for comparison{', keys rotated' * rotated}{', within windows' * within}"
    for ids in _windows(read_tokenizer(loaded.spec.tokenizer)):
        part = _rows(source, dest, ids, rotated)
        if sums is None:
            sums = Sums(source, dest, part.mean(0).double(), within)
        sums.add(part)
        progress(what, min(sums.rows, rows), rows)
        if sums.rows >= rows:
            break
    if sums is None:
        raise Unfit("no document is long enough to fit on")
    loaded.kept[names, rotated, within, rows] = sums
    return sums


def _windows(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Windows of the documents for fitting, shuffled by a fixed seed; a document gives a few."""
    try:
        found = list(documents("fit"))
    except FileNotFoundError as error:
        raise Unfit(str(error)) from error
    random.Random(0).shuffle(found)  # noqa: S311
    for _, text in found:
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: WINDOWS_PER_DOCUMENT_MAX * WINDOW_TOKENS]
        for first in range(0, len(ids) - WINDOW_TOKENS + 1, WINDOW_TOKENS):
            yield ids[first : first + WINDOW_TOKENS]


@torch.inference_mode()
def _rows(source: LoadedRung, dest: LoadedRung, ids: Sequence[int], rotated: bool) -> Tensor:
    """Cells of both rungs and the destination's first input, side by side; without the first tokens."""
    skipped = Islands().first
    states = [
        to_rows(one.prefill_afresh(ids).export(skipped), flat(one.rope) if rotated else one.rope)
        for one in (source, dest)
    ]
    inputs = dest.prefill_below(dest.empty_cache(len(ids)), ids, range(len(ids)), 0)[skipped:]
    return torch.cat((*states, inputs), dim=1)
