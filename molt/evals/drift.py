"""The table of repeated switches: whether errors add up when a cache is transplanted again and again.

Between two switches the document goes on, prefilled by the rung whose turn it is. Right after each switch the cache is
judged against the destination's own cache of everything so far, beside a single switch at the same place from
the source's own cache: what the switches before have added is the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from molt.core.ladder import Route, RouteKind
from molt.evals.result import Drift, Journey, JudgedRow
from molt.evals.scoring import Scores, columns, predict, reference_predictions, score, source_side
from molt.evals.setup import JudgedText, LoadedLadder, Settings, TableSetup
from molt.kv.cache import PreallocatedCache
from molt.kv.transplant import carry, transplant

SWITCHES = 3
TOKENS_BETWEEN = 16


@dataclass(slots=True)
class _Stage:
    """One switch of a path: scores over documents of what is compared there."""

    route: Route
    own: list[Scores] = field(default_factory=list)
    nothing: list[Scores] = field(default_factory=list)
    carried: list[Scores] = field(default_factory=list)
    single: list[Scores] = field(default_factory=list)


def journeys(
    found: Sequence[Route], source: str | None = None, dest: str | None = None
) -> list[tuple[str, ...]]:
    """There, back and there again, for every pair of rungs with routes in both directions, in the order of the routes.

    ``source`` and ``dest`` limit it to pairs that begin and end so.
    """
    known = [(route.source, route.dest) for route in found]
    pairs: list[tuple[str, str]] = []
    for pair in known:
        is_asked = source in (None, pair[0]) and dest in (None, pair[1])
        if is_asked and pair[::-1] in known and pair[::-1] not in pairs:
            pairs.append(pair)
    return [tuple(pair[step % 2] for step in range(SWITCHES + 1)) for pair in pairs]


def tokens_needed(settings: Settings, between: int = TOKENS_BETWEEN) -> Settings:
    """The same settings with room for the tokens between the switches."""
    return replace(settings, continuation=settings.continuation + (SWITCHES - 1) * between)


def drift(made_with: TableSetup, paths: Sequence[tuple[str, ...]], between: int = TOKENS_BETWEEN) -> Drift:
    """The table of ``molt eval drift``; the texts are as long as ``tokens_needed`` says."""
    loaded, texts, settings = made_with.loaded, made_with.texts, made_with.settings
    made, total = [], len(paths) * len(texts)
    for number, path in enumerate(paths):
        stages = [_Stage(loaded.spec.ladder.route(*pair)) for pair in pairwise(path)]
        for done, text in enumerate(texts):
            _follow(loaded, stages, text, settings, between)
            made_with.progress("documents, path by path", number * len(texts) + done + 1, total)
        made.append(Journey(path=list(path), rows=_rows(stages, settings)))
    return Drift(table="drift", tokens_between=between, paths=made, **made_with.facts())


def _follow(
    loaded: LoadedLadder, stages: Sequence[_Stage], text: JudgedText, settings: Settings, between: int
) -> None:
    """One document along a path."""
    ids, known = (*text.known, *text.next), len(text.known)
    cache = loaded.rung(stages[0].route.source).prefill_afresh(text.known[:-1])
    for stage in stages:
        now = JudgedText(text.name, ids[:known], ids[known : known + settings.continuation])
        source, dest = loaded.rung(stage.route.source), loaded.rung(stage.route.dest)
        side = source_side(source, now)
        own = dest.prefill_afresh(now.known[:-1])
        against = reference_predictions(predict(dest, own, now, side), side)
        cache = switched(loaded, stage.route, cache, now.known, settings)
        single = switched(loaded, stage.route, side.cache, now.known, settings)
        for scores, found in (
            (stage.own, own),
            (stage.nothing, dest.empty_cache(0)),
            (stage.carried, cache),
            (stage.single, single),
        ):
            scores.append(score(predict(dest, found, now, side), against))
        cache = cache.fork(spare=between)
        dest.prefill(cache, ids[known - 1 : known - 1 + between], known - 1)
        known += between


def switched(
    loaded: LoadedLadder, route: Route, cache: PreallocatedCache, known: Sequence[int], settings: Settings
) -> PreallocatedCache:
    """A cache taken over a route, as the engine does it; the one it is made from stays as it is."""
    dest = loaded.rung(route.dest)
    if route.kind == RouteKind.CARRY:
        return carry(cache.fork(spare=0), dest, known, len(known))
    source = loaded.rung(route.source)
    return transplant(cache, source.rope, loaded.kv_map(route), dest, known, len(known), settings.islands)


def _rows(stages: Sequence[_Stage], settings: Settings) -> list[JudgedRow]:
    rows = []
    for number, stage in enumerate(stages, start=1):
        where = f"{stage.route.source} -> {stage.route.dest}"
        for name, scores in (
            (f"switch {number}, {where}", stage.carried),
            (f"a single one there, {where}", stage.single),
        ):
            of = columns(scores, stage.own, stage.nothing, settings.marks, settings.seed)
            by_document = [float(one.kl.mean()) for one in scores]
            rows.append(
                JudgedRow(name=name, kind="mechanism", columns=of, by_document=by_document, cost=None)
            )
    return rows
