"""The monitor of a run: a thread beside the world that runs timed actions, reports budgets, and logs what it observes.

Rules of this module:

- Its actions let tenants arrive and leave, and stop the world at the end.
- It looks at memory when a signal comes, and reports a budget to the world (``headroom.py``). The world takes it at its
  next boundary; that wait is part of what is measured.
- It writes log records of its own: ``signal`` when a budget was reported, ``pressure`` when others took or gave back
  memory, ``kernel`` ten times a second and at the end, ``victim`` when a process was killed.
- An error in its thread stops the world, and is raised by ``join``.
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
from molt.units import MS_NS
from realproc.kernel.pressure import Allocator, Holding, Targets
from realproc.supervisor.confinement import Confinement
from realproc.supervisor.growth import SignalWatch
from realproc.supervisor.headroom import Excess, HeadroomReporter, Share
from realproc.supervisor.step_times import StepTimes
from realproc.supervisor.victims import ALLOCATOR, ENGINE, Victims

BEGIN_LOOK_S = 0.1
REPORTS_MAX = 4096
"""So many reports of the allocator are kept, the newest: a trial computes from them how fast it took memory."""
COUNT_NS = 100 * MS_NS
"""How often the kernel's counters are logged."""


class SharedLog(Log):
    """A log that two threads write to: the world's and the monitor's."""

    def __init__(self, sink: TextIO, header: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        super().__init__(sink, header)

    def write(self, kind: str, at_ns: int, **fields: Any) -> int:
        with self._lock:
            return super().write(kind, at_ns, **fields)

    def take(self, sink: io.StringIO) -> str:
        """Take out what has been written to a sink in memory; it is empty afterwards."""
        with self._lock:
            text = sink.getvalue()
            sink.seek(0)
            sink.truncate()
            return text


@dataclass(slots=True)
class RunProcesses:
    """The processes of a run, at rest and ready. The allocator may be replaced by another one.

    ``budget_bytes`` is what the limit leaves to the engine while others take nothing; ``reported_bytes`` is the budget
    that the world begins with.
    """

    engine: RemoteEngine
    allocator: Allocator
    confinement: Confinement
    share: Share
    budget_bytes: int
    reported_bytes: int


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action, and the time of the run at which it is due."""

    at_ns: int
    run: Callable[[], None]


def tenant_actions(world: LiveWorld, tenants: Sequence[ResolvedTenant]) -> list[TimedAction]:
    """Every tenant's arrival, and its departure if it leaves."""
    arrivals = [TimedAction(t.arrives_ns, _arrival(world, t)) for t in tenants]
    departures = [TimedAction(t.leaves_ns, _departure(world, t)) for t in tenants if t.leaves_ns is not None]
    return arrivals + departures


class Monitor:
    """``start`` it when the world begins, ``join`` it when the world has ended."""

    def __init__(
        self,
        processes: RunProcesses,
        world: LiveWorld,
        log: Log,
        signal: str,
        step_times: StepTimes,
        reaction_ns: Callable[[], int],
        actions: Iterable[TimedAction],
    ) -> None:
        """``signal`` is the name of the signal; ``InputError`` if the confinement has no such signal. ``reaction_ns``
        gives the time in which the world gives memory back, as estimated now."""
        self._step_times = step_times
        self._processes, self._world, self._log = processes, world, log
        self._signal, self._reaction_ns = signal, reaction_ns
        self._watch, self._is_resized = self._open_watch(), False
        self._reporter = HeadroomReporter(processes.share, processes.reported_bytes)
        self._excess = Excess(processes.share.base_bytes)
        self._actions = sorted(actions, key=lambda one: one.at_ns)
        self._thread = threading.Thread(target=self._run_or_stop, name="monitor", daemon=True)
        self._is_over = False
        self._targets: Targets = ()
        self._error: Exception | None = None
        self._start_ns = self._counted_ns = 0
        self._taken_bytes = self._held_max_bytes = self._own_max_bytes = 0
        self.reports: deque[Holding] = deque(maxlen=REPORTS_MAX)
        self._victims = Victims()

    def start(self, targets: Targets = ()) -> None:
        """Begin when the world does, and have the allocator follow ``targets`` from then on."""
        self._targets = targets
        self._thread.start()

    def stop_world(self, reason: str) -> None:
        """Log the counters a last time, and stop the world."""
        try:
            self._log_counters()
        finally:
            self._is_over = True
            self._world.stop(reason)

    @property
    def held_max_bytes(self) -> int:
        """The most that was held since the last ``reset_held_max``, as far as it was seen."""
        return self._held_max_bytes

    @property
    def taken_bytes(self) -> int:
        """What the allocator holds, by its last report."""
        return self._taken_bytes

    def resize(self, budget_bytes: int) -> None:
        """Set the limit that leaves this budget while others take nothing, and report it, whatever the signal.

        What is held must fit below the new limit.
        """
        processes = self._processes
        processes.share = processes.confinement.resize(processes.share, budget_bytes)
        processes.budget_bytes = budget_bytes
        self._reporter = HeadroomReporter(processes.share, budget_bytes)
        self._is_resized = True
        self._world.budget(budget_bytes)

    def reset_held_max(self) -> None:
        """``held_max_bytes`` begins anew."""
        self._held_max_bytes = 0

    def check(self) -> None:
        """Raise the error of the thread, if there was one."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """End the thread, and raise its error, if there was one."""
        self._is_over = True
        self._thread.join()
        self._watch.close()
        self.check()

    # -- the thread

    def _run_or_stop(self) -> None:
        try:
            while (start_ns := self._step_times.begin_ns(within_s=BEGIN_LOOK_S)) is None:
                if self._is_over:
                    return
            self._start_ns = start_ns
            if self._targets:
                self._processes.allocator.follow(self._targets, start_ns)
            while not self._is_over:
                self._look()
        except Exception as error:
            self._error = error
            self._world.stop(f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        if self._is_resized:
            self._is_resized = False
            self._watch.close()
            self._watch = self._open_watch()
        next_ns = min([self._counted_ns + COUNT_NS, *(one.at_ns for one in self._actions[:1])])
        seen = self._watch.look(self._start_ns + next_ns)
        self._log_pressure()
        self._report_budget(awake=self._watch.awake(seen.at_ns))
        if self._now_ns >= self._counted_ns + COUNT_NS:
            self._log_counters()
        while self._actions and self._actions[0].at_ns <= self._now_ns:
            self._actions.pop(0).run()

    def _open_watch(self) -> SignalWatch:
        return self._processes.confinement.watch(self._signal, self._processes.share, self._reaction_ns())

    @property
    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def _log_pressure(self) -> None:
        for holding in self._processes.allocator.reports():
            if holding.taken_bytes == self._taken_bytes:
                continue
            self._taken_bytes = holding.taken_bytes
            self.reports.append(holding)
            budget_bytes = max(0, self._processes.budget_bytes - self._taken_bytes)
            at_ns = max(0, holding.at_ns - self._start_ns)
            self._log.write("pressure", at_ns, taken_bytes=self._taken_bytes, budget_bytes=budget_bytes)

    def _report_budget(self, *, awake: bool) -> None:
        standing = self._processes.confinement.standing(self._processes.engine.pid, self._taken_bytes)
        self._held_max_bytes = max(self._held_max_bytes, standing.held_bytes)
        self._own_max_bytes = max(self._own_max_bytes, standing.own_bytes)
        excess_bytes = self._excess.observe(standing, self._step_times.booked_bytes)
        reported = self._reporter.report(
            standing.with_excess(excess_bytes),
            awake=awake,
            reaction_ns=self._reaction_ns(),
            cache_bytes=self._step_times.cache_bytes,
        )
        if reported is None:
            return
        self._log.write(
            "signal",
            self._now_ns,
            budget_bytes=reported.budget_bytes,
            held_bytes=standing.held_bytes,
            own_bytes=standing.own_bytes,
            rate_bytes_per_s=reported.rate_bytes_per_s,
        )
        self._world.budget(reported.budget_bytes)

    def _log_counters(self) -> None:
        """Log the kernel's counters, and the processes that it has killed."""
        processes = self._processes
        processes.confinement.check()
        self._counted_ns = self._now_ns
        self._victims.follow(processes.allocator.pid, ALLOCATOR)
        pid = processes.engine.pid
        if pid is not None and self._victims.follow(pid, ENGINE):
            processes.confinement.adopt_engine(pid)
        counters = processes.confinement.counters()
        for what, victim in self._victims.newly_gone(counters.get("kills", 0)):
            self._log.write("victim", self._counted_ns, what=what, pid=victim)
        self._log.write(
            "kernel",
            self._counted_ns,
            **counters,
            limit_bytes=processes.share.limit_bytes,
            line_bytes=processes.share.line_bytes,
            base_bytes=processes.share.base_bytes,
            held_max_bytes=self._held_max_bytes,
            own_max_bytes=self._own_max_bytes,
            major_faults=self._victims.major_faults,
        )


def _arrival(world: LiveWorld, tenant: ResolvedTenant) -> Callable[[], None]:
    return lambda: world.ask(tenant.name, tenant.kind, tenant.request)


def _departure(world: LiveWorld, tenant: ResolvedTenant) -> Callable[[], None]:
    return lambda: world.leave(tenant.name)
