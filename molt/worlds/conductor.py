"""The one loop body of every world: log the fact, handle it, log what is asked, hand it over.

Worlds differ in who calls ``feed`` and in what ``perform`` does.
"""

from __future__ import annotations

from collections.abc import Callable

from molt.core.decisions import AnyDecision
from molt.core.events import AnyEvent
from molt.core.scheduler import Scheduler
from molt.formats.log import Log

Perform = Callable[[AnyDecision, int], None]


class Conductor:
    """Joins a scheduler, a log and a world's ``perform(decision, seq)``."""

    def __init__(self, scheduler: Scheduler, log: Log, perform: Perform) -> None:
        self.scheduler = scheduler
        self.log = log
        self._perform = perform
        self._last_refusal: tuple[str, str] | None = None

    def feed(self, event: AnyEvent) -> int:
        """Report a fact; returns its ``seq``. Decisions are performed before this returns."""
        cause = self.log.event(event)
        asked = self.scheduler.handle(event)
        self._note_refusal(event.at_ns, cause)
        for decision in asked:
            self._perform(decision, self.log.decision(decision, event.at_ns, cause))
        return cause

    def _note_refusal(self, at_ns: int, cause: int) -> None:
        refusal = self.scheduler.refusal
        key = None if refusal is None else (refusal.rule, refusal.reason)
        if refusal is not None and key != self._last_refusal:
            self.log.write("refusal", at_ns, rule=refusal.rule, reason=refusal.reason, cause=cause)
        self._last_refusal = key
