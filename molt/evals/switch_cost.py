"""The table of what a switch costs: taking the cache along against prefilling again, by length of the context.

Both rungs are in memory and warm. The source's cells are a piece of text repeated, since their content does not change
the time. The two are timed in turn, so that other work on the machine falls on both; so are decode steps with and
without healing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch

from molt.core.healing import CHUNKS
from molt.core.ladder import Route, RouteKind
from molt.evals.healed import HEALED_TOKENS
from molt.evals.result import HealingPace, LengthCost, RouteCost, SwitchCost, Times
from molt.evals.setup import LoadedLadder, Progress, Settings, origin, quietly
from molt.evals.switch_flops import transplant_flops
from molt.kv import heal
from molt.kv.cache import PreallocatedCache
from molt.kv.kv_state import KVState
from molt.kv.loaded_rung import CHUNK_TOKENS, LoadedRung
from molt.kv.transplant import Islands, carry, transplant
from molt.models.flops import prefill_flops

CONTEXT_TOKENS_MIN, CONTEXT_MAX = 64, 4_096
SPARE = 64
"""Cells that the new cache has room for beyond the context: an answer goes on."""

HEALING_CONTEXT = 1_024
"""Tokens of a cache that heals, or the longest context measured where that is shorter."""

HEALING_STEPS = 32
REPEATS = 7
SECONDS_MAX = 20.0
"""After that long at one length, what has been timed is enough."""


def contexts(positions: int, longest: int = CONTEXT_MAX) -> list[int]:
    """Doubling lengths that fit, and the longest that does where that is no doubling."""
    most = min(longest, positions - SPARE)
    doubling, length = [], CONTEXT_TOKENS_MIN
    while length <= most:
        doubling.append(length)
        length *= 2
    return doubling if not doubling or doubling[-1] == most else [*doubling, most]


def switch_cost(
    loaded: LoadedLadder,
    found: Sequence[Route],
    settings: Settings,
    ids: Sequence[int],
    *,
    command: str,
    longest: int = CONTEXT_MAX,
    repeats: int = REPEATS,
    progress: Progress = quietly,
) -> SwitchCost:
    """The table of ``molt eval switch-cost``; ``ids`` is a piece of text."""
    made = []
    for route in found:
        steps = []
        positions = min(loaded.spec.ladder.rung(name).max_positions for name in (route.source, route.dest))
        lengths = contexts(positions, longest)
        for number, context in enumerate(lengths):
            progress(f"{route.source} -> {route.dest}", number, len(lengths))
            steps.append(_step(loaded, route, settings, ids, context, repeats))
        progress(f"{route.source} -> {route.dest}", len(lengths), len(lengths))
        is_carry = route.kind == RouteKind.CARRY
        made.append(
            RouteCost(
                source=route.source,
                dest=route.dest,
                route="carry" if is_carry else "project",
                map_bytes=0 if is_carry else loaded.kv_map(route).nbytes,
                steps=steps,
                crossover=crossover(steps),
                crossover_with_load=crossover(steps, with_load=True),
                healing=[]
                if is_carry
                else healing(loaded.rung(route.dest), ids, min(lengths[-1], HEALING_CONTEXT)),
            )
        )
    return SwitchCost(
        table="switch-cost",
        origin=origin(command, loaded.spec, settings.seed),
        islands=[settings.islands.first, settings.islands.last],
        routes=made,
    )


def crossover(steps: Sequence[LengthCost], *, with_load: bool = False) -> int | None:
    """The shortest measured context from which on taking the cache along is always faster than prefilling again."""
    found = None
    for step in reversed(steps):
        if step.carry_ms + (step.map_load_ms if with_load else 0.0) >= step.reread_ms:
            break
        found = step.context
    return found


def _step(
    loaded: LoadedLadder, route: Route, settings: Settings, ids: Sequence[int], context: int, repeats: int
) -> LengthCost:
    source, dest = loaded.rung(route.source), loaded.rung(route.dest)
    shape, islands = loaded.spec.rung(route.dest).shape, settings.islands
    known = [ids[position % len(ids)] for position in range(context + 1)]
    cache = _repeated(source, known[:-1])
    is_carry, alone = route.kind == RouteKind.CARRY, Islands(0, 0)

    def load() -> object:
        return None if is_carry else loaded.load_map(route)

    def switch(original: PreallocatedCache, native: Islands = islands) -> object:
        if is_carry:
            return carry(original, dest, known, context + SPARE)
        return transplant(original, source.rope, loaded.kv_map(route), dest, known, context + SPARE, native)

    def prefill() -> object:
        return dest.prefill_afresh(known[:-1], SPARE)

    times: dict[str, list[float]] = {"switch": [], "map": [], "load": [], "prefill": []}
    begin = time.perf_counter()
    while len(times["switch"]) <= repeats:  # the first of several is a warm-up
        original = cache.fork(spare=0) if is_carry else cache
        times["switch"].append(_ms(lambda original=original: switch(original)))  # type: ignore[misc]
        times["map"].append(0.0 if is_carry else _ms(lambda: switch(cache, alone)))
        times["load"].append(_ms(load))
        times["prefill"].append(_ms(prefill))
        if time.perf_counter() - begin > SECONDS_MAX:
            break
    counted = {name: values[len(values) > 1 :] for name, values in times.items()}
    carry_flops, map_flops = (
        0 if is_carry else transplant_flops(loaded.kv_map(route), shape, context, native.first, native.last)
        for native in (islands, alone)
    )
    return LengthCost(
        context=context,
        n=len(counted["switch"]),
        carry_ms=median(counted["switch"]),
        map_ms=None if is_carry else median(counted["map"]),
        map_load_ms=0.0 if is_carry else median(counted["load"]),
        reread_ms=median(counted["prefill"]),
        carry_flops=carry_flops,
        map_flops=None if is_carry else map_flops,
        reread_flops=prefill_flops(shape, context),
    )


def healing(dest: LoadedRung, ids: Sequence[int], context: int) -> list[HealingPace]:
    """Decode steps that heal a cache of ``context`` tokens, by how many tokens they heal, beside bare ones."""
    known = [ids[position % len(ids)] for position in range(context + 1)]
    cache = _repeated(dest, known[:-1])
    return [_pace(dest, cache, known, tokens) for tokens in CHUNKS if tokens <= min(HEALED_TOKENS, context)]


def _pace(dest: LoadedRung, cache: PreallocatedCache, known: Sequence[int], tokens: int) -> HealingPace:
    """The first of each is a warm-up."""
    places = torch.linspace(0, cache.cells - tokens, HEALING_STEPS).int().tolist()
    pairs = [
        [_decode_ms(dest, cache, known, settled, healed) for healed in (0, tokens)]
        for settled in (places[0], *places)
    ]
    bare, healing = (_times(values) for values in zip(*pairs[1:], strict=True))
    return HealingPace(context=cache.cells, tokens=tokens, n=len(places), bare=bare, healing=healing)


def _decode_ms(
    dest: LoadedRung, cache: PreallocatedCache, known: Sequence[int], settled: int, healed: int
) -> float:
    """A decode step on a fork, so that all have as many cells before them."""
    fork = cache.fork(spare=1)
    if healed:
        return _ms(lambda: heal.step(dest, fork, known, settled, healed))
    return _ms(lambda: dest.step(fork, known[-1:], fork.cells))


def _times(values: Sequence[float]) -> Times:
    p95 = float(np.quantile(values, 0.95, method="inverted_cdf"))
    return Times(median_ms=median(values), p95_ms=p95, longest_ms=max(values))


def _ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begin)


def _repeated(source: LoadedRung, ids: Sequence[int]) -> PreallocatedCache:
    """A cache of ``source`` that has the cells of the first chunk again and again."""
    piece = source.prefill_afresh(ids[:CHUNK_TOKENS]).export()
    cells = torch.arange(len(ids)) % piece.cells
    cache = source.empty_cache(len(ids))
    cache.append(
        KVState(piece.keys[:, :, cells], piece.values[:, :, cells], torch.arange(len(ids), dtype=torch.int64))
    )
    return cache
