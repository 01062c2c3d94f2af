"""Taking a cache from one rung to another.

Three routes exist; two are here. *Carry* (same weights, other precision) takes the cache as it is. *Project*
sends it through a learned map, except for islands that the destination prefills itself: the first tokens, exact
because attention is causal, and the most recent ones. On models with attention sinks the first cells are
outliers that no linear map hits, and a projected cache without exact ones is worse than no history at all.
The last known token is native too, on every route: a decode step feeds it. The third route, prefilling
everything again, needs no code here.

Nothing is lost before it is replaced: the source cache is only read, and whatever is wrong raises
``SwitchError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from molt.core.engine_protocol import SINKS, SwitchError
from molt.core.ladder import KVLayout
from molt.core.plan import NATIVE_TOKENS
from molt.kv.cache import PreallocatedCache
from molt.kv.kv_state import KVState
from molt.kv.loaded_rung import LoadedRung
from molt.kv.project import KVMap, project
from molt.models.rope import Rope
from molt.work import Work, finished


@dataclass(frozen=True, slots=True)
class Islands:
    """How many tokens at either end the destination prefills itself: a dial from a pure map to a full prefill.

    Four first tokens cover the sinks of Qwen2.5; pico has none. The last ones are what the
    next tokens lean on most: on pico, 16 of them take a third off the mean KL, where alone they are worse
    than the map.
    """

    first: int = SINKS
    last: int = NATIVE_TOKENS


CHUNK_CELLS = 96
"""Cells projected at a time: what is live meanwhile fits into the scratch of the destination, which does nothing else
then, whatever the length of the context. (More at a time were no faster on one core.)"""
NATIVE_CHUNK_TOKENS = 64
"""Tokens prefilled natively at a time: a pause after them comes soon enough, and most islands are no larger."""


@torch.inference_mode()
def carry(
    source: PreallocatedCache, dest: LoadedRung, known: Sequence[int], capacity: int
) -> PreallocatedCache:
    """The same cache with room for ``capacity`` cells, for the same weights at another precision.

    Where the two rungs store K and V alike this is ``source`` itself, reallocated; otherwise a converted
    copy. Raises ``SwitchError``, before anything changes, as ``transplant`` does.
    """
    _check(source, dest, known, capacity)
    if replace(source.layout, dtype_bytes=dest.layout.dtype_bytes) != dest.layout:
        raise SwitchError(f"a cache of {source.layout} cannot be carried to {dest.layout}: only a map can")
    if source.layout == dest.layout:
        source.resize(capacity)
        return source
    converted = dest.empty_cache(capacity)
    for first in range(0, source.cells, CHUNK_CELLS):
        converted.append(source.export(first, first + CHUNK_CELLS))
    return converted


def transplant(
    source: PreallocatedCache,
    source_rope: Rope,
    kv_map: KVMap,
    dest: LoadedRung,
    known: Sequence[int],
    capacity: int,
    islands: Islands = Islands(),
) -> PreallocatedCache:
    """A cache of ``capacity`` cells for the destination, at the positions that ``source`` holds.

    ``known`` are the tokens of the text so far, by position; those after the last cell are not prefilled. Raises
    ``SwitchError`` for a cache that is not finite, a map of other geometries, a text too long for ``dest``.
    """
    return finished(transplanting(source, source_rope, kv_map, dest, known, capacity, islands))


@torch.inference_mode()
def transplanting(
    source: PreallocatedCache,
    source_rope: Rope,
    kv_map: KVMap,
    dest: LoadedRung,
    known: Sequence[int],
    capacity: int,
    islands: Islands,
) -> Work[PreallocatedCache]:
    """``transplant``, which pauses after every chunk that it projects or prefills. Dropped, it leaves nothing."""
    _check(source, dest, known, capacity)
    if (kv_map.source, kv_map.dest) != (source.layout, dest.layout):
        raise SwitchError(
            f"the map takes {kv_map.source} to {kv_map.dest}, not {source.layout} to {dest.layout}"
        )
    carried = dest.empty_cache(capacity)
    head = leading_cells(source.positions[: islands.first])
    dest.prefill(carried, known[:head], 0)
    tail = source.cells - min(trailing_cells(source.positions), islands.last, source.cells - head)
    for first in range(head, tail, CHUNK_CELLS):
        state = source.export(first, min(first + CHUNK_CELLS, tail))
        positions = state.positions.tolist()
        inputs = dest.prefill_below(
            carried, [known[position] for position in positions], positions, kv_map.native_layers
        )
        projected = project(kv_map, state, inputs, source_rope, dest.rope)
        _check_state(projected, kv_map.mapped)
        carried.append(projected, first_layer=kv_map.native_layers)
        yield
    resume = source.positions[tail] if tail < source.cells else 0
    end = resume + source.cells - tail
    for first in range(resume, end, NATIVE_CHUNK_TOKENS):
        dest.prefill(carried, known[first : min(first + NATIVE_CHUNK_TOKENS, end)], first)
        yield
    return carried


def leading_cells(positions: Sequence[int]) -> int:
    """How many cells, from the first on, sit at positions 0, 1, 2, ... without a gap."""
    return next((cell for cell, position in enumerate(positions) if cell != position), len(positions))


def trailing_cells(positions: Sequence[int]) -> int:
    """How many cells, up to the last, sit at neighbouring positions without a gap."""
    backwards = [positions[-1] - position for position in reversed(positions)]
    return leading_cells(backwards)


def _check(source: PreallocatedCache, dest: LoadedRung, known: Sequence[int], capacity: int) -> None:
    if source.cells > capacity:
        raise SwitchError(f"{source.cells} cells do not fit into {capacity}")
    if len(known) > dest.max_positions:
        raise SwitchError(f"the text has {len(known)} tokens, the destination {dest.max_positions} positions")
    for first in range(0, source.cells, CHUNK_CELLS):
        _check_state(source.export(first, first + CHUNK_CELLS), source.layout)


def _check_state(state: KVState, layout: KVLayout) -> None:
    try:
        state.check(layout)
    except ValueError as error:
        raise SwitchError(str(error)) from error
