"""Healing: making a carried cache exact again, a few tokens inside every decode step.

A projected cache is exact in its first cells only (*settled*); what follows is a guess. A decode step can
prefill the next few tokens again, each attending to the settled cells before it, until the settled part has caught up
with the newest token. Then every cell is what a prefill of the whole text would have given.
"""

from __future__ import annotations

from molt.core.costs import RungCosts

CHUNKS = (64, 32, 16, 8, 4, 2, 1)
"""Cells that may be healed in one decode step."""


def chunk(cells: int, settled: int, heal: int) -> int:
    """How many cells the next decode step heals, of a cache whose first ``settled`` cells are exact."""
    return min(heal, cells - settled)


def settled_after(cells: int, settled: int, healed: int) -> int:
    """Settled cells after a decode step that healed ``healed`` cells, and added one.

    The new cell is exact when all those before it are.
    """
    settled += healed
    return cells + 1 if settled == cells else settled


def most_within(costs: RungCosts, stretch: float, context: int, at_most: int) -> int:
    """The most tokens of ``CHUNKS``, up to ``at_most``, with which a step stays within ``stretch`` bare ones; 0 if
    none does."""
    longest_ns = stretch * costs.decode.ns(1, context)
    fitting = (n for n in CHUNKS if n <= at_most and costs.healing_ns(n, context) <= longest_ns)
    return next(fitting, 0)
