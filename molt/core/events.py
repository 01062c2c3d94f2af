"""Facts, reported by a world and by nothing else. All are frozen, all carry the time at which they became true.

Times are integer nanoseconds since the start of the run, sizes integer bytes, lengths integer tokens.
An event with a ``decision`` is the outcome of that decision: the sequence number it has in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TenantKind(StrEnum):
    """Priority of a tenant: a person waits for a foreground answer; a batch answer gives way to it."""

    FOREGROUND = "foreground"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Anything that happened."""

    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChanged(Event):
    """The OS allows this many bytes from now on."""

    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantArrived(Event):
    """A request came in. ``attempt`` counts from 1; a killed request that comes back has a higher one."""

    tenant: str
    tenant_kind: TenantKind
    prompt_tokens: int
    max_tokens: int
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantCancelled(Event):
    """The client does not want the answer any more."""

    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled(Event):
    """The OS killed the process: every weight, cache and unfinished answer is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Event):
    """The process came up, cold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Event):
    """The deadline that the scheduler had named has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungLoaded(Event):
    """A rung's weights are resident."""

    rung: str
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgressed(Event):
    """A slice of a rung that no tenant waits for was loaded; the next turn is a tenant's."""

    rung: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed(Event):
    """A rung could not be brought in; nothing of it is resident."""

    rung: str
    reason: str
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReleased(Event):
    """A rung's weights went back to the OS, but for ``withheld_bytes``, which stay until it is loaded again."""

    rung: str
    freed_bytes: int
    withheld_bytes: int = 0
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantParked(Event):
    """A tenant's cache was trimmed to what it holds and put aside."""

    tenant: str
    freed_bytes: int
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpilled(Event):
    """A parked tenant's cache is on disk and no longer in memory."""

    tenant: str
    cells: int
    freed_bytes: int
    duration_ns: int
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillFailed(Event):
    """A cache could not be written; it was dropped, as its memory had to go, and its tokens will be prefilled again."""

    tenant: str
    freed_bytes: int
    reason: str
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRestored(Event):
    """A spilled cache is back in memory, bit for bit."""

    tenant: str
    cells: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFailed(Event):
    """What came back from disk was not what was written, or nothing came back; the tokens will be prefilled again."""

    tenant: str
    dest: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShed(Event):
    """A tenant's oldest context is gone, ``dropped_cells`` of it; ``kept_cells`` remain, or none, and then the tokens
    are prefilled again."""

    tenant: str
    kept_cells: int
    dropped_cells: int
    freed_bytes: int
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """Quality of one switch, measured against the destination's own cache.

    ``kl``: KL(native || carried), nats, mean over the continuation; ``jsd``: JSD of source and carried, first
    token; ``jsd_floor``: the same for source and native; ``recovered_context``: (NLL none - NLL carried) /
    (NLL none - NLL native).
    """

    kl: float
    jsd: float
    jsd_floor: float
    recovered_context: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched(Event):
    """A tenant's cache now belongs to another rung; its first ``settled`` cells need no healing (``None``: all).

    ``native`` of its last tokens were prefilled by that rung itself; ``predicted_kl`` is what the decision expected of
    the ``handoff``.
    """

    tenant: str
    source: str
    dest: str
    route: str
    cells: int
    duration_ns: int
    settled: int | None = None
    native: int = 0
    predicted_kl: float = 0.0
    handoff: Handoff | None = None
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchFailed(Event):
    """The cache could not be carried; it was dropped and the tokens will be prefilled again."""

    tenant: str
    source: str
    dest: str
    reason: str
    decision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRead(Event):
    """Known tokens were prefilled (the prompt, or tokens whose cells were dropped)."""

    tenant: str
    rung: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensProduced(Event):
    """A run of new tokens; ``stamps_ns`` has the completion time of each, ``pieces`` their text (real engine).

    Its steps healed ``healed`` cells as well, ``heal`` each until there were no more.
    """

    tenant: str
    rung: str
    count: int
    stamps_ns: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()
    heal: int = 0
    healed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFinished(Event):
    """The answer is complete: ``stop`` or ``length``."""

    tenant: str
    reason: str


Outcome = (
    RungLoaded
    | LoadFailed
    | RungReleased
    | TenantParked
    | CacheSpilled
    | SpillFailed
    | ContextShed
    | Switched
    | SwitchFailed
)
AnyEvent = (
    BudgetChanged
    | TenantArrived
    | TenantCancelled
    | ProcessKilled
    | ProcessStarted
    | TimerFired
    | LoadProgressed
    | PromptRead
    | TokensProduced
    | TenantFinished
    | CacheRestored
    | RestoreFailed
    | Outcome
)
