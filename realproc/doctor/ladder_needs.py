"""Which ladders are on this machine, and how much memory each takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from molt.core.ladder import Ladder
from molt.errors import LadderError
from molt.models.ladder_file import ladder_names, resolve

CONTEXT_CELLS = 4096


@dataclass(frozen=True, slots=True)
class LadderNeed:
    """One ladder that ships with Molt: the bytes it takes, or what is missing of it."""

    name: str
    rungs: int | None
    needed_bytes: int | None
    missing: str | None


def ladder_needs() -> tuple[LadderNeed, ...]:
    """Every ladder by name, in order."""
    return tuple(map(_ladder_need, ladder_names()))


def needed_bytes(ladder: Ladder) -> int:
    """The most that one tenant takes on any rung or switch of a ladder, beside the process itself.

    At a switch two neighbouring rungs are loaded, because the smaller one goes on answering while the larger is loaded;
    then there are also the map between them and a cache on each.
    """
    alone = [
        rung.resident_bytes + rung.kv_bytes(min(rung.max_positions, CONTEXT_CELLS)) for rung in ladder.rungs
    ]
    maps = [
        max(ladder.route(upper.name, lower.name).map_bytes, ladder.route(lower.name, upper.name).map_bytes)
        for upper, lower in pairwise(ladder.rungs)
    ]
    return max(
        [alone[0], *(sum(pair) + between for pair, between in zip(pairwise(alone), maps, strict=True))]
    )


def _ladder_need(name: str) -> LadderNeed:
    try:
        ladder = resolve(name).ladder
    except LadderError as error:
        return LadderNeed(name, None, None, str(error))
    return LadderNeed(name, len(ladder.rungs), needed_bytes(ladder), None)
