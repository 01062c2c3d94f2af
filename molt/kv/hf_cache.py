"""The one file that knows how transformers' models are given a cache.

A ``PreallocatedCache`` owns room for a fixed number of cells and never grows by concatenation, so a
generation's cache costs exactly ``capacity * bytes_per_token`` from admission on, and a decode step copies
one token and nothing else.

Rules of this module:

- Cells are filled from the front, in order of position; positions may have a gap (see ``state``).
- A forward pass commits its cells at the end: if it raises, the cache still holds what it held.
- Reallocation (``resize``, ``shed``) goes layer by layer, so its transient cost is one layer, not one cache.
- A mask is built only where one is needed, for several tokens after cached ones. A single token may see every
  cell and an empty cache needs only causality; for both transformers skips the mask (20 us of a 5 ms step on
  pico).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from molt.core.ladder import KVLayout
from molt.kv.state import KVState

DTYPES = {4: torch.float32, 2: torch.bfloat16}
"""What a cache is stored in, by ``KVLayout.dtype_bytes``."""


class PreallocatedCache(Cache):
    """K and V of one generation on one rung, in memory allocated once."""

    def __init__(self, layout: KVLayout, capacity: int) -> None:
        super().__init__(layers=[])
        self.layout = layout
        self.capacity = capacity
        self.positions: list[int] = []
        self._keys = [self._room() for _ in range(layout.layers)]  # L of (1, H, capacity, D)
        self._values = [self._room() for _ in range(layout.layers)]  # L of (1, H, capacity, D)

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
            torch.stack([tensor[0, :, cells] for tensor in tensors]).float()  # (L, H, T, D)
            for tensors in (self._keys, self._values)
        )
        return KVState(keys, values, torch.tensor(self.positions[cells], dtype=torch.int64))

    @torch.inference_mode()
    def append(self, state: KVState, first_layer: int = 0) -> None:
        """Write the cells of a state behind those held; its positions must come after theirs.

        A state of the layers from ``first_layer`` on completes what ``read_below`` put into the layers
        before.
        """
        first, end = self.cells, self.cells + state.cells
        assert end <= self.capacity, f"{end} cells do not fit into {self.capacity}"
        for layer, keys, values in zip(
            range(first_layer, self.layout.layers), state.keys, state.values, strict=True
        ):
            self._keys[layer][0, :, first:end].copy_(keys)
            self._values[layer][0, :, first:end].copy_(values)
        self._commit(state.positions.tolist())

    def resize(self, capacity: int) -> int:
        """Reallocate for ``capacity`` cells, keeping those held; returns the bytes freed (negative: taken)."""
        assert capacity >= self.cells, f"{self.cells} cells do not fit into {capacity}"
        return self._reallocate(capacity, list(range(self.cells)))

    def shed(self, keep: int, sinks: int) -> int:
        """Keep ``keep`` cells, the first ``sinks`` and the most recent, trimmed; returns the bytes freed.

        The survivors keep their positions, so every distance that attention sees stays exact. The first cells
        are kept because softmax parks its unused mass on them (Xiao et al., StreamingLLM, arXiv:2309.17453).
        """
        keep = min(keep, self.cells)
        head = min(sinks, max(keep - 1, 0))  # at least one cell is a recent one
        kept = [*range(head), *range(self.cells - (keep - head), self.cells)]
        return self._reallocate(keep, kept)

    def fork(self, spare: int) -> PreallocatedCache:
        """A copy with room for ``spare`` more cells; the original is untouched by what happens to it."""
        twin = PreallocatedCache(self.layout, self.cells + spare)
        twin.append(self.export())
        return twin

    # -- what transformers' models call

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new K and V (1, H, t, D) of a layer; returns all of them up to here."""
        first, end = self.cells, self.cells + key_states.shape[2]
        self._keys[layer_idx][:, :, first:end] = key_states
        self._values[layer_idx][:, :, first:end] = value_states
        keys, values = self._keys[layer_idx][:, :, :end], self._values[layer_idx][:, :, :end]
        # Views, unless the model computes in another type than the cache is stored in.
        return keys.to(key_states.dtype), values.to(value_states.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Cells held before the step."""
        return self.cells

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Index of the first new cell."""
        return self.cells

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Number of cells a step attends to, and the index of the first."""
        return self.cells + query_length, 0

    # -- detail

    def _commit(self, positions: Sequence[int]) -> None:
        assert not self.positions or not positions or positions[0] > self.positions[-1], (
            "positions must increase"
        )
        self.positions.extend(positions)

    def _room(self) -> Tensor:
        shape = (1, self.layout.kv_heads, self.capacity, self.layout.head_dim)
        return torch.empty(shape, dtype=DTYPES[self.layout.dtype_bytes])

    @torch.inference_mode()
    def _reallocate(self, capacity: int, kept: list[int]) -> int:
        before = self.nbytes
        self.capacity = capacity
        index = torch.tensor(kept, dtype=torch.int64)
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                tensors[layer] = self._room()
                tensors[layer][:, :, : len(kept)] = old[:, :, index]
        self.positions = [self.positions[cell] for cell in kept]
        return before - self.nbytes


@torch.inference_mode()
def read(
    model: PreTrainedModel, cache: PreallocatedCache, ids: Sequence[int], positions: Sequence[int]
) -> None:
    """Read known tokens into the cache, without computing any logits."""
    _forward(model.base_model, cache, ids, positions)
    cache._commit(positions)


@torch.inference_mode()
def read_below(
    model: PreTrainedModel,
    cache: PreallocatedCache,
    ids: Sequence[int],
    positions: Sequence[int],
    layers: int,
) -> Tensor:
    """Run tokens through the first ``layers`` layers only; returns what the next one reads, (t, hidden).

    That is the residual stream after those layers, normalised: K and V of the next layer are linear in it.
    The K and V of the layers that ran are in the cache, but its cells are not complete before ``append`` adds
    the other layers.
    """
    base: Any = model.base_model
    below = copy.copy(base)
    below._modules = dict(base._modules)
    below.layers, below.norm = base.layers[:layers], base.layers[layers].input_layernorm
    return _forward(below, cache, ids, positions).last_hidden_state[0].float()


@torch.inference_mode()
def step(
    model: PreTrainedModel,
    cache: PreallocatedCache,
    ids: Sequence[int],
    positions: Sequence[int],
    keep: int = 1,
) -> Tensor:
    """Read tokens into the cache; returns the logits (keep, vocabulary) after the last ``keep`` of them."""
    outputs = _forward(model, cache, ids, positions, logits_to_keep=keep)
    cache._commit(positions)
    return outputs.logits[0].float()


def _forward(
    module: torch.nn.Module,
    cache: PreallocatedCache,
    ids: Sequence[int],
    positions: Sequence[int],
    **options: Any,
) -> Any:
    assert len(ids) == len(positions), f"{len(ids)} tokens at {len(positions)} positions"
    assert cache.cells + len(ids) <= cache.capacity, f"{cache.cells}+{len(ids)} cells exceed {cache.capacity}"
    return module(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        attention_mask=_mask(len(ids), cache.cells),
        use_cache=True,
        **{_cache_argument(type(module).forward): cache},
        **options,
    )


def _mask(tokens: int, cached: int) -> Tensor | None:
    """Causal mask (1, 1, tokens, cached + tokens) by cell, or ``None`` where transformers needs none."""
    if tokens == 1 or cached == 0:
        return None
    return torch.ones(tokens, cached + tokens, dtype=torch.bool).tril(cached)[None, None]


@lru_cache
def _cache_argument(forward: Callable[..., Any]) -> str:
    """``past_key_values`` was renamed to ``cache`` in transformers 5.24."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
