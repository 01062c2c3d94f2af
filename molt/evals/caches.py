"""Every cache that is judged: the destination's own, the controls that must do worse, the transplant, and the
transplant with one part of it taken away.

Controls are made from the destination's own cache where they can be, so that only the part they take away is
missing. A permutation that K and V share is no control, since attention does not look at the order of
the cells; K and V are therefore shuffled one at a time, as contents: a shuffled key has the position of the cell
it moved to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from molt.evals.baseline_maps import flat
from molt.evals.healed import HEALED_TOKENS, healed, predict_healing, steps_needed
from molt.evals.scoring import Predictions, SourceSide, predict
from molt.evals.setup import JudgedText
from molt.evals.switch_flops import transplant_flops
from molt.kv.cache import PreallocatedCache
from molt.kv.handoff_quality import filled, own_cache, zero_cache
from molt.kv.key_rotation import rotate, unrotate
from molt.kv.kv_state import KVState
from molt.kv.loaded_rung import LoadedRung
from molt.kv.project import KVMap, project
from molt.kv.transplant import Islands, carry, transplant
from molt.models.flops import prefill_flops
from molt.models.model_config import ModelShape

OWN = "own cache (floor)"
NOTHING = "no history"
FULL = "full mechanism"
HEALING = f"healing, {HEALED_TOKENS} tokens a step"
HEALED = "after healing"
ONE_LAYER = "one source layer"
ROTATED = "no RoPE sandwich, fitted so"
LAST_TOKENS = 32
"""Tokens of the row that has nothing but the most recent ones."""


@dataclass(frozen=True, slots=True, eq=False)
class SwitchCase:
    """One text at the point of a switch: the caches of both rungs, and another document of the same length."""

    text: JudgedText
    other: tuple[int, ...]
    source: PreallocatedCache
    own: PreallocatedCache
    seed: int

    @property
    def prefilled(self) -> tuple[int, ...]:
        """The tokens that have cells."""
        return self.text.known[:-1]

    def generator(self) -> torch.Generator:
        """Randomness of this case, the same for every row."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True, slots=True, eq=False)
class CacheRecipe:
    """One row: how its cache is made, and what that costs; ``flops`` is ``None`` where no switch would make it.

    ``whose`` names the rung whose cache it is, ``predict`` is how that rung goes on with it.
    """

    name: str
    kind: Literal["reference", "control", "mechanism", "without"]
    make: Callable[[SwitchCase], PreallocatedCache]
    flops: int | None = None
    map_bytes: int = 0
    whose: Literal["source", "dest"] = "dest"
    predict: Callable[[LoadedRung, PreallocatedCache, JudgedText, SourceSide], Predictions] = predict


@dataclass(frozen=True, slots=True, eq=False)
class RouteCase:
    """A projecting route with everything it needs, and a text: ``cells`` before the switch, ``going_on`` tokens after.

    ``maps`` are more maps of the route, by what is said of them.
    """

    source: LoadedRung
    dest: LoadedRung
    shape: ModelShape
    kv_map: KVMap
    islands: Islands
    cells: int
    going_on: int
    maps: dict[str, KVMap] = field(default_factory=dict)
    rotated: KVMap | None = None

    @property
    def heals(self) -> bool:
        """Whether the text goes on long enough for every cell to become exact."""
        return steps_needed(self.cells, self.islands.first) <= self.going_on

    def recipe(
        self,
        name: str,
        islands: Islands,
        kv_map: KVMap | None = None,
        kind: Literal["reference", "control", "mechanism", "without"] = "without",
    ) -> CacheRecipe:
        """A transplant as the engine does it, with other islands or another map."""
        chosen = kv_map or self.kv_map
        return CacheRecipe(
            name,
            kind,
            lambda case: transplant(
                case.source,
                self.source.rope,
                chosen,
                self.dest,
                case.text.known,
                len(case.text.known),
                islands,
            ),
            transplant_flops(chosen, self.shape, self.cells, islands.first, islands.last),
            chosen.nbytes,
        )


# ------------------------------------------------------------------------------------------- what every route has


def references(dest: LoadedRung, shape: ModelShape, cells: int) -> list[CacheRecipe]:
    """The destination's own cache, under three names, and the source going on without a switch."""
    return [
        CacheRecipe(OWN, "reference", lambda case: case.own),
        CacheRecipe(
            "restart: re-read",
            "reference",
            lambda case: dest.prefill_afresh(case.prefilled),
            prefill_flops(shape, cells),
        ),
        CacheRecipe("always small from the start", "reference", lambda case: case.own),
        CacheRecipe("source, no switch", "reference", lambda case: case.source, whose="source"),
    ]


def controls(dest: LoadedRung, shape: ModelShape, cells: int) -> list[CacheRecipe]:
    """Caches that must do worse; a measure that does not show it measures nothing."""
    last = min(LAST_TOKENS, cells)
    return [
        CacheRecipe(NOTHING, "control", lambda case: dest.empty_cache(0), 0),
        CacheRecipe("zero cache", "control", lambda case: zero_cache(dest, case.own.positions)),
        CacheRecipe(
            "another document's cache",
            "control",
            lambda case: own_cache(dest, case.other, case.own.positions),
        ),
        CacheRecipe("noise of the same moments", "control", lambda case: _noise(dest, case)),
        CacheRecipe("own cache, K shuffled", "control", lambda case: _shuffled(dest, case, keys=True)),
        CacheRecipe("own cache, V shuffled", "control", lambda case: _shuffled(dest, case, keys=False)),
        CacheRecipe(
            f"last {last} tokens only, native",
            "control",
            lambda case: alone(dest, case.prefilled, 0, last),
            prefill_flops(shape, last),
        ),
    ]


def alone(dest: LoadedRung, known: Sequence[int], first: int, last: int) -> PreallocatedCache:
    """The first and the last tokens prefilled natively, at their positions, with nothing between them."""
    first = min(first, len(known))
    last = min(last, len(known) - first)
    cache = dest.empty_cache(first + last)
    dest.prefill(cache, known[:first], 0)
    dest.prefill(cache, known[len(known) - last :], len(known) - last)
    return cache


def _noise(dest: LoadedRung, case: SwitchCase) -> PreallocatedCache:
    """Normal numbers with the mean and deviation over cells that every component of the own cache has."""
    state, generator = case.own.export(), case.generator()
    content = unrotate(state.keys, state.positions, dest.rope)
    keys, values = (_alike(tensor, generator) for tensor in (content, state.values))
    return filled(dest, KVState(rotate(keys, state.positions, dest.rope), values, state.positions))


def _alike(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """(L, H, T, D)"""
    deviation = tensor.std(2, keepdim=True, correction=0)
    return tensor.mean(2, keepdim=True) + deviation * torch.randn(tensor.shape, generator=generator)


def _shuffled(dest: LoadedRung, case: SwitchCase, *, keys: bool) -> PreallocatedCache:
    state = case.own.export()
    order = torch.randperm(state.cells, generator=case.generator())
    if not keys:
        return filled(dest, replace(state, values=state.values[:, :, order]))
    content = unrotate(state.keys, state.positions, dest.rope)[:, :, order]
    return filled(dest, replace(state, keys=rotate(content, state.positions, dest.rope)))


# ---------------------------------------------------------------------------------------------- routes with a map


def mechanism_recipes(route: RouteCase) -> list[CacheRecipe]:
    """The transplant, and the transplant without each of its parts."""
    islands = route.islands
    recipes = [
        route.recipe(FULL, islands, kind="mechanism"),
        *healings(route),
        route.recipe("no first island", Islands(0, islands.last)),
        route.recipe("no last island", Islands(islands.first, 0)),
        route.recipe("no islands: the map alone", Islands(0, 0)),
        CacheRecipe(
            "no map: islands alone",
            "without",
            lambda case: alone(route.dest, case.prefilled, islands.first, islands.last),
            prefill_flops(route.shape, islands.first)
            + prefill_flops(route.shape, islands.last, islands.first),
        ),
        CacheRecipe(
            "no RoPE sandwich, same map",
            "without",
            lambda case: composed(route, case, route.kv_map),
        ),
        CacheRecipe("native K, mapped V", "without", lambda case: _mixed(route, case, native_keys=True)),
        CacheRecipe("mapped K, native V", "without", lambda case: _mixed(route, case, native_keys=False)),
    ]
    recipes += [route.recipe(name, islands, kv_map) for name, kv_map in route.maps.items()]
    if route.rotated is not None:
        rotated = route.rotated
        recipes.append(
            CacheRecipe(
                ROTATED,
                "without",
                lambda case: composed(route, case, rotated),
            )
        )
    return recipes


def healings(route: RouteCase) -> list[CacheRecipe]:
    """The transplanted cache while it heals, and once it is healed."""
    full, settled = route.recipe(FULL, route.islands).make, route.islands.first

    def healing(
        dest: LoadedRung, cache: PreallocatedCache, text: JudgedText, side: SourceSide
    ) -> Predictions:
        return predict_healing(dest, cache, text, side, settled)

    while_healing = CacheRecipe(HEALING, "mechanism", full, predict=healing)
    at_the_end = CacheRecipe(
        HEALED, "mechanism", lambda case: healed(route.dest, full(case), case.text, settled)
    )
    return [while_healing, at_the_end] if route.heals else [while_healing]


def composed(route: RouteCase, case: SwitchCase, kv_map: KVMap) -> PreallocatedCache:
    """A transplant whose map takes and gives keys as they are rotated, with nothing un-rotated."""
    dest, cells = route.dest, case.source.cells
    head = min(route.islands.first, cells)
    tail = max(head, cells - route.islands.last)
    cache = dest.empty_cache(cells)
    dest.prefill(cache, case.prefilled[:head], 0)
    state = case.source.export(head, tail)
    inputs = dest.prefill_below(cache, case.prefilled[head:tail], range(head, tail), kv_map.native_layers)
    mapped = project(kv_map, state, inputs, flat(route.source.rope), flat(dest.rope))
    cache.append(mapped, first_layer=kv_map.native_layers)
    dest.prefill(cache, case.prefilled[tail:], tail)
    return cache


def _mixed(route: RouteCase, case: SwitchCase, *, native_keys: bool) -> PreallocatedCache:
    """K of one cache with V of the other."""
    carried = route.recipe(FULL, route.islands).make(case).export()
    own = case.own.export()
    keys, values = (own.keys, carried.values) if native_keys else (carried.keys, own.values)
    return filled(route.dest, KVState(keys, values, own.positions))


# -------------------------------------------------------------------------------------- routes of the same weights


def carries(dest: LoadedRung, diagonal: Callable[[SwitchCase], Diagonal]) -> list[CacheRecipe]:
    """Between two precisions: the cache as it is, and re-aligned component by component."""
    return [
        CacheRecipe(
            FULL + ": carry as it is",
            "mechanism",
            lambda case: carry(case.source.fork(spare=0), dest, case.text.known, len(case.text.known)),
            0,
        ),
        CacheRecipe(
            "diagonal re-alignment",
            "without",
            lambda case: _aligned(dest, case, diagonal(case)),
        ),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal:
    """A scale and an offset for every component of un-rotated K and of V: (L, H, 1, D) each."""

    keys: tuple[Tensor, Tensor]
    values: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Sums over the cells of one document that a ``Diagonal`` is solved from in float64.

    Of x (the source), y (the destination): cells, x, y, x x, x y.
    """

    sums: Tensor  # (5, 2, L, H, 1, D)


def moments(source: PreallocatedCache, dest_cache: PreallocatedCache, dest: LoadedRung) -> Moments:
    """Moments of one document, both caches being of the same text."""
    sides = []
    for cache in (source, dest_cache):
        state = cache.export()
        content = unrotate(state.keys, state.positions, dest.rope)
        sides.append(torch.stack((content, state.values)).double())  # (2, L, H, T, D)
    x, y = sides
    parts = (torch.ones_like(x), x, y, x * x, x * y)
    return Moments(torch.stack([part.sum(3, keepdim=True) for part in parts]))


def diagonal_of(parts: Sequence[Moments]) -> Diagonal:
    """Least squares, every component by itself."""
    count, x, y, xx, xy = torch.stack([part.sums for part in parts]).sum(0)
    variance = xx / count - (x / count) ** 2
    covariance = xy / count - (x / count) * (y / count)
    scale = torch.where(variance > 0, covariance / variance.clamp_min(1e-30), torch.ones_like(variance))
    offset = y / count - scale * x / count
    (key_scale, value_scale), (key_offset, value_offset) = scale.float(), offset.float()
    return Diagonal((key_scale, key_offset), (value_scale, value_offset))


def _aligned(dest: LoadedRung, case: SwitchCase, diagonal: Diagonal) -> PreallocatedCache:
    state = case.source.export()
    content = unrotate(state.keys, state.positions, dest.rope)
    keys = content * diagonal.keys[0] + diagonal.keys[1]
    values = state.values * diagonal.values[0] + diagonal.values[1]
    return filled(dest, KVState(rotate(keys, state.positions, dest.rope), values, state.positions))
