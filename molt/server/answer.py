"""One answer while it is produced: records of the world go in, the parts to send to the client come out.

Rules of this module:

- No clock, no I/O: times are those of the records, on the run's clock.
- A *switch* is reported when it is complete, with its prediction and its measurement. A switch that drops the cache and
  prefills again is complete with the first token of the new rung; its duration counts from the decision.
- Text that was withheld because a stop string could begin there keeps the rung that produced it.
- An answer that has been sent in part cannot begin anew: when the engine's process is killed, it ends broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from molt.core import decisions as d
from molt.core import events as e
from molt.core.ladder import RouteKind
from molt.server.stop_strings import StopStrings
from molt.units import MS_NS

KILLED = "the engine's process was killed during this answer"

FlopsSaved = Callable[[str, str, int, int], float | None]
"""``(source, dest, cells, native)``: the share of FLOPs that a transplant saves against prefilling again."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """An event or decision of the world, its time, a decision's number in the log, and the memory at that time."""

    payload: e.AnyEvent | d.AnyDecision
    at_ns: int
    seq: int | None
    budget_bytes: int
    usage_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerText:
    """Text of the answer and the rung that produced it; ``is_token`` is false for withheld text that goes out late."""

    text: str
    rung: str
    at_ns: int
    is_token: bool = True


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """What the scheduler did with the answer: ``fields["event"]`` names it."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """The answer is complete: ``stop`` or ``length``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer ends incomplete."""

    message: str
    code: str


Part = AnswerText | AnswerEvent | End | Broken


@dataclass(frozen=True, slots=True)
class _PendingSwitch:
    """A switch that was decided but is not complete; ``decision`` has its prediction, ``record`` its time."""

    decision: d.Retarget
    record: AnswerRecord


@dataclass(slots=True)
class _Healing:
    """Cells of a transplanted cache that are still approximate, and how many were healed so far, in how many steps."""

    approximate: int
    tokens: int = 0
    steps: int = 0


class Answer:
    """The answer to one tenant. ``may_begin_anew``: nothing is sent before the end, so a kill costs only time."""

    def __init__(
        self, prompt_tokens: int, stops: tuple[str, ...], flops_saved: FlopsSaved, *, may_begin_anew: bool
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self._stop_strings = stops
        self._flops_saved = flops_saved
        self._may_begin_anew = may_begin_anew
        self.attempt = 1
        self.kills = 0
        self._reset()

    def _reset(self) -> None:
        self._stops = StopStrings(self._stop_strings)
        self._pending: dict[int, _PendingSwitch] = {}
        self._pending_prefill: _PendingSwitch | None = None
        self._healing: _Healing | None = None
        self._events: dict[str, int] = {}
        self.spans: list[tuple[str, str]] = []  # rung and text
        self.rungs: dict[str, int] = {}
        self.switches: list[dict[str, Any]] = []
        self.tokens = 0

    def observe(self, record: AnswerRecord) -> list[Part]:
        """The parts to send because of a record about this tenant (or of a kill), in order."""
        match record.payload:
            case e.TokensProduced():
                return self._produced(record.payload, record)
            case e.TenantFinished():
                return [*self._late(self._stops.flush(), record.at_ns), End(record.payload.reason)]
            case e.ProcessKilled():
                return self._killed()
            case e.TenantArrived(attempt=attempt) if attempt > self.attempt:
                self.attempt = attempt
                return [self._event("restarted", record, attempt=attempt)]
            case e.Switched():
                return self._switched(record.payload, record)
            case _:
                return self._lever(record)

    def summary(self) -> dict[str, Any]:
        """The summary of the whole answer, which the last chunk carries."""
        return {
            "event": "summary",
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "rungs": self.rungs,
            "switches": self.switches,
            "switch_ms": round(sum(switch["ms"] for switch in self.switches), 3),
            "events": self._events,
            "attempts": self.attempt,
            "killed": self.kills > 0,
        }

    # --- tokens ---

    def _produced(self, event: e.TokensProduced, record: AnswerRecord) -> list[Part]:
        parts: list[Part] = self._prefill_done(event, record)
        stamps = event.stamps_ns or (event.at_ns,) * event.count
        for at_ns, piece in zip(stamps, event.pieces or ("",) * event.count, strict=True):
            self.tokens += 1
            self.rungs[event.rung] = self.rungs.get(event.rung, 0) + 1
            let_through, stopped = self._stops.push(event.rung, piece)
            late, own = _split_late(let_through, event.rung)
            parts += self._late(late, at_ns)
            parts.append(self._text(own, event.rung, at_ns))
            if stopped:
                return [*parts, End("stop")]
        return [*parts, *self._healed(event, record)]

    def _late(self, withheld: list[tuple[str, str]], at_ns: int) -> list[AnswerText]:
        return [self._text(text, rung, at_ns, is_token=False) for rung, text in withheld]

    def _text(self, text: str, rung: str, at_ns: int, *, is_token: bool = True) -> AnswerText:
        if self.spans and self.spans[-1][0] == rung:
            self.spans[-1] = (rung, self.spans[-1][1] + text)
        elif text:
            self.spans.append((rung, text))
        return AnswerText(text, rung, at_ns, is_token)

    def _healed(self, event: e.TokensProduced, record: AnswerRecord) -> list[Part]:
        """A cell is exact where all before it are, so every step leaves one more to heal, until none is left."""
        healing = self._healing
        if healing is None:
            return []
        healing.approximate -= event.healed
        healing.tokens += event.healed
        healing.steps += event.count
        if healing.approximate > 0:
            healing.approximate += event.count
            return []
        self._healing = None
        return [self._event("healed", record, rung=event.rung, tokens=healing.tokens, steps=healing.steps)]

    def _killed(self) -> list[Part]:
        self.kills += 1
        if self.tokens and not self._may_begin_anew:
            return [Broken(KILLED, "killed")]
        self._reset()
        return []

    # --- levers ---

    def _lever(self, record: AnswerRecord) -> list[Part]:
        match record.payload:
            case d.Defer():
                return [self._event("defer", record)]
            case d.Admit(rung=rung):
                return [self._event("admit", record, rung=rung)]
            case d.Demote() | d.Promote():
                self._decided(record.payload, record)
                return []
            case d.Unpark(dest=dest):
                self._decided(record.payload, record)
                return [self._event("resume", record, rung=dest)]
            case e.TenantParked(freed_bytes=freed):
                self._pending.clear()
                return [self._event("park", record, freed_bytes=freed)]
            case e.CacheSpilled(cells=cells, freed_bytes=freed, duration_ns=ns):
                return [self._event("spill", record, tokens=cells, freed_bytes=freed, ms=_ms(ns))]
            case e.CacheRestored(cells=cells, duration_ns=ns):
                return [self._event("restore", record, tokens=cells, ms=_ms(ns))]
            case e.ContextShed(kept_cells=kept, dropped_cells=dropped, freed_bytes=freed):
                self._healing = None
                return [
                    self._event("shed", record, kept_tokens=kept, dropped_tokens=dropped, freed_bytes=freed)
                ]
            case e.SpillFailed(freed_bytes=freed):
                self._healing = None
                return [self._event("shed", record, kept_tokens=0, freed_bytes=freed, because="spill failed")]
            case e.RestoreFailed():
                self._healing = None
                return [self._event("shed", record, kept_tokens=0, because="restore failed")]
            case e.SwitchFailed(decision=seq):
                self._healing = None
                self._pending_prefill = self._pending.pop(seq or 0, None)
                return []
            case _:
                return []

    def _decided(self, decision: d.Retarget, record: AnswerRecord) -> None:
        self._pending.clear()  # a newer decision takes back the one before
        self._pending_prefill = None
        if decision.route is RouteKind.REREAD:
            self._healing = None
            self._pending_prefill = _PendingSwitch(decision, record)
        elif decision.route is not None:
            self._pending[record.seq or 0] = _PendingSwitch(decision, record)

    def _switched(self, event: e.Switched, record: AnswerRecord) -> list[Part]:
        pending = self._pending.pop(event.decision or 0, None)
        settled = event.cells if event.settled is None else event.settled
        self._healing = _Healing(event.cells - settled) if settled < event.cells else None
        measured = {
            "ms": _ms(event.duration_ns),
            "kl": None if event.handoff is None else event.handoff.kl,
            "tokens": event.cells,
            "native_tokens": event.native,
            "exact_tokens": settled,
        }
        saved = self._flops_saved(event.source, event.dest, event.cells, event.native)
        return [self._switch(event.source, event.dest, str(event.route), pending, record, measured, saved)]

    def _prefill_done(self, event: e.TokensProduced, record: AnswerRecord) -> list[Part]:
        """The switch that this token completes, if its cache was dropped and its text prefilled again."""
        pending, self._pending_prefill = self._pending_prefill, None
        if pending is None or pending.decision.source == event.rung:
            return []
        measured = {"ms": _ms(record.at_ns - pending.record.at_ns), "kl": 0.0}
        return [self._switch(pending.decision.source, event.rung, "reread", pending, record, measured, 0)]

    def _switch(
        self,
        source: str,
        dest: str,
        kind: str,
        pending: _PendingSwitch | None,
        record: AnswerRecord,
        measured: dict[str, Any],
        flops_saved: float | None,
    ) -> AnswerEvent:
        prediction = d.Prediction() if pending is None else pending.decision.prediction
        fields = {
            "from": source,
            "to": dest,
            "kind": kind,
            "ms": measured["ms"],
            "flops_saved": flops_saved,
            "predicted": {"ms": _ms(prediction.duration_ns), "kl": prediction.kl},
            "measured": measured,
        }
        self.switches.append({"after_tokens": self.tokens, **fields})
        return self._event("switch", record, because_of=None if pending is None else pending.record, **fields)

    def _event(
        self, event: str, record: AnswerRecord, *, because_of: AnswerRecord | None = None, **fields: Any
    ) -> AnswerEvent:
        """An event at the time of ``record``, with the memory pressure at its decision."""
        self._events[event] = self._events.get(event, 0) + 1
        pressure = _pressure(because_of or record)
        return AnswerEvent({"event": event, "at_ms": _ms(record.at_ns), **fields, "pressure": pressure})


def _split_late(let_through: list[tuple[str, str]], rung: str) -> tuple[list[tuple[str, str]], str]:
    """What precedes the last text that ``rung`` produced, and that text."""
    own: list[str] = []
    while let_through and let_through[-1][0] == rung:
        own.append(let_through.pop()[1])
    return let_through, "".join(reversed(own))


def _pressure(record: AnswerRecord) -> dict[str, int]:
    return {"budget_bytes": record.budget_bytes, "usage_bytes": record.usage_bytes}


def _ms(duration_ns: int) -> float:
    return round(duration_ns / MS_NS, 3)
