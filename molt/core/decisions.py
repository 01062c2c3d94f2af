"""Requests of the scheduler to its world. Lever = the kind, Decision = the instance.

Every decision carries its prediction; the world answers with an outcome event that carries the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from molt.core.ladder import RouteKind


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a decision is expected to do: bytes it frees for good (negative: takes), the highest usage until
    then, its duration and the KL to the native cache (nats) it costs."""

    freed_bytes: int = 0
    peak_bytes: int = 0
    duration_ns: int = 0
    kl: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Anything asked for."""

    prediction: Prediction = Prediction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(Decision):
    """Give a waiting tenant a cache of ``capacity`` cells on a rung."""

    tenant: str
    rung: str
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer(Decision):
    """Lever 1: let a newcomer wait."""

    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retarget(Decision):
    """Let a tenant go on with the rung ``dest``.

    ``route`` is how its cache gets there; ``None`` means that it already has the geometry of ``dest``. ``capacity`` is
    the room, in cells, that the cache is to have there; until then it is trimmed to what it holds. ``native`` of its
    last tokens are prefilled by ``dest`` itself instead of going through the map.
    """

    tenant: str
    source: str
    dest: str
    route: RouteKind | None
    capacity: int
    native: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote(Retarget):
    """Lever 2: let a tenant go on with a smaller rung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(Retarget):
    """Recovery of lever 2: let a tenant go on with a larger rung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Park(Decision):
    """Lever 3: stop a tenant, trim its cache to what it holds and keep that."""

    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpark(Retarget):
    """Recovery of lever 3: let a parked tenant go on, on the rung of its cache or another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill(Decision):
    """Lever 4: write a parked tenant's cache to disk, with a checksum, and free its memory."""

    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed(Decision):
    """Lever 5 and last: drop a parked tenant's oldest context down to ``keep_cells``; 0 drops the cache and the
    tokens are prefilled again later."""

    tenant: str
    keep_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal(Decision):
    """Let every decode step of a tenant heal ``tokens`` cells of its carried cache; 0 pauses that."""

    tenant: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Decision):
    """Give a rung's weights back to the OS, or abandon a load that is under way."""

    rung: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Decision):
    """Bring a rung's weights in."""

    rung: str


AnyDecision = Admit | Defer | Demote | Promote | Park | Unpark | Spill | Shed | Heal | Release | Load
