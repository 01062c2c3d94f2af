"""The attendant of a run: a thread beside the world that lets things happen when they are due, and tells what it sees.

Rules of this module:

- It lets tenants come and go, and stops the world at the end.
- It looks at memory when a signal comes, and tells the world a budget (``budget.py``). The world hears it at its next
  boundary; that wait is part of what is measured.
- What it sees goes into the log as records of its own: ``signal`` when the process was told, ``pressure`` when others
  took or gave memory, ``kernel`` ten times a second and at the end, ``victim`` when somebody was killed.
- Whatever goes wrong in it stops the world, and is raised by ``leave``.
"""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from molt.formats.log import Log
from molt.jobs.scenario import ResolvedTenant
from molt.live.live_world import LiveWorld
from molt.live.remote import RemoteEngine
from realproc.kernel.pressure import Allocator, Holding, Targets
from realproc.kernel.signals import MS_NS
from realproc.supervisor.confinement import Confinement
from realproc.supervisor.growth import SignalWatch
from realproc.supervisor.headroom import Excess, HeadroomReporter, Share
from realproc.supervisor.step_times import StepTimes
from realproc.supervisor.victims import ALLOCATOR, ENGINE, Victims

BEGIN_LOOK_S = 0.1
HEARD_MAX = 4096
"""Newest reports of the allocator that are kept for whoever wants to know how fast it was."""
COUNT_NS = 100 * MS_NS
"""How often it writes down what the kernel has counted."""


class SharedLog(Log):
    """A log that two threads write to: the world's and the attendant's."""

    def __init__(self, sink: TextIO, header: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        super().__init__(sink, header)

    def write(self, kind: str, at_ns: int, **fields: Any) -> int:
        with self._lock:
            return super().write(kind, at_ns, **fields)

    def take(self, sink: io.StringIO) -> str:
        """What has been written to a sink in memory, which is empty then."""
        with self._lock:
            text = sink.getvalue()
            sink.seek(0)
            sink.truncate()
            return text


@dataclass(slots=True)
class RunProcesses:
    """The processes of a run, at rest and ready. The allocator may be replaced by another one.

    The engine has ``budget_bytes`` while nobody takes any of them; to begin with it is told ``told_bytes``.
    """

    engine: RemoteEngine
    allocator: Allocator
    place: Confinement
    share: Share
    budget_bytes: int
    told_bytes: int


@dataclass(frozen=True, slots=True)
class TimedAction:
    """Something that happens at a time of the run."""

    at_ns: int
    happen: Callable[[], None]


def visits(world: LiveWorld, tenants: Sequence[ResolvedTenant]) -> list[TimedAction]:
    """Who comes and goes, and when."""
    comings = [TimedAction(t.arrives_ns, _asking(world, t)) for t in tenants]
    goings = [TimedAction(t.leaves_ns, _leaving(world, t)) for t in tenants if t.leaves_ns is not None]
    return comings + goings


class Monitor:
    """``start`` it when the world begins, ``leave`` when it has ended."""

    def __init__(
        self,
        stage: RunProcesses,
        world: LiveWorld,
        log: Log,
        signal: str,
        pulse: StepTimes,
        reaction_ns: Callable[[], int],
        due: Iterable[TimedAction],
    ) -> None:
        """``signal`` is what wakes; ``InputError`` if the place has none such. ``reaction_ns`` says how long the world
        takes to give memory back, as it seems now."""
        self._pulse = pulse
        self._stage, self._world, self._log = stage, world, log
        self._signal, self._reaction_ns = signal, reaction_ns
        self._vigil, self._is_resized = self._new_vigil(), False
        self._teller, self._excess = HeadroomReporter(stage.share, stage.told_bytes), Excess()
        self._due = sorted(due, key=lambda one: one.at_ns)
        self._thread = threading.Thread(target=self._attend_or_stop, name="attendant", daemon=True)
        self._is_over = False
        self._targets: Targets = ()
        self._error: Exception | None = None
        self._start_ns = self._counted_ns = 0
        self._taken_bytes = self._held_max_bytes = self._own_max_bytes = 0
        self.heard: deque[Holding] = deque(maxlen=HEARD_MAX)
        self._toll = Victims()

    def start(self, targets: Targets = ()) -> None:
        """Begin when the world does, and have the allocator follow ``targets`` from then on."""
        self._targets = targets
        self._thread.start()

    def end(self, reason: str) -> None:
        """Stop the world; the last thing to be due."""
        try:
            self._count()
        finally:
            self._is_over = True
            self._world.stop(reason)

    @property
    def held_max_bytes(self) -> int:
        """The most that was seen in use and cannot be dropped, since this was last forgotten."""
        return self._held_max_bytes

    @property
    def taken_bytes(self) -> int:
        """What the allocator holds, by its last report."""
        return self._taken_bytes

    def resize(self, budget_bytes: int) -> None:
        """From now on the limit leaves the engine so much, and nobody takes any of it; whatever the signal, it is told.

        What is held must fit.
        """
        stage = self._stage
        stage.share, stage.budget_bytes = stage.place.resize(stage.share, budget_bytes), budget_bytes
        self._teller = HeadroomReporter(stage.share, budget_bytes)
        self._is_resized = True
        self._world.budget(budget_bytes)

    def forget_held(self) -> None:
        """``held_max_bytes`` begins anew."""
        self._held_max_bytes = 0

    def check(self) -> None:
        """Raise what has gone wrong, if anything."""
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """Go, and raise what had gone wrong, if anything."""
        self._is_over = True
        self._thread.join()
        self._vigil.close()
        self.check()

    # -- the thread

    def _attend_or_stop(self) -> None:
        try:
            while (start_ns := self._pulse.begin_ns(within_s=BEGIN_LOOK_S)) is None:
                if self._is_over:
                    return
            self._start_ns = start_ns
            if self._targets:
                self._stage.allocator.follow(self._targets, start_ns)
            while not self._is_over:
                self._attend()
        except Exception as error:
            self._error = error
            self._world.stop(f"{type(error).__name__}: {error}")

    def _attend(self) -> None:
        if self._is_resized:
            self._is_resized = False
            self._vigil.close()
            self._vigil = self._new_vigil()
        next_ns = min([self._counted_ns + COUNT_NS, *(one.at_ns for one in self._due[:1])])
        seen = self._vigil.look(self._start_ns + next_ns)
        self._note_pressure()
        self._look_at_memory(awake=self._vigil.awake(seen.at_ns))
        if self._now_ns >= self._counted_ns + COUNT_NS:
            self._count()
        while self._due and self._due[0].at_ns <= self._now_ns:
            self._due.pop(0).happen()

    def _new_vigil(self) -> SignalWatch:
        return self._stage.place.vigil(self._signal, self._stage.share, self._reaction_ns())

    @property
    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def _note_pressure(self) -> None:
        for holding in self._stage.allocator.reports():
            if holding.resident_bytes == self._taken_bytes:
                continue
            self._taken_bytes = holding.resident_bytes
            self.heard.append(holding)
            left_bytes = max(0, self._stage.budget_bytes - self._taken_bytes)
            at_ns = max(0, holding.at_ns - self._start_ns)
            self._log.write("pressure", at_ns, taken_bytes=self._taken_bytes, budget_bytes=left_bytes)

    def _look_at_memory(self, *, awake: bool) -> None:
        standing = self._stage.place.standing(self._stage.engine.pid, self._taken_bytes)
        self._held_max_bytes = max(self._held_max_bytes, standing.held_bytes)
        self._own_max_bytes = max(self._own_max_bytes, standing.own_bytes)
        excess_bytes = self._excess.see(standing, self._stage.share.base_bytes + self._pulse.booked_bytes)
        told = self._teller.hear(
            standing.beyond(excess_bytes),
            awake=awake,
            reaction_ns=self._reaction_ns(),
            kept_bytes=self._pulse.kept_bytes,
        )
        if told is None:
            return
        self._log.write(
            "signal",
            self._now_ns,
            budget_bytes=told.budget_bytes,
            held_bytes=standing.held_bytes,
            own_bytes=standing.own_bytes,
            rate_bytes_per_s=told.rate_bytes_per_s,
        )
        self._world.budget(told.budget_bytes)

    def _count(self) -> None:
        """Write down what the kernel has counted, and look who is gone."""
        stage = self._stage
        stage.place.check()
        self._counted_ns = self._now_ns
        self._toll.follow(stage.allocator.pid, ALLOCATOR)
        pid = stage.engine.pid
        if pid is not None and self._toll.follow(pid, ENGINE):
            stage.place.engine_is(pid)
        counted = stage.place.counted()
        for what, victim in self._toll.look(counted.get("kills", 0)):
            self._log.write("victim", self._counted_ns, what=what, pid=victim)
        self._log.write(
            "kernel",
            self._counted_ns,
            **counted,
            limit_bytes=stage.share.limit_bytes,
            line_bytes=stage.share.line_bytes,
            base_bytes=stage.share.base_bytes,
            held_max_bytes=self._held_max_bytes,
            own_max_bytes=self._own_max_bytes,
            major_faults=self._toll.major_faults,
        )


def _asking(world: LiveWorld, tenant: ResolvedTenant) -> Callable[[], None]:
    return lambda: world.ask(tenant.name, tenant.kind, tenant.request)


def _leaving(world: LiveWorld, tenant: ResolvedTenant) -> Callable[[], None]:
    return lambda: world.leave(tenant.name)
