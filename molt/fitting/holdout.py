"""What maps leave unexplained on documents that they were not fitted on, applied as a switch does it; and how much
further from the mean that makes their outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from molt.errors import InputError
from molt.fitting.collect import NO_WINDOW, blocks_of
from molt.kv.loaded_rung import LoadedRung
from molt.kv.project import KVMap, map_rows, sharpened


@dataclass(slots=True, eq=False)
class Holdout:
    """One map and its sums over held-out rows; ``source``, ``dest`` are the blocks of their first layers,
    ``inputs`` is the block of the first mapped layer's input."""

    kv_map: KVMap
    source: int
    dest: int
    inputs: int
    rows: int = 0
    _origin: Tensor | None = None  # (L, 2 * H * D)
    _sums: Tensor = field(init=False)
    """(5, L, 2 * H * D) float64, about the origin: mapped values p, true ones t, p^2, p t, t^2."""
    _gains: Tensor | float = 1.0

    def add(self, blocks: Sequence[Tensor]) -> None:
        """Take in a window of every model, as ``collect.blocks_of`` gives it."""
        kv_map = self.kv_map
        known = torch.cat(list(blocks[self.source : self.source + kv_map.source.layers]), dim=1)
        mapped = map_rows(kv_map, known, blocks[self.inputs])  # (T, L, 2 * H * D)
        truth = torch.stack(
            list(blocks[self.dest + kv_map.native_layers : self.dest + kv_map.dest.layers]), dim=1
        )
        if self._origin is None:
            self._origin = truth.mean(0)
            self._sums = torch.zeros(5, *self._origin.shape, dtype=torch.float64)
        mapped -= self._origin
        truth -= self._origin
        parts = (mapped, truth, mapped.square(), mapped * truth, truth.square())
        self._sums += torch.stack([part.sum(0, dtype=torch.float64) for part in parts])
        self.rows += len(truth)

    def sharpen(self, strength: float) -> None:
        """Move the outputs of the map away from their means, by ``strength`` times the share that K, or V, of their
        layer leaves unexplained."""
        assert self._origin is not None
        shares = torch.tensor(self.unexplained(), dtype=torch.float64).T  # (L, 2)
        self._gains = (1.0 + strength * shares).repeat_interleave(self._origin.shape[1] // 2, dim=1)
        self.kv_map = sharpened(self.kv_map, self._gains, self._origin + self._sums[0] / self.rows)

    def unexplained(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """1 - R^2 of K and of V, layer by layer, of the map as it is now."""
        mapped, truth, squares, products, true_squares = self._sums / self.rows
        variance = true_squares - truth**2
        of_mapped, shared = squares - mapped**2, products - mapped * truth
        error = self._gains**2 * of_mapped - 2 * self._gains * shared + variance + (mapped - truth) ** 2
        keys, values = (
            tuple((part.sum(1) / whole.sum(1)).tolist())
            for part, whole in zip(error.chunk(2, dim=1), variance.chunk(2, dim=1), strict=True)
        )
        return keys, values


@torch.inference_mode()
def hold_out(
    models: Sequence[LoadedRung],
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
