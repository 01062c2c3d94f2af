"""What a world asks of an engine. No type of any tensor library appears here.

An engine holds truth: the weights that are resident and the caches of the tenants. It has no policy, and no clock but
the one by which it stops loading in time.
Token positions: with ``known`` tokens (prompt and produced so far), a decode step feeds the last known token and
yields the next; so before it the cache holds ``known - 1`` tokens (fewer cells after a shed). The last known
token is therefore always processed by the rung that answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from molt.core.events import Handoff
from molt.core.ladder import RouteKind

SINKS = 4
"""First cells that a shed keeps, and that are prefilled natively in a projected switch: attention parks its unused mass
there."""


class EngineKind(StrEnum):
    """Real model steps, or their costs only."""

    REAL = "real"
    MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class Request:
    """One answer asked for. ``stop_at_eos`` false means exactly ``max_tokens`` tokens are wanted.

    ``top_k`` 0: any number of tokens may be chosen from; ``min_p`` 0: however unlikely they are.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_at_eos: bool
    temperature: float
    top_p: float
    seed: int
    top_k: int = 0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Destination:
    """How a cache gets to the rung ``dest``: by ``route``, into room for ``capacity`` cells. The last ``native``
    tokens of a projected cache are prefilled by ``dest`` itself."""

    dest: str
    route: RouteKind
    capacity: int
    native: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """One run of ``count`` tokens: ids and text (a piece holds whole characters, so some are empty), both empty
    where an engine models only costs, and why it ended: ``None`` (not at an end), ``"stop"`` (end-of-text
    produced) or ``"length"``."""

    count: int
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    finish: str | None


class LoadError(Exception):
    """A rung could not be brought in. Nothing of it is resident."""


class SwitchError(Exception):
    """A cache could not be carried. The tenant's old cache is intact."""


class SpillError(Exception):
    """A cache could not be written to disk, or did not come back as it was."""


class EngineDied(Exception):
    """The process of an engine is gone, and everything it held.

    ``status`` is its exit status, negative for the signal that ended it; ``None`` where that is not known.
    ``tenant`` is the one whose call it was at when it failed by itself; ``None`` if it was killed, or idle.
    """

    def __init__(self, reason: str, status: int | None = None, tenant: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.tenant = tenant


class Engine(Protocol):
    """The contract of ``molt.engine.real`` and ``molt.engine.modelled``."""

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        """Bring a rung's weights in; whether all of them are there. Idempotent.

        With ``within_ns`` it may stop near that time, and the next call goes on; ``release`` abandons what is there
        so far. Raises ``LoadError`` if there is no memory for it.
        """

    def release(self, rung: str) -> int:
        """Give a rung's weights back; returns the bytes freed."""

    def admit(self, tenant: str, request: Request, rung: str, capacity: int) -> None:
        """Open a generation with an empty cache of ``capacity`` cells in the geometry of ``rung``."""

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        """Prefill the next ``tokens`` known tokens on the rung of the cache, ``chunk`` at a time.

        With ``within_ns``, and no more tokens than one chunk, it may raise ``Unfinished`` between two layers near that
        time, and the same call again goes on. Until it is done no token counts as prefilled, and any other call but
        ``admit`` and ``load`` drops what there is of it.
        """

    def decode(self, tenant: str, count: int, heal: int = 0) -> Decoded:
        """Produce up to ``count`` tokens, fewer only at the end of the answer.

        Every step heals ``heal`` of the cells that are not settled, see ``molt.core.healing``.
        """

    def settled_cells(self, tenant: str) -> int:
        """The first cells of a tenant's cache that need no healing: exact, or (after a shed) beyond it."""

    def switch(self, tenant: str, destination: Destination, within_ns: int | None = None) -> Handoff | None:
        """Take the cache to another rung, which is resident; raises ``SwitchError`` and changes nothing if it cannot.

        With ``within_ns`` it may raise ``Unfinished`` near that time, and the same call again goes on; until it is
        done the old cache is as it was, and any other call that changes it abandons the switch, as releasing the
        rung it goes to does.

        Returns the measured quality where the engine measures it. Never called with ``REREAD``: the world sheds
        to 0 and prefills again.
        """

    def park(self, tenant: str) -> int:
        """Trim the cache to the cells it holds; returns the bytes freed."""

    def grow(self, tenant: str, capacity: int) -> None:
        """Give a cache room for ``capacity`` cells (the reverse of ``park``)."""

    def spill(self, tenant: str) -> int:
        """Write a trimmed cache to disk and free its memory; returns the bytes freed.

        Raises ``SpillError`` and changes nothing if it cannot be written.
        """

    def restore(self, tenant: str) -> None:
        """Read a spilled cache back into the room that ``grow`` made for it, bit for bit.

        Raises ``SpillError`` if what is on disk is not what was written; then the cells are lost.
        """

    def shed(self, tenant: str, keep_cells: int, rung: str) -> int:
        """Keep the first cells (attention sinks) and the most recent ones, ``keep_cells`` in all, trimmed.

        With 0 the cache is dropped, takes the geometry of ``rung``, and every known token is to be prefilled again.
        Returns the bytes freed.
        """

    def finish(self, tenant: str) -> None:
        """Forget a tenant and free its cache."""

    def kill(self) -> None:
        """Lose everything at once."""

    def cache_bytes(self, tenant: str) -> int:
        """Bytes allocated for a tenant's cache."""

    def weight_bytes(self, rung: str) -> int:
        """Bytes allocated for a rung's weights, 0 when it is not resident."""
