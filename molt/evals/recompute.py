"""Selective recompute: the last layers of a transplanted cache computed by the destination itself.

K and V of a layer come from the residual stream that enters it, so a caller that knows the stream at one *boundary*
layer can run the layers from there on, natively, and knows their cells. An exact boundary gives exact cells; a
projected one gives cells that are consistent with each other, at the cost of the layers that are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from molt.kv.cache import PreallocatedCache, causal_mask
from molt.kv.loaded_rung import CHUNK_TOKENS, LoadedRung


@dataclass(frozen=True, slots=True, eq=False)
class _Overwriting:
    """The cells of a cache up to a chunk that begins at cell ``first``, while that chunk is computed again."""

    cache: PreallocatedCache
    first: int

    def mask(self, tokens: int, device: torch.device) -> Tensor | None:
        """See ``molt.models.decoder.Cells``."""
        return None if tokens == 1 else causal_mask(tokens, self.first, device)

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See ``molt.models.decoder.Cells``."""
        self.cache.replace(layer, self.first, keys, values)
        return self.cache.up_to(layer, self.first + keys.shape[1])


@torch.inference_mode()
def streams(rung: LoadedRung, ids: Sequence[int], layer: int) -> Tensor:
    """The residual stream (t, hidden) that enters layer ``layer`` when a text is read from its beginning."""
    scratch, parts = rung.empty_cache(len(ids)), []
    for start in range(0, len(ids), CHUNK_TOKENS):
        part = ids[start : start + CHUNK_TOKENS]
        positions = range(start, start + len(part))
        parts.append(rung.decoder.run(rung.decoder.embed(part), positions, scratch, end=layer))
        scratch.commit(positions)
    return torch.cat(parts)


@torch.inference_mode()
def recompute(
    rung: LoadedRung,
    cache: PreallocatedCache,
    boundary: Tensor,
    layer: int,
    first: int = 0,
    chunk: int = CHUNK_TOKENS,
) -> Tensor:
    """Compute the layers from ``layer`` on again, for the cells from ``first`` on, from what enters ``layer``.

    ``boundary`` (t, hidden) is that stream, a row a cell. The cells before ``first`` are left as they are. Returns
    the stream (t, hidden) after the last layer.
    """
    assert first + len(boundary) <= cache.cells, f"{first}+{len(boundary)} of {cache.cells} cells"
    ends = []
    for start in range(0, len(boundary), chunk):
        part = boundary[start : start + chunk].to(rung.decoder.dtype).clone()
        cells = _Overwriting(cache, first + start)
        positions = cache.positions[first + start : first + start + len(part)]
        ends.append(rung.decoder.run(part, positions, cells, first=layer))
    return torch.cat(ends)
