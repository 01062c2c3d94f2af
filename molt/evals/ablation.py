"""The table of settings: one is changed at a time, the others stay as they ship.

Islands are changed with the shipped map. Settings of the map (source layers, rows, K and V jointly, the penalty, the
space) are changed in maps fitted here on fewer rows, beside one fitted with all settings as they ship.
"""

from __future__ import annotations

from collections.abc import Sequence

from molt.core.ladder import Route
from molt.evals import baseline_maps
from molt.evals.caches import FULL, CacheRecipe, RouteCase, composed, controls, references
from molt.evals.handoff import route_case, route_tables
from molt.evals.result import Ablation, LeftOut
from molt.evals.setup import LoadedLadder, Progress, TableSetup
from molt.kv.transplant import Islands

FIRST = (0, 1, 4, 16, 64)
LAST = (0, 4, 16, 64)
SOURCES_DIAL = (1, 2, 4)
ROWS_DIAL = (3_000, 10_000)
RANKS = (64, 128, 256)
RIDGES = (1e-3, 1e-1)


def ablation(made_with: TableSetup, found: Sequence[Route]) -> Ablation:
    """The table of ``molt eval ablation``, of routes that go through a map."""
    return Ablation(table="ablation", routes=route_tables(made_with, found, dials), **made_with.facts())


def dials(made_with: TableSetup, route: Route) -> tuple[list[CacheRecipe], list[LeftOut]]:
    """The rows of one route."""
    loaded, settings = made_with.loaded, made_with.settings
    dest, shape = loaded.rung(route.dest), loaded.spec.rung(route.dest).shape
    on_route = route_case(loaded, route, settings)
    basis = [
        references(dest, shape, settings.context)[0],
        controls(dest, shape, settings.context)[0],
        on_route.recipe(FULL, settings.islands, kind="mechanism"),
        *island_dials(on_route),
    ]
    try:
        return [*basis, *_map_dials(loaded, route, on_route, made_with.progress)], []
    except baseline_maps.Unfit as why:
        return basis, [LeftOut(row="dials of the map", why=str(why))]


def island_dials(on_route: RouteCase) -> list[CacheRecipe]:
    """More and fewer tokens at either end, as far as the context goes."""
    first, last = on_route.islands.first, on_route.islands.last
    pairs = [*((dial, last) for dial in FIRST), *((first, dial) for dial in LAST)]
    chosen = [
        Islands(*pair)
        for pair in dict.fromkeys(pairs)
        if pair != (first, last) and sum(pair) < on_route.cells
    ]
    return [
        on_route.recipe(f"islands: first {islands.first}, last {islands.last}", islands) for islands in chosen
    ]


def _map_dials(
    loaded: LoadedLadder, route: Route, on_route: RouteCase, progress: Progress
) -> list[CacheRecipe]:
    sums = baseline_maps.collect(loaded, route, progress=progress)
    rotated = baseline_maps.collect(loaded, route, rotated=True, progress=progress).solve()
    rows = sums.rows
    maps = {f"fitted here: as shipped, {rows} rows": sums.solve()}
    for count in SOURCES_DIAL:
        if count < on_route.source.layout.layers:
            maps[f"fitted here: {count} source layer{'s' * (count > 1)}"] = sums.solve(count)
    for rank in RANKS:
        maps[f"fitted here: shared by all layers, rank {rank}"] = sums.solve_shared(rank)
    maps["fitted here: K from K, V from V"] = sums.solve(joint=False)
    within = baseline_maps.collect(loaded, route, within=True, progress=progress)
    maps["fitted here: K by its slopes within a text"] = sums.solve(keys_from=within)
    for ridge in RIDGES:
        maps[f"fitted here: ridge {ridge:g}"] = sums.solve(ridge=ridge)
    for fewer in ROWS_DIAL:
        few = baseline_maps.collect(loaded, route, rows=fewer, progress=progress)
        maps[f"fitted here: {few.rows} rows"] = few.solve()
    return [
        *(on_route.recipe(name, on_route.islands, kv_map) for name, kv_map in maps.items()),
        CacheRecipe(
            "fitted here: keys left rotated", "without", lambda case: composed(on_route, case, rotated)
        ),
    ]
