"""One answer as it comes about: records of the world go in, what is to be told of them comes out.

Rules of this module:

- No clock, no I/O: times are those of the records, on the run's clock.
- A *switch* is told when it is done, with what was predicted of it and what was measured. One by reading again is done
  with the first token of the new rung; it took from the decision until then.
- What was withheld because a stop string could begin there keeps the rung that produced it.
- An answer of which something was sent cannot begin anew: when the process was killed, it ends broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from molt.core import decisions as d
from molt.core import events as e
from molt.core.ladder import RouteKind
from molt.server.stop_strings import StopStrings

MS_NS = 1_000_000
KILLED = "the process that was answering was killed"

FlopsSaved = Callable[[str, str, int, int], float | None]
"""``(source, dest, cells, native)``: the share of FLOPs that carrying a cache saves beside reading it again."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """A record of the world, when it was made, the number of a decision, and memory as it was then."""

    record: e.AnyEvent | d.AnyDecision
    at_ns: int
    seq: int | None
    budget_bytes: int
    usage_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerText:
    """Text of the answer and the rung that produced it; ``is_token`` false for what was withheld and goes out late."""

    text: str
    rung: str
    at_ns: int
    is_token: bool = True


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """Something that was done to the answer: ``fields["event"]`` names it."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """The answer is complete: ``stop`` or ``length``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """There will be no more of the answer."""

    message: str
    code: str


Part = AnswerText | AnswerEvent | End | Broken


@dataclass(frozen=True, slots=True)
class _Move:
    """A way to another rung that was decided on; ``decision`` has its prediction."""

    decision: d.Retarget
    heard: AnswerRecord


@dataclass(slots=True)
class _Healing:
    """Cells of a carried cache that are still a guess, and what was read again of them so far."""

    guessed: int
    tokens: int = 0
    steps: int = 0


class Answer:
    """Follows one tenant. ``may_begin_anew``: nothing is sent before the end, so a killed process costs time alone."""

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
        self._moves: dict[int, _Move] = {}
        self._reread: _Move | None = None
        self._healing: _Healing | None = None
        self._events: dict[str, int] = {}
        self.spans: list[tuple[str, str]] = []  # rung and text
        self.rungs: dict[str, int] = {}
        self.switches: list[dict[str, Any]] = []
        self.tokens = 0

    def hear(self, heard: AnswerRecord) -> list[Part]:
        """What a record about this tenant (or a kill) comes to, in order."""
        match heard.record:
            case e.TokensProduced():
                return self._produced(heard.record, heard)
            case e.TenantFinished():
                return [*self._late(self._stops.flush(), heard.at_ns), End(heard.record.reason)]
            case e.ProcessKilled():
                return self._killed()
            case e.TenantArrived(attempt=attempt) if attempt > self.attempt:
                self.attempt = attempt
                return [self._happening("restarted", heard, attempt=attempt)]
            case e.Switched():
                return self._switched(heard.record, heard)
            case _:
                return self._lever(heard)

    def summary(self) -> dict[str, Any]:
        """What the last chunk says of the whole answer."""
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

    def _produced(self, event: e.TokensProduced, heard: AnswerRecord) -> list[Part]:
        parts: list[Part] = self._reread_done(event, heard)
        stamps = event.stamps_ns or (event.at_ns,) * event.count
        for at_ns, piece in zip(stamps, event.pieces or ("",) * event.count, strict=True):
            self.tokens += 1
            self.rungs[event.rung] = self.rungs.get(event.rung, 0) + 1
            let_through, stopped = self._stops.push(event.rung, piece)
            late, own = _apart(let_through, event.rung)
            parts += self._late(late, at_ns)
            parts.append(self._text(own, event.rung, at_ns))
            if stopped:
                return [*parts, End("stop")]
        return [*parts, *self._healed(event, heard)]

    def _late(self, withheld: list[tuple[str, str]], at_ns: int) -> list[AnswerText]:
        return [self._text(text, rung, at_ns, is_token=False) for rung, text in withheld]

    def _text(self, text: str, rung: str, at_ns: int, *, is_token: bool = True) -> AnswerText:
        if self.spans and self.spans[-1][0] == rung:
            self.spans[-1] = (rung, self.spans[-1][1] + text)
        elif text:
            self.spans.append((rung, text))
        return AnswerText(text, rung, at_ns, is_token)

    def _healed(self, event: e.TokensProduced, heard: AnswerRecord) -> list[Part]:
        """A cell is exact where all before it are: so every step leaves one more to heal, until there is none."""
        healing = self._healing
        if healing is None:
            return []
        healing.guessed -= event.healed
        healing.tokens += event.healed
        healing.steps += event.count
        if healing.guessed > 0:
            healing.guessed += event.count
            return []
        self._healing = None
        return [self._happening("healed", heard, rung=event.rung, tokens=healing.tokens, steps=healing.steps)]

    def _killed(self) -> list[Part]:
        self.kills += 1
        if self.tokens and not self._may_begin_anew:
            return [Broken(KILLED, "killed")]
        self._reset()
        return []

    # --- levers ---

    def _lever(self, heard: AnswerRecord) -> list[Part]:
        match heard.record:
            case d.Defer():
                return [self._happening("defer", heard)]
            case d.Admit(rung=rung):
                return [self._happening("admit", heard, rung=rung)]
            case d.Demote() | d.Promote():
                self._decided(heard.record, heard)
                return []
            case d.Unpark(dest=dest):
                self._decided(heard.record, heard)
                return [self._happening("resume", heard, rung=dest)]
            case e.TenantParked(freed_bytes=freed):
                self._moves.clear()
                return [self._happening("park", heard, freed_bytes=freed)]
            case e.CacheSpilled(cells=cells, freed_bytes=freed, duration_ns=ns):
                return [self._happening("spill", heard, tokens=cells, freed_bytes=freed, ms=_ms(ns))]
            case e.CacheRestored(cells=cells, duration_ns=ns):
                return [self._happening("restore", heard, tokens=cells, ms=_ms(ns))]
            case e.ContextShed(kept_cells=kept, dropped_cells=dropped, freed_bytes=freed):
                self._healing = None
                return [
                    self._happening(
                        "shed", heard, kept_tokens=kept, dropped_tokens=dropped, freed_bytes=freed
                    )
                ]
            case e.SpillFailed(freed_bytes=freed):
                self._healing = None
                return [
                    self._happening("shed", heard, kept_tokens=0, freed_bytes=freed, because="spill failed")
                ]
            case e.RestoreFailed():
                self._healing = None
                return [self._happening("shed", heard, kept_tokens=0, because="restore failed")]
            case e.SwitchFailed(decision=seq):
                self._healing = None
                self._reread = self._moves.pop(seq or 0, None)
                return []
            case _:
                return []

    def _decided(self, decision: d.Retarget, heard: AnswerRecord) -> None:
        self._moves.clear()  # what was decided before is taken back
        self._reread = None
        if decision.route is RouteKind.REREAD:
            self._healing = None
            self._reread = _Move(decision, heard)
        elif decision.route is not None:
            self._moves[heard.seq or 0] = _Move(decision, heard)

    def _switched(self, event: e.Switched, heard: AnswerRecord) -> list[Part]:
        move = self._moves.pop(event.decision or 0, None)
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
        return [self._switch(event.source, event.dest, str(event.route), move, heard, measured, saved)]

    def _reread_done(self, event: e.TokensProduced, heard: AnswerRecord) -> list[Part]:
        """The switch that this token completes, if its cache was dropped and its text read again."""
        move, self._reread = self._reread, None
        if move is None or move.decision.source == event.rung:
            return []
        measured = {"ms": _ms(heard.at_ns - move.heard.at_ns), "kl": 0.0}
        return [self._switch(move.decision.source, event.rung, "reread", move, heard, measured, 0)]

    def _switch(
        self,
        source: str,
        dest: str,
        kind: str,
        move: _Move | None,
        heard: AnswerRecord,
        measured: dict[str, Any],
        flops_saved: float | None,
    ) -> AnswerEvent:
        prediction = d.Prediction() if move is None else move.decision.prediction
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
        return self._happening("switch", heard, because_of=None if move is None else move.heard, **fields)

    def _happening(
        self, event: str, heard: AnswerRecord, *, because_of: AnswerRecord | None = None, **fields: Any
    ) -> AnswerEvent:
        """Something that was done at the time of ``heard``, under the pressure at which it was decided."""
        self._events[event] = self._events.get(event, 0) + 1
        pressure = _pressure(because_of or heard)
        return AnswerEvent({"event": event, "at_ms": _ms(heard.at_ns), **fields, "pressure": pressure})


def _apart(let_through: list[tuple[str, str]], rung: str) -> tuple[list[tuple[str, str]], str]:
    """What goes before the last that ``rung`` produced, and that."""
    own: list[str] = []
    while let_through and let_through[-1][0] == rung:
        own.append(let_through.pop()[1])
    return let_through, "".join(reversed(own))


def _pressure(heard: AnswerRecord) -> dict[str, int]:
    return {"budget_bytes": heard.budget_bytes, "usage_bytes": heard.usage_bytes}


def _ms(duration_ns: int) -> float:
    return round(duration_ns / MS_NS, 3)
