"""The table of one switch: every cache that the destination could go on with, on the same documents, route by route.

The order of work is document by document, so that nothing of a document stays in memory but its figures; what
the source predicts is computed once for all routes from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from molt.core.ladder import Route, RouteKind
from molt.evals import baseline_maps
from molt.evals.caches import (
    HEALED,
    NOTHING,
    ONE_LAYER,
    OWN,
    ROTATED,
    CacheRecipe,
    Diagonal,
    Moments,
    RouteCase,
    SwitchCase,
    carries,
    controls,
    diagonal_of,
    mechanism_recipes,
    moments,
    references,
)
from molt.evals.gates import CONTINUED_TOKENS, check_rung
from molt.evals.healed import steps_needed
from molt.evals.result import Cost, Gate, HandoffTable, JudgedRow, LeftOut, RouteTable
from molt.evals.scoring import (
    Scores,
    SourceSide,
    columns,
    predict,
    reference_predictions,
    score,
    source_side,
)
from molt.evals.setup import (
    JudgedText,
    LoadedLadder,
    Progress,
    Settings,
    TableSetup,
    map_facts,
    quietly,
    rungs_of,
)
from molt.evals.statistics import summarise
from molt.kv.cache import PreallocatedCache
from molt.models.flops import prefill_flops

GATE_TOKENS = 128
"""Most tokens of the text that the gates are checked on."""


@dataclass(slots=True, eq=False)
class RoutePlan:
    """One route, the rows it is judged in, and what has been measured of each so far."""

    route: Route
    recipes: list[CacheRecipe]
    left_out: list[LeftOut]
    scores: dict[str, list[Scores]] = field(default_factory=dict)
    stalls_ms: dict[str, list[float]] = field(default_factory=dict)


Recipes = Callable[[TableSetup, Route], tuple[list[CacheRecipe], list[LeftOut]]]


def check_gates(
    loaded: LoadedLadder, found: Sequence[Route], texts: Sequence[JudgedText], progress: Progress = quietly
) -> list[Gate]:
    """The gates of every rung that the routes touch, on the first text."""
    rungs = rungs_of(loaded.spec, found)
    known = texts[0].known[: GATE_TOKENS + 1]
    gates: list[Gate] = []
    for number, rung in enumerate(rungs):
        progress("gates", number, len(rungs))
        room = loaded.spec.ladder.rung(rung.name).max_positions - CONTINUED_TOKENS
        gates += check_rung(loaded.rung(rung.name), rung.name, rung.precision, known[:room])
    progress("gates", len(rungs), len(rungs))
    return gates


def handoff(made_with: TableSetup, found: Sequence[Route]) -> HandoffTable:
    """The table of ``molt eval handoff``."""
    routes = route_tables(made_with, found, all_recipes)
    return HandoffTable(table="handoff", routes=routes, **made_with.facts())


def route_tables(made_with: TableSetup, found: Sequence[Route], recipes: Recipes) -> list[RouteTable]:
    """Judge the rows that ``recipes`` names on every document, for every route."""
    loaded, texts, settings = made_with.loaded, made_with.texts, made_with.settings
    plans = [RoutePlan(route, *recipes(made_with, route)) for route in found]
    total, done = len(texts) * len(plans), 0
    for number, text in enumerate(texts):
        sides: dict[str, SourceSide] = {}
        owns: dict[str, PreallocatedCache] = {}
        other = texts[(number + 1) % len(texts)].known[:-1]
        for plan in plans:
            source, dest = plan.route.source, plan.route.dest
            if source not in sides:
                sides[source] = source_side(loaded.rung(source), text)
            if dest not in owns:
                owns[dest] = loaded.rung(dest).prefill_afresh(text.known[:-1])
            case = SwitchCase(text, other, sides[source].cache, owns[dest], settings.seed + number)
            _judge(loaded, plan, case, sides[source])
            done += 1
            made_with.progress("documents, route by route", done, total)
    return [_table(loaded, plan, settings) for plan in plans]


def _judge(loaded: LoadedLadder, plan: RoutePlan, case: SwitchCase, side: SourceSide) -> None:
    judged = judged_against(loaded, plan.route)
    truth = case.own if judged == plan.route.dest else case.source
    reference = predict(loaded.rung(judged), truth, case.text, side)
    rungs = {"source": loaded.rung(plan.route.source), "dest": loaded.rung(plan.route.dest)}
    against = reference_predictions(reference, side)
    for recipe in plan.recipes:
        begin = time.perf_counter()
        cache = recipe.make(case)
        stall_ms = 1e3 * (time.perf_counter() - begin)
        is_reference = cache is truth
        found = reference if is_reference else recipe.predict(rungs[recipe.whose], cache, case.text, side)
        plan.scores.setdefault(recipe.name, []).append(score(found, against))
        plan.stalls_ms.setdefault(recipe.name, []).append(stall_ms)


def judged_against(loaded: LoadedLadder, route: Route) -> str:
    """The rung whose predictions with its own cache are the truth: the destination; between precisions the better."""
    return loaded.full_precision(route) if route.kind == RouteKind.CARRY else route.dest


def _table(loaded: LoadedLadder, plan: RoutePlan, settings: Settings) -> RouteTable:
    route, shape = plan.route, loaded.spec.rung(plan.route.dest).shape
    return RouteTable(
        source=route.source,
        dest=route.dest,
        route="carry" if route.kind == RouteKind.CARRY else "project",
        judged_against=judged_against(loaded, route),
        reread_flops=prefill_flops(shape, settings.context),
        map=map_facts(loaded, route) if route.kind == RouteKind.PROJECT else None,
        rows=[_row(plan, recipe, settings) for recipe in plan.recipes],
        left_out=plan.left_out,
    )


def _row(plan: RoutePlan, recipe: CacheRecipe, settings: Settings) -> JudgedRow:
    scores = plan.scores[recipe.name]
    cost = None
    if recipe.flops is not None:
        stall_ms = summarise(plan.stalls_ms[recipe.name], settings.seed)
        cost = Cost(stall_ms=stall_ms, flops=recipe.flops, map_bytes=recipe.map_bytes)
    return JudgedRow(
        name=recipe.name,
        kind=recipe.kind,
        columns=columns(scores, plan.scores[OWN], plan.scores[NOTHING], settings.marks, settings.seed),
        by_document=[float(one.kl.mean()) for one in scores],
        cost=cost,
    )


# ------------------------------------------------------------------------------------------------ the rows of a route


def all_recipes(made_with: TableSetup, route: Route) -> tuple[list[CacheRecipe], list[LeftOut]]:
    """Every row that a handoff table must have, and those that cannot be made here."""
    loaded, texts, settings = made_with.loaded, made_with.texts, made_with.settings
    dest, shape = loaded.rung(route.dest), loaded.spec.rung(route.dest).shape
    basis = [*references(dest, shape, settings.context), *controls(dest, shape, settings.context)]
    if route.kind == RouteKind.CARRY:
        return [*basis, *carries(dest, _leave_one_out(loaded, route, texts))], []
    on_route = route_case(loaded, route, settings)
    left_out: list[LeftOut] = []
    if not on_route.heals:
        steps, going_on = steps_needed(settings.context, settings.islands.first), settings.continuation
        left_out = [
            LeftOut(row=HEALED, why=f"it takes {steps} steps, the text goes on for {going_on} tokens")
        ]
    try:
        content = baseline_maps.collect(loaded, route, progress=made_with.progress)
        rotated = baseline_maps.collect(loaded, route, rotated=True, progress=made_with.progress)
    except baseline_maps.Unfit as why:
        left_out += [LeftOut(row=row, why=str(why)) for row in (ONE_LAYER, ROTATED)]
        return [*basis, *mechanism_recipes(on_route)], left_out
    rows = content.rows
    maps = {f"all layers, {rows} rows": content.solve(), f"{ONE_LAYER}, {rows} rows": content.solve(1)}
    fitted = replace(on_route, maps=maps, rotated=rotated.solve())
    return [*basis, *mechanism_recipes(fitted)], left_out


def route_case(loaded: LoadedLadder, route: Route, settings: Settings) -> RouteCase:
    """A projecting route with its own map."""
    shape = loaded.spec.rung(route.dest).shape
    source, dest = loaded.rung(route.source), loaded.rung(route.dest)
    kv_map, cells, going_on = loaded.kv_map(route), settings.context, settings.continuation
    return RouteCase(source, dest, shape, kv_map, settings.islands, cells, going_on)


def _leave_one_out(
    loaded: LoadedLadder, route: Route, texts: Sequence[JudgedText]
) -> Callable[[SwitchCase], Diagonal]:
    """The diagonal for a case, fitted on all other documents."""
    source, dest = loaded.rung(route.source), loaded.rung(route.dest)
    of_document: dict[str, Moments] = {
        text.name: moments(source.prefill_afresh(text.known[:-1]), dest.prefill_afresh(text.known[:-1]), dest)
        for text in texts
    }

    def diagonal(case: SwitchCase) -> Diagonal:
        return diagonal_of([part for name, part in of_document.items() if name != case.text.name])

    return diagonal
