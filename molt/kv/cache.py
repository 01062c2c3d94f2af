"""The cache of one generation: room for a fixed number of cells, allocated once.

It never grows by concatenation, so a generation's cache costs exactly ``capacity * bytes_per_token`` from
admission on, and a decode step copies one token and nothing else.

Rules of this module:

- Cells are filled from the front, in order of position; positions may have a gap (see ``state``).
- A forward pass commits its cells at the end: if it raises, the cache still holds what it held.
- Reallocation (``resize``, ``shed``) goes layer by layer, so its transient cost is one layer, not one cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.kv.kv_state import KVState
from molt.models.arena import Arena

CPU = torch.device("cpu")
CELL_DTYPES = {4: torch.float32, 2: torch.bfloat16}
"""What a cache is stored in, by ``KVLayout.dtype_bytes``."""


class PreallocatedCache:
    """K and V of one generation on one rung, in memory allocated once."""

    def __init__(self, layout: KVLayout, capacity: int, device: torch.device = CPU) -> None:
        self.layout = layout
        self.capacity = capacity
        self.device = device
        self.positions: list[int] = []
        self._keys = [self._room(capacity) for _ in range(layout.layers)]  # L of (H, capacity, D)
        self._values = [self._room(capacity) for _ in range(layout.layers)]  # L of (H, capacity, D)

    @property
    def cells(self) -> int:
        """Tokens held."""
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, whether or not the cells are filled."""
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

    @torch.inference_mode()
    def export(self, first: int = 0, end: int | None = None) -> KVState:
        """A copy, in float32, of the cells from ``first`` up to ``end`` (default: of all held)."""
        cells = slice(first, self.cells if end is None else min(end, self.cells))
        keys, values = (
            torch.stack([tensor[:, cells] for tensor in tensors]).float().cpu()  # (L, H, T, D)
            for tensors in (self._keys, self._values)
        )
        return KVState(keys, values, torch.tensor(self.positions[cells], dtype=torch.int64))

    @torch.inference_mode()
    def append(self, state: KVState, first_layer: int = 0) -> None:
        """Write the cells of a state behind those held; its positions must come after theirs.

        A state of the layers from ``first_layer`` on completes what ``prefill_below`` put into the layers
        before.
        """
        first, end = self.cells, self.cells + state.cells
        assert end <= self.capacity, f"{end} cells do not fit into {self.capacity}"
        for layer, keys, values in zip(
            range(first_layer, self.layout.layers), state.keys, state.values, strict=True
        ):
            self._keys[layer][:, first:end].copy_(keys)
            self._values[layer][:, first:end].copy_(values)
        self.commit(state.positions.tolist())

    def resize(self, capacity: int) -> int:
        """Reallocate for ``capacity`` cells, keeping those held; returns the bytes freed (negative: taken)."""
        assert capacity >= self.cells, f"{self.cells} cells do not fit into {capacity}"
        return self._reallocate(capacity)

    def shed(self, keep: int, sinks: int) -> int:
        """Keep ``keep`` cells, the first ``sinks`` and the most recent, trimmed; returns the bytes freed.

        The survivors keep their positions, so every distance that attention sees stays exact. The first cells
        are kept because softmax parks its unused mass on them (Xiao et al., StreamingLLM, arXiv:2309.17453).
        """
        keep = min(keep, self.cells)
        head = min(sinks, max(keep - 1, 0))  # at least one cell is a recent one
        self._close_gap(head, self.cells - (keep - head))
        return self._reallocate(keep)

    def fork(self, spare: int) -> PreallocatedCache:
        """A copy with room for ``spare`` more cells; the original is untouched by what happens to it."""
        twin = PreallocatedCache(self.layout, self.cells + spare, self.device)
        twin.append(self.export())
        return twin

    # -- what a forward pass calls

    def mask(self, tokens: int, device: torch.device) -> Tensor | None:
        """Each new token sees the cells and the new tokens up to itself; a single one everything."""
        return None if tokens == 1 else causal_mask(tokens, self.cells, device)

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (H, t, D) of a layer; returns all of them, (H, T, D) each, up to here."""
        first, end = self.cells, self.cells + keys.shape[1]
        assert end <= self.capacity, f"{end} cells do not fit into {self.capacity}"
        self._keys[layer][:, first:end] = keys
        self._values[layer][:, first:end] = values
        return self.up_to(layer, end)

    def up_to(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values (H, end, D) of a layer, views of the first ``end`` cells."""
        return self._keys[layer][:, :end], self._values[layer][:, :end]

    def put(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Fill the first cells of a layer with keys and values (H, t, D); they count once they are committed."""
        self._keys[layer][:, : keys.shape[1]] = keys
        self._values[layer][:, : values.shape[1]] = values

    def replace(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Overwrite cells from ``first`` on of a layer with keys and values (H, t, D)."""
        end = first + keys.shape[1]
        assert end <= self.cells, f"cells up to {end} of {self.cells}"
        self._keys[layer][:, first:end] = keys
        self._values[layer][:, first:end] = values

    def commit(self, positions: Sequence[int]) -> None:
        """Count the tokens of a finished pass, at ``positions``, among the cells."""
        assert not self.positions or not positions or positions[0] > self.positions[-1], (
            "positions must increase"
        )
        self.positions.extend(positions)

    # -- detail

    def _room(self, capacity: int) -> Tensor:
        """Room (H, capacity, D) in memory of its own, which goes back to the system when it is dropped."""
        shape = (self.layout.kv_heads, capacity, self.layout.head_dim)
        dtype = CELL_DTYPES[self.layout.dtype_bytes]
        if capacity == 0 or self.device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=self.device)
        arena = Arena.anonymous(math.prod(shape) * dtype.itemsize)
        return arena.tensor(0, dtype, shape)

    @torch.inference_mode()
    def _close_gap(self, head: int, tail: int) -> None:
        """Drop the cells between the first ``head`` and ``tail``, by moving the later ones up where they are.

        In pieces no longer than the gap, so that nothing overlaps and nothing is allocated that might not be had.
        """
        gap, cells = tail - head, self.cells
        for first in range(tail, cells, gap) if gap else ():
            end = min(first + gap, cells)
            for tensor in (*self._keys, *self._values):
                tensor[:, first - gap : end - gap].copy_(tensor[:, first:end])
        del self.positions[head:tail]

    @torch.inference_mode()
    def _reallocate(self, capacity: int) -> int:
        """Give every layer room for ``capacity`` cells. Where memory runs out on the way, the cells are all there."""
        before = self.nbytes
        self.capacity, target = min(self.capacity, capacity), capacity
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                room = self._room(target)
                room[:, : self.cells] = old[:, : self.cells]
                tensors[layer] = room
        self.capacity = target
        return before - self.nbytes


def causal_mask(tokens: int, before: int, device: torch.device) -> Tensor:
    """What is added to the scores (t, before + t): nothing, or minus infinity for what is still to come."""
    return torch.full((tokens, before + tokens), -math.inf, device=device).triu_(before + 1)
