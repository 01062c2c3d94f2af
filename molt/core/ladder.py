"""Rungs, routes and ladders as numbers: what a model weighs and what a token of its cache costs.

Everything here is exact integer bytes, known before a single tensor is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Geometry of one rung's KV cache: ``(layers, kv_heads, tokens, head_dim)``, once for K, once for V."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V together for one cached token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes


@dataclass(frozen=True, slots=True)
class Rung:
    """One model at one precision.

    ``weights`` is the identity of the parameters: two rungs with equal ``weights`` differ in precision only.
    ``scratch_bytes`` is the working memory of one step while the rung is resident. ``mapped`` weights are pages
    of a file, which the system can drop and read again; others are memory of the process.
    """

    name: str
    weights: str
    precision: str
    weight_bytes: int
    scratch_bytes: int
    kv: KVLayout
    max_positions: int
    mapped: bool = False

    @property
    def resident_bytes(self) -> int:
        """Bytes the rung occupies while it is loaded, without any tenant's cache."""
        return self.weight_bytes + self.scratch_bytes

    def kv_bytes(self, cells: int) -> int:
        """Bytes of a cache with room for ``cells`` tokens."""
        return cells * self.kv.bytes_per_token


class RouteKind(StrEnum):
    """How an attention state gets from one rung to another."""

    CARRY = "carry"  # same weights at another precision: the cache is taken as it is
    PROJECT = "project"  # un-rotate, learned map, re-rotate
    REREAD = "reread"  # drop the cache and prefill every token again: oracle and fallback of all


@dataclass(frozen=True, slots=True)
class Route:
    """How a cache gets from one rung to another; ``map_bytes`` are resident only during a switch."""

    source: str
    dest: str
    kind: RouteKind
    map_bytes: int = 0


@dataclass(frozen=True)
class Ladder:
    """Rungs from largest to smallest, and the routes between them."""

    name: str
    rungs: tuple[Rung, ...]
    routes: tuple[Route, ...]

    def __post_init__(self) -> None:
        names = [rung.name for rung in self.rungs]
        assert self.rungs, "a ladder has at least one rung"
        assert len(set(names)) == len(names), f"rung names repeat: {names}"

    @property
    def top(self) -> Rung:
        """The largest rung."""
        return self.rungs[0]

    @property
    def bottom(self) -> Rung:
        """The smallest rung."""
        return self.rungs[-1]

    def rung(self, name: str) -> Rung:
        """The rung of that name; ``KeyError`` if the ladder has none."""
        return self.rungs[self._indices[name]]

    def index(self, name: str) -> int:
        """Position of a rung, 0 at the top; ``KeyError`` if the ladder has none of that name."""
        return self._indices[name]

    def route(self, source: str, dest: str) -> Route:
        """The best known route; without one, the tokens are prefilled again."""
        return self._routes.get((source, dest)) or Route(source, dest, RouteKind.REREAD)

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {rung.name: position for position, rung in enumerate(self.rungs)}

    @cached_property
    def _routes(self) -> dict[tuple[str, str], Route]:
        return {(route.source, route.dest): route for route in self.routes}
