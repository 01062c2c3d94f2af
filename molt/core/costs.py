"""What a step costs in time, as measured on one machine for one ladder.

The scheduler predicts with these figures; the simulator's physics uses them as truth. A profile file
(``scenarios/profiles/*.json``, written by ``molt calibrate``) holds exactly the fields of ``CostModel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """Affine time of one step over ``tokens`` new tokens with ``context`` tokens already cached.

    ``ns = fixed_ns + token_ns * tokens + pair_ns * tokens * context``: the last term is attention.
    """

    fixed_ns: float
    token_ns: float
    pair_ns: float = 0.0

    def ns(self, tokens: int, context: int) -> int:
        """Whole nanoseconds, at least 1."""
        return max(1, round(self.fixed_ns + self.token_ns * tokens + self.pair_ns * tokens * context))


@dataclass(frozen=True, slots=True)
class RungCosts:
    """Times of one rung: bringing it in, giving it back, reading ``tokens`` in one chunk, one decode step."""

    load_ns: int
    release_ns: int
    read: StepCost
    decode: StepCost


@dataclass(frozen=True, slots=True)
class RouteCosts:
    """Time to take a cache of n tokens along one route, and the KL to the native cache to expect (nats)."""

    switch: StepCost
    expected_kl: float = 0.0


@dataclass(frozen=True, slots=True)
class CostModel:
    """The measured profile of one machine and one ladder; ``routes`` is keyed ``"source->dest"``."""

    machine: str
    ladder: str
    process_start_ns: int
    rungs: Mapping[str, RungCosts]
    routes: Mapping[str, RouteCosts]

    def route(self, source: str, dest: str) -> RouteCosts | None:
        """Costs of a carried switch, or ``None`` where only a re-read was measured."""
        return self.routes.get(f"{source}->{dest}")
