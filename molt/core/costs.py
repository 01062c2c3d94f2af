"""What a step costs in time, as measured on one machine for one ladder.

The scheduler predicts with these figures; the simulator's physics uses them as truth. A profile file
(``scenarios/profiles/*.json``, written by ``molt calibrate``) holds exactly the fields of ``CostModel``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


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
class HealingFactor:
    """How many times longer than a bare one a decode step takes that also heals ``tokens`` cells."""

    tokens: int
    factor: float


@dataclass(frozen=True, slots=True)
class RungCosts:
    """Times of one rung: load, release, prefill (``read``) of a chunk, one decode step.

    ``healing`` has what healing does to a decode step, as measured, by rising numbers of cells; nothing where
    the rung is never the end of a projected switch.
    """

    load_ns: int
    release_ns: int
    read: StepCost
    decode: StepCost
    healing: tuple[HealingFactor, ...] = ()

    def healing_ns(self, tokens: int, context: int) -> int:
        """Time of a decode step on ``context`` cells that also heals ``tokens`` of them.

        Interpolated between the measured numbers; beyond them, and where nothing was measured, each token adds the
        time of its prefill.
        """
        bare_ns = self.decode.ns(1, context)
        points = [(0.0, 1.0), *((float(point.tokens), point.factor) for point in self.healing)]
        beyond = max(0, tokens - self.healing[-1].tokens) if self.healing else tokens
        marginal_ns = (self.read.token_ns + self.read.pair_ns * context) * beyond
        return max(1, round(bare_ns * _between(points, tokens) + marginal_ns))


@dataclass(frozen=True, slots=True)
class Divergence:
    """KL (nats) to the destination's own cache of ``cells`` cells, the last ``native`` of which it prefilled itself."""

    cells: int
    native: int
    kl: float


@dataclass(frozen=True, slots=True)
class RouteCosts:
    """Time to take a cache of n tokens along one route, and what it costs in quality, as measured at some points.

    ``switch`` is the time with no token prefilled natively beyond those that always are.
    """

    switch: StepCost
    divergences: tuple[Divergence, ...] = ()

    def expected_kl(self, cells: int, native: int) -> float:
        """Nats, interpolated between the measured points: in the native share of the cells, then in the cells.

        Beyond the measured lengths the nearest counts; a cache prefilled natively as a whole costs nothing.
        """
        lengths = sorted({point.cells for point in self.divergences})
        if not lengths or native >= cells:
            return 0.0
        share = native / cells
        return _between([(length, self._at(length, share)) for length in lengths], cells)

    def _at(self, cells: int, share: float) -> float:
        points = sorted((p.native / cells, p.kl) for p in self.divergences if p.cells == cells)
        return _between([*points, (1.0, 0.0)], share)


@dataclass(frozen=True, slots=True)
class DiskCosts:
    """Nanoseconds a byte to write a cache to disk with its checksum, and to read it back and check it."""

    write_byte_ns: float
    read_byte_ns: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """The measured profile of one machine and one ladder; ``routes`` is keyed ``"source->dest"``."""

    machine: str
    ladder: str
    process_start_ns: int
    disk: DiskCosts
    rungs: Mapping[str, RungCosts]
    routes: Mapping[str, RouteCosts]

    def route(self, source: str, dest: str) -> RouteCosts | None:
        """Costs of a carried switch, or ``None`` where only prefilling again was measured."""
        return self.routes.get(f"{source}->{dest}")

    def spill_ns(self, size: int) -> int:
        """Time to write a cache of ``size`` bytes to disk."""
        return max(1, round(self.disk.write_byte_ns * size))

    def restore_ns(self, size: int) -> int:
        """Time to read a cache of ``size`` bytes back."""
        return max(1, round(self.disk.read_byte_ns * size))

    def switch_ns(self, source: str, dest: str, cells: int, native: int) -> int:
        """Time of a carried switch: the map of all but the last ``native`` cells, and the prefill of those.

        Raises ``KeyError`` for a route that was not measured.
        """
        mapped = max(0, cells - native)
        read = self.rungs[dest].read
        marginal = (
            read.token_ns + read.pair_ns * mapped
        )  # the weights are gone through once, with the first tokens
        return self.routes[f"{source}->{dest}"].switch.ns(mapped, 0) + round(marginal * (cells - mapped))


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise linear through rising points, constant beyond them."""
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            return low if x <= left else low + (high - low) * (x - left) / (right - left)
    return points[-1][1]
