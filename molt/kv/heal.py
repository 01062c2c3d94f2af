"""Healing a carried cache inside a decode step: see ``molt.core.healing`` for the schedule.

One forward pass has the next tokens to be healed and the token to be decoded. Layer by layer the healed ones
replace what stood in their cells, seeing only what is settled before them; the decoded one sees all cells, those
just replaced included. So when the last guess is replaced, everything after it is exact as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from molt.kv.cache import PreallocatedCache, causal_mask
from molt.kv.loaded_rung import LoadedRung


@dataclass(frozen=True, slots=True, eq=False)
class _HealedCells:
    """The cells of a cache while ``healed`` of them, after the first ``settled``, are replaced and one is added."""

    cache: PreallocatedCache
    settled: int
    healed: int

    def mask(self, tokens: int, device: torch.device) -> Tensor:
        """Healed tokens see what is before them; the last one, which is new, sees every cell."""
        assert tokens == self.healed + 1
        mask = torch.full((tokens, self.cache.cells + 1), -math.inf, device=device)
        mask[:-1, : self.settled + self.healed] = causal_mask(self.healed, self.settled, device)
        mask[-1] = 0.0
        return mask

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See ``molt.models.decoder.Cells``."""
        healed = self.healed
        self.cache.replace(layer, self.settled, keys[:, :healed], values[:, :healed])
        return self.cache.extend(layer, keys[:, healed:], values[:, healed:])


@torch.inference_mode()
def step(
    resident: LoadedRung, cache: PreallocatedCache, known: Sequence[int], settled: int, healed: int
) -> Tensor:
    """Logits (vocabulary,) after the last of the ``known`` tokens, the only one not in the cache yet.

    The ``healed`` cells after the first ``settled`` are healed as well. The cache is without gaps: the token of
    cell i is ``known[i]``. Raises ``NotFinite`` as ``LoadedRung.step`` does; then the cache may be healed, but has
    no new cell.
    """
    assert cache.cells == len(known) - 1, f"{cache.cells} cells of {len(known)} tokens"
    assert settled + healed <= cache.cells, f"{settled}+{healed} of {cache.cells} cells"
    positions = [*range(settled, settled + healed), cache.cells]
    ids = [known[position] for position in positions]
    logits = resident.logits(ids, positions, _HealedCells(cache, settled, healed), keep=1)
    cache.commit(positions[-1:])
    return logits[0]
