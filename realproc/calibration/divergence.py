"""How far a carried cache diverges from the destination's own, at every setting of the dial: the predictions of a
profile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from molt.core.costs import Divergence
from molt.core.engine_protocol import SINKS
from molt.core.ladder import Route, RouteKind
from molt.evals.setup import LoadedLadder
from molt.kv.handoff_quality import judge, switch_reference
from molt.kv.transplant import Islands, carry, transplant

JUDGED_CELLS = (128, 512)
JUDGED_NATIVE = (0, 16, 64, 256)
JUDGED_TEXTS = 8
JUDGING_S = 20
"""After so long no further text is judged at one length: on a large ladder each takes seconds."""


def divergences(loaded: LoadedLadder, route: Route, texts: list[list[int]]) -> Iterator[Divergence]:
    """Mean KL of a switch after texts of some lengths, at every setting of the dial."""
    ends = (loaded.spec.ladder.rung(route.source), loaded.spec.ladder.rung(route.dest))
    longest = min(rung.max_positions for rung in ends) - 1  # with the token that is fed
    for cells in sorted({min(length, longest) for length in JUDGED_CELLS}):
        dial = JUDGED_NATIVE if route.kind is RouteKind.PROJECT else (0,)
        kls: dict[int, list[float]] = {native: [] for native in dial if native < cells}
        begin = time.monotonic()
        for text in [text[: cells + 1] for text in texts if len(text) > cells][:JUDGED_TEXTS]:
            for native, kl in _judged(loaded, route, text, tuple(kls)):
                kls[native].append(kl)
            if time.monotonic() - begin > JUDGING_S:
                break
        yield from (
            Divergence(cells, native, statistics.fmean(found)) for native, found in kls.items() if found
        )


def _judged(
    loaded: LoadedLadder, route: Route, text: list[int], dial: tuple[int, ...]
) -> Iterator[tuple[int, float]]:
    """KL of a switch after all but the last token of a text, by how many of its last tokens are prefilled natively."""
    source, dest = loaded.rung(route.source), loaded.rung(route.dest)
    cache = source.prefill_afresh(text[:-1])
    by = switch_reference(source, dest, cache, text)
    for native in dial:
        if route.kind is RouteKind.CARRY:
            carried = carry(cache.fork(spare=0), dest, text, len(text))
        else:
            islands = Islands(SINKS, native)
            carried = transplant(cache, source.rope, loaded.kv_map(route), dest, text, len(text), islands)
        yield native, judge(dest, carried, by).carried.kl
