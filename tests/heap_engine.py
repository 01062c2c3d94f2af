"""simpy's part in the simulator, again, over a heap: the other engine of a differential test.

It has what ``sim/world.py`` and ``sim/oom_killer.py`` ask of simpy and nothing else: events in order of time, then
urgency, then of being scheduled; generators that wait for one event at a time and can be interrupted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Any

URGENT, NORMAL = 0, 1


class Interrupt(Exception):
    """Thrown into a process that is interrupted."""


class Event:
    """Something that will happen; what waits for it is called then."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks: list[Callable[[Event], None]] = []
        self.triggered = False

    def succeed(self) -> Event:
        """Let it happen now."""
        self.env.schedule(self, 0, NORMAL)
        return self


class Process(Event):
    """A generator that is under way; as an event, its end."""

    def __init__(self, env: Environment, work: Generator[Event, Any, Any]) -> None:
        super().__init__(env)
        self._work = work
        self._wake(self._go_on)

    def _wake(self, how: Callable[[Event], None]) -> None:
        event = Event(self.env)
        event.callbacks.append(how)
        self.env.schedule(event, 0, URGENT)
        self._waiting_for = event

    def interrupt(self, cause: str) -> None:
        """Throw ``Interrupt`` into it, before anything else that happens now."""
        target, event = self._waiting_for, Event(self.env)

        def throw(_: Event) -> None:
            if not self.triggered:
                target.callbacks.remove(self._go_on)
                self._advance(lambda: self._work.throw(Interrupt(cause)))

        event.callbacks.append(throw)
        self.env.schedule(event, 0, URGENT)

    def _go_on(self, event: Event) -> None:
        self._advance(lambda: self._work.send(None))

    def _advance(self, step: Callable[[], Event]) -> None:
        try:
            self._waiting_for = step()
        except StopIteration:
            self.env.schedule(self, 0, NORMAL)
        else:
            self._waiting_for.callbacks.append(self._go_on)


class Environment:
    """The clock and what is to come."""

    def __init__(self, initial_time: int = 0) -> None:
        self.now = initial_time
        self._queue: list[tuple[int, int, int, Event]] = []
        self._scheduled = 0

    def schedule(self, event: Event, delay: int, urgency: int) -> None:
        """Put an event into the queue."""
        event.triggered = True
        self._scheduled += 1
        heapq.heappush(self._queue, (self.now + delay, urgency, self._scheduled, event))

    def event(self) -> Event:
        """An event that happens when ``succeed`` is called."""
        return Event(self)

    def timeout(self, delay: int) -> Event:
        """An event that happens by itself."""
        event = Event(self)
        self.schedule(event, delay, NORMAL)
        return event

    def process(self, work: Generator[Event, Any, Any]) -> Process:
        """Set a generator going."""
        return Process(self, work)

    def peek(self) -> float:
        """When the next event happens."""
        return self._queue[0][0] if self._queue else float("inf")

    def run(self, until: int) -> None:
        """Let everything before ``until`` happen, which is an event as well: ``peek`` gives it."""
        self.schedule(Event(self), until - self.now, URGENT)
        while self.peek() < until:
            self.now, _, _, event = heapq.heappop(self._queue)
            for callback in list(event.callbacks):
                callback(event)
        self.now = until
