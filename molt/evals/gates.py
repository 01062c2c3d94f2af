"""What must hold on a rung before a figure of any switch counts.

Every gate has a value that must not exceed its limit, and is broken on purpose by a test. They bound what the
*instrument* adds: a figure smaller than that is noise. Computing in bfloat16 or with quantised activations
rounds more than float32 does, and a shifted position makes it round elsewhere, so the limit of the relocation
is wider there. The last one holds bit for bit only under its conditions: the stream and the cells in the type
the rung computes in, and the same tokens in one pass; another shape takes another order of summation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from molt.evals.recompute import recompute, streams
from molt.evals.result import Gate
from molt.kv.cache import PreallocatedCache
from molt.kv.features import columns_per_layer
from molt.kv.handoff_quality import continue_greedily, filled, kl_divergence
from molt.kv.key_rotation import rotate, unrotate
from molt.kv.kv_state import KVState
from molt.kv.loaded_rung import CHUNK_TOKENS, LoadedRung, log_probabilities
from molt.kv.project import KVMap, LayerMap, project

CONTINUED_TOKENS = 16
RELATIVE = 1e-5
"""Limit of a round trip in float32, relative to the largest value: some fifty roundings."""

RELOCATION_KL = {"fp32": 1e-6, "bf16": 2e-2, "int8": 2e-2}
SHIFT = 64
CELLS_AT_ONCE = 7  # a part of a cache; of no other number here a divisor


@torch.inference_mode()
def check_rung(rung: LoadedRung, name: str, precision: str, known: Sequence[int]) -> list[Gate]:
    """All gates of one rung, on one text whose last token is fed."""
    last, position = known[-1], len(known) - 1
    cache = rung.prefill_afresh(known[:-1])
    assert rung.max_positions > position + CONTINUED_TOKENS, "no room behind the text"
    undisturbed = continue_greedily(rung, cache, last, position, CONTINUED_TOKENS).ids
    return [
        _reinjected(rung, name, cache, last, position),
        _round_trip(rung, name, cache),
        _continues(rung, name, cache, last, position, undisturbed),
        _oracle_map(rung, name, cache, known),
        _top_layers(rung, name, known[:-1]),
        _relocated(rung, name, precision, cache, known),
    ]


def _reinjected(rung: LoadedRung, name: str, cache: PreallocatedCache, last: int, position: int) -> Gate:
    again = filled(rung, cache.export())
    before, after = (rung.step(one.fork(spare=1), [last], position) for one in (cache, again))
    return Gate(
        name="own cache re-injected: identical logits",
        rung=name,
        value=float((before - after).abs().max()),
        limit=0.0,
        detail="largest difference of a logit",
    )


def _round_trip(rung: LoadedRung, name: str, cache: PreallocatedCache) -> Gate:
    state = cache.export()
    keys = rotate(unrotate(state.keys, state.positions, rung.rope), state.positions, rung.rope)
    return Gate(
        name="RoPE off and on: the same keys",
        rung=name,
        value=_relative(state.keys, keys),
        limit=RELATIVE,
        detail="largest difference, of the largest key",
    )


def _continues(
    rung: LoadedRung,
    name: str,
    cache: PreallocatedCache,
    last: int,
    position: int,
    undisturbed: tuple[int, ...],
) -> Gate:
    """A cache taken over part by part."""
    taken = rung.empty_cache(cache.cells)
    for first in range(0, cache.cells, CELLS_AT_ONCE):
        taken.append(cache.export(first, first + CELLS_AT_ONCE))
    ids = continue_greedily(rung, taken, last, position, len(undisturbed)).ids
    return Gate(
        name="same-rung transplant: the same greedy tokens",
        rung=name,
        value=float(sum(one != other for one, other in zip(ids, undisturbed, strict=True))),
        limit=0.0,
        detail=f"tokens of {len(undisturbed)} that differ",
    )


def _oracle_map(rung: LoadedRung, name: str, cache: PreallocatedCache, known: Sequence[int]) -> Gate:
    """The map that is known: every layer is itself."""
    state = cache.export()
    inputs = rung.prefill_below(rung.empty_cache(cache.cells), known[:-1], cache.positions, 0)
    mapped = project(identity_map(rung), state, inputs, rung.rope, rung.rope)
    return Gate(
        name="oracle map: the identity gives the same cache",
        rung=name,
        value=max(_relative(state.keys, mapped.keys), _relative(state.values, mapped.values)),
        limit=RELATIVE,
        detail="largest difference, of the largest value",
    )


def _top_layers(rung: LoadedRung, name: str, ids: Sequence[int]) -> Gate:
    """The upper half of the layers again, from the stream that enters them."""
    ids = ids[:CHUNK_TOKENS]
    half = rung.layout.layers // 2
    whole, above = rung.prefill_afresh(ids), rung.empty_cache(len(ids))
    above.commit(range(len(ids)))  # its lower layers stay empty: only the upper ones are compared
    end = streams(rung, ids, rung.layout.layers)
    again = recompute(rung, above, streams(rung, ids, half), half)
    one, other = whole.export(), above.export()
    pairs = (
        (end, again),
        (one.keys[half:], other.keys[half:]),
        (one.values[half:], other.values[half:]),
    )
    return Gate(
        name="upper layers recomputed from the stream: bit for bit",
        rung=name,
        value=float(sum(int((x != y).sum()) for x, y in pairs)),
        limit=0.0,
        detail=f"values that differ, layers {half} to {rung.layout.layers - 1}, one pass of {len(ids)} tokens",
    )


def _relocated(
    rung: LoadedRung, name: str, precision: str, cache: PreallocatedCache, known: Sequence[int]
) -> Gate:
    """The same text further on: RoPE encodes distances only."""
    shift = min(SHIFT, rung.max_positions - len(known))
    state = cache.export()
    content = unrotate(state.keys, state.positions, rung.rope)
    moved = filled(
        rung,
        KVState(rotate(content, state.positions + shift, rung.rope), state.values, state.positions + shift),
    )
    here, there = (
        log_probabilities(rung.step(one.fork(spare=1), known[-1:], len(known) - 1 + by))
        for one, by in ((cache, 0), (moved, shift))
    )
    return Gate(
        name=f"relocated by {shift} positions: the same predictions",
        rung=name,
        value=max(0.0, float(kl_divergence(here, there).max())),
        limit=RELOCATION_KL[precision],
        detail="KL at the next token, nats",
    )


def identity_map(rung: LoadedRung) -> KVMap:
    """The map of a rung to itself, layer by layer."""
    width, layout = columns_per_layer(rung.layout), rung.layout
    weight = torch.cat((torch.eye(width), torch.zeros(rung.hidden, width)))
    layers = tuple(LayerMap((layer,), weight, torch.zeros(width)) for layer in range(layout.layers))
    return KVMap(layout, layout, rung.hidden, 0, layers)


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max())
