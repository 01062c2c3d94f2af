"""The one loop body of every world: log the fact, handle it, log what is asked, hand it over.

Worlds differ in where they call ``feed`` and in what ``perform`` does.
"""

from __future__ import annotations

from collections.abc import Callable

from molt.core.decisions import AnyDecision
from molt.core.events import AnyEvent
from molt.core.legality import Refusal
from molt.core.scheduler import Scheduler
from molt.formats.log import Log
from molt.worlds.refusals import Refusals

Perform = Callable[[AnyDecision, int], None]


class Conductor:
    """Joins a scheduler, a log and a world's ``perform(decision, seq)``.

    ``on_refusal`` is called with each refusal that differs from the one before, as the log has it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        log: Log,
        perform: Perform,
        on_refusal: Callable[[int, Refusal], None] = lambda at_ns, refusal: None,
    ) -> None:
        self.scheduler = scheduler
        self.log = log
        self.refusals = Refusals(scheduler.policy.name)
        self._perform = perform
        self._on_refusal = on_refusal
        self._last_refusal: tuple[str, str] | None = None

    def feed(self, event: AnyEvent) -> int:
        """Report a fact; returns its ``seq``. Decisions are performed before this returns."""
        cause = self.log.event(event)
        plans = self.scheduler.asked
        asked = self.scheduler.handle(event)
        if self.scheduler.asked > plans:
            self.refusals.add(event.at_ns, self.scheduler.refusal)
        self._note_refusal(event.at_ns, cause)
        for decision in asked:
            self._perform(decision, self.log.decision(decision, event.at_ns, cause))
        return cause

    def _note_refusal(self, at_ns: int, cause: int) -> None:
        refusal = self.scheduler.refusal
        key = None if refusal is None else (refusal.rule, refusal.reason)
        if refusal is not None and key != self._last_refusal:
            self.log.write("refusal", at_ns, rule=refusal.rule, reason=refusal.reason, cause=cause)
            self._on_refusal(at_ns, refusal)
        self._last_refusal = key
