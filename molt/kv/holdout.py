"""What finished maps leave unexplained on documents that they were not fitted on: applied as a switch does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from molt.errors import InputError
from molt.kv.calibrate import NO_WINDOW, blocks_of
from molt.kv.project import KVMap, map_rows
from molt.kv.resident import Resident


@dataclass(slots=True, eq=False)
class Holdout:
    """One map and its sums over held-out rows; ``source``, ``dest`` are the blocks of their first layers,
    ``inputs`` is that of what the first mapped layer reads."""

    kv_map: KVMap
    source: int
    dest: int
    inputs: int
    rows: int = 0
    _origin: Tensor | None = None  # (L, 2 * H * D)
    _sums: Tensor = field(
        init=False
    )  # (3, L, 2 * H * D) float64: errors, squares, and values about the origin

    def add(self, blocks: Sequence[Tensor]) -> None:
        """Take in a window of every model, as ``calibrate.blocks_of`` gives it."""
        kv_map = self.kv_map
        known = torch.cat(list(blocks[self.source : self.source + kv_map.source.layers]), dim=1)
        mapped = map_rows(kv_map, known, blocks[self.inputs])  # (T, L, 2 * H * D)
        truth = torch.stack(
            list(blocks[self.dest + kv_map.native_layers : self.dest + kv_map.dest.layers]), dim=1
        )
        if self._origin is None:
            self._origin = truth.mean(0)
            self._sums = torch.zeros(3, *self._origin.shape, dtype=torch.float64)
        about = truth - self._origin
        parts = ((mapped - truth).square(), about.square(), about)
        self._sums += torch.stack([part.sum(0, dtype=torch.float64) for part in parts])
        self.rows += len(truth)

    def unexplained(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """1 - R^2 of K and of V, layer by layer."""
        error, squares, total = self._sums
        variance = squares - total**2 / self.rows
        shares = (
            part.sum(1) / whole.sum(1)
            for part, whole in zip(error.chunk(2, dim=1), variance.chunk(2, dim=1), strict=True)
        )
        keys, values = (tuple(share.tolist()) for share in shares)
        return keys, values


@torch.inference_mode()
def hold_out(
    models: Sequence[Resident],
    maps: Sequence[Holdout],
    texts: Iterable[Sequence[int]],
    rows_max: int,
    progress: Callable[[int], None] = lambda rows: None,
) -> None:
    """Judge maps with the same first mapped layer on at most ``rows_max`` rows (whole windows).

    Raises ``InputError`` if the texts give no row at all.
    """
    for ids in texts:
        if maps[0].rows >= rows_max:
            break
        blocks = blocks_of(models, ids, maps[0].kv_map.native_layers)
        for one in maps:
            one.add(blocks)
        progress(maps[0].rows)
    if not maps[0].rows:
        raise InputError(NO_WINDOW)
