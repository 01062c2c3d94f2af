"""One subject of a campaign: a policy's process in a group of its own, put under pressure in trial after trial.

Rules of this module:

- The process lives on from trial to trial, as a service does, until the kernel kills it. Then the world starts it
  again, cold, as in any run; the tenant whose answer was lost leaves, and the next trial begins.
- In a trial a tenant asks. After some tokens others take memory, until a set amount is left to the process, and hold it
  until the answer is complete or the process is dead. Then they give it back.
- The world has a thread of its own, which starts the engine and stays, because the engine dies with that thread. Trials
  run in the main thread.
- A trial is judged by the kernel's counter and by the process that is gone, not by what the world believes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from molt.core import events as e
from molt.jobs.job import Job
from molt.live.live_world import LiveWorld, WorldRecord
from molt.live.remote import ChildSpec
from molt.units import MIB, MS_NS, SECOND_NS, show_size
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Allocator, AllocatorSpec, Holding, Manner
from realproc.supervisor.engine_process import WarmEngine
from realproc.supervisor.monitor import Monitor, SharedLog
from realproc.supervisor.real_run import (
    Contender,
    Setting,
    confinement_for,
    engine_spec,
    largest_budget,
    log_header,
    longest_step_ns,
    reaction_time,
    set_up_processes,
    start_errors,
)
from realproc.supervisor.step_times import StepTimes
from realproc.supervisor.victims import major_faults
from reports.real_processes import reliefs
from reports.run_log import RunLog

SPAN_NS = 5 * MS_NS
PAGES_A_TABLE = 512
"""For so many small pages, or for the huge one in their place, the kernel keeps another as their table."""
TRIAL_LOOK_S = 0.002
PATIENCE_S = 60.0
"""How long each wait of a trial may take before the trial is void; an answer may take its predicted time besides."""
SLOWER_MAX = 4
"""How many times its predicted time an answer may take."""
AFTER_S = 0.15
"""How long a process is watched after others have taken all they were to take: a kill comes at once or not at all."""


class VoidError(Exception):
    """The reason why a trial says nothing."""


@dataclass(frozen=True, slots=True)
class PressureStep:
    """The pressure of a trial: after ``tokens`` of the answer, others take memory in a manner until ``left_bytes`` are
    left of the ``budget_bytes`` that the process had when it was asked."""

    manner: Manner
    tokens: int
    budget_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class ReliefParts:
    """A release of weights in a trial: the waits for the signal (since memory was short; ``None``: it never was),
    for the boundary and for the release; the times of loading the smaller rung and of the transplant; and what was
    held when the budget was reported."""

    signal_ns: int | None
    boundary_ns: int
    release_ns: int
    load_ns: int | None
    transplant_ns: int | None
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome of a trial.

    ``kills`` is what the kernel counted meanwhile, ``victim`` the process id of the engine if it is gone. ``rungs`` are
    those that the tokens came from, in order. ``fastest_bytes_per_s`` is how fast others really took memory,
    ``over_line_bytes`` the most that was held above ``line_bytes``.
    """

    kills: int
    victim: int | None
    tokens: int
    rungs: tuple[str, ...]
    limit_bytes: int
    line_bytes: int
    peak_bytes: int | None
    over_line_bytes: int
    fastest_bytes_per_s: int
    reliefs: tuple[ReliefParts, ...]
    lasted_s: float


class TrialListener:
    """Follows the records of a world, for a thread that waits for one of them."""

    def __init__(self, step_times: StepTimes) -> None:
        self._step_times, self._news = step_times, threading.Condition()
        self.budget_bytes = 0
        self.is_up = True
        self.tokens: list[str] = []
        self.is_finished = False

    def on_record(self, record: WorldRecord) -> None:
        """Take one record, in the world's thread."""
        self._step_times.on_record(record)
        with self._news:
            match record:
                case e.BudgetChanged():
                    self.budget_bytes = record.budget_bytes
                case e.TokensProduced():
                    self.tokens += [record.rung] * record.count
                case e.TenantFinished():
                    self.is_finished = True
                case e.ProcessKilled():
                    self.is_up = False
                case e.ProcessStarted():
                    self.is_up = True
                case _:
                    return
            self._news.notify_all()

    def begin(self) -> None:
        """Forget the last answer, not the budget."""
        with self._news:
            self.tokens, self.is_finished = [], False

    def wait(
        self, fulfilled: Callable[[TrialListener], bool], what: str, within_s: float | None = None
    ) -> None:
        """Wait for a condition; ``VoidError`` if that takes longer than ``within_s`` (``PATIENCE_S`` by default)."""
        with self._news:
            if not self._news.wait_for(lambda: fulfilled(self), PATIENCE_S if within_s is None else within_s):
                raise VoidError(f"waited in vain for {what}")


class TrialSubject:
    """A policy under trial: a context manager, entered in the main thread."""

    def __init__(
        self,
        run: Job,
        contender: Contender,
        setting: Setting,
        engine_of: Callable[[ChildSpec], WarmEngine],
        raw: Path,
    ) -> None:
        """Every trial makes the request of the scenario's first tenant. The records of all trials go to the file
        ``raw``."""
        self._engine_of = engine_of
        self._run, self._contender, self._setting, self._raw = run, contender, setting, raw
        self._tenant = run.scenario.tenants[0]
        self._step_times = StepTimes(longest_step_ns(run))
        self._listener = TrialListener(self._step_times)
        self._answer_s = PATIENCE_S + SLOWER_MAX * answer_ns(run) / SECOND_NS
        self._stack = ExitStack()
        self._records = io.StringIO()
        self._warm, self._begin = threading.Event(), threading.Event()
        self._world: LiveWorld | None = None
        self._failure: Exception | None = None
        self._trials = 0

    def __enter__(self) -> TrialSubject:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def try_once(self, step: PressureStep) -> TrialResult:
        """One trial; ``VoidError`` if it says nothing, ``BreachError`` if no more trials are possible."""
        tenant = f"{self._tenant.name}-{self._trials}"
        self._trials += 1
        begin_s, processes, listener = time.monotonic(), self._processes, self._listener
        try:
            self._wait_for_rest()
            self._set_budget(step.budget_bytes)
            self._reset_counts()
            kills, pid = self._kills(), processes.engine.pid
            self._the_world().ask(tenant, self._tenant.kind, self._tenant.request)
            listener.wait(lambda one: len(one.tokens) >= step.tokens, "the first tokens", self._answer_s)
            self._monitor.reports.clear()
            self._press(self._taken_to_leave(step.left_bytes), step.manner)
            self._wait_for_outcome()
            reports = list(self._monitor.reports)
            killed = self._kills() - kills
            trial = TrialResult(
                kills=killed,
                victim=pid if killed and pid is not None and major_faults(pid) is None else None,
                tokens=len(listener.tokens),
                rungs=tuple(name for name, _ in itertools.groupby(listener.tokens)),
                limit_bytes=processes.share.limit_bytes,
                line_bytes=processes.share.line_bytes,
                peak_bytes=processes.confinement.counters().get("peak_bytes"),
                over_line_bytes=self._monitor.held_max_bytes - processes.share.line_bytes,
                fastest_bytes_per_s=fastest(reports),
                reliefs=(),
                lasted_s=round(time.monotonic() - begin_s, 3),
            )
            return replace(trial, reliefs=self._reliefs())
        finally:
            processes.allocator.hold(0)
            self._the_world().leave(tenant)
            self._monitor.resize(self._budget_bytes)

    # -- a trial

    def _wait_for_rest(self) -> None:
        """Wait until the engine is up and the allocator, started again if it was killed, holds nothing."""
        if not self._processes.allocator.alive:  # the kernel may have taken it beside the engine
            self._processes.confinement.check()  # or the whole run has been stopped
            spec = AllocatorSpec(group=self._confinement.folder)
            self._processes.allocator = self._stack.enter_context(Allocator(spec))
        self._listener.wait(lambda one: one.is_up, "an engine")
        self._until(lambda: self._monitor.taken_bytes == 0, "others to give back what they took")

    def _reset_counts(self) -> None:
        """Counters and records begin anew with the trial."""
        self._listener.begin()
        self._monitor.reset_held_max()
        self._processes.confinement.reset_peak()
        self._log.take(self._records)

    def _set_budget(self, budget_bytes: int) -> None:
        """Set the limit that leaves this budget, and wait until the world has received it.

        The world may receive a smaller one, within the margin: at rest the engine may hold more than when its base was
        measured.
        """
        self._monitor.resize(budget_bytes)
        margin_bytes = self._processes.share.margin_bytes
        try:
            self._listener.wait(
                lambda one: abs(one.budget_bytes - budget_bytes) <= margin_bytes,
                f"room of {show_size(budget_bytes)}",
            )
        except VoidError as reason:
            raise VoidError(
                f"{reason}: the last budget was {show_size(self._listener.budget_bytes)}"
            ) from None

    def _taken_to_leave(self, left_bytes: int) -> int:
        """What others have to take to leave so much beside their memory and the kernel's tables of its pages."""
        taken_bytes = self._processes.budget_bytes - left_bytes  # with the tables
        return taken_bytes * PAGES_A_TABLE // (PAGES_A_TABLE + 1) // MIB * MIB

    def _press(self, taken_bytes: int, manner: Manner) -> None:
        """Have others take memory, and wait until they hold it or the process is dead."""
        self._processes.allocator.hold(taken_bytes, manner)
        self._until(
            lambda: not self._listener.is_up or self._monitor.taken_bytes >= taken_bytes,
            f"others to take {show_size(taken_bytes)}",
            PATIENCE_S + taken_bytes / (manner.rate_bytes_per_s or float("inf")),
        )

    def _until(self, fulfilled: Callable[[], bool], what: str, within_s: float | None = None) -> None:
        """Poll a condition; ``VoidError`` if it takes longer than ``within_s`` (``PATIENCE_S`` by default)."""
        until_s = time.monotonic() + (PATIENCE_S if within_s is None else within_s)
        while not fulfilled():
            self._check()
            if time.monotonic() > until_s:
                raise VoidError(f"waited in vain for {what}")
            time.sleep(TRIAL_LOOK_S)
        self._check()

    def _wait_for_outcome(self) -> None:
        """Wait until the process is dead or the answer complete."""
        listener = self._listener
        if listener.is_up:
            with contextlib.suppress(VoidError):  # no kill: the process has survived
                listener.wait(lambda one: not one.is_up, "a kill", AFTER_S)
        if listener.is_up:
            listener.wait(
                lambda one: one.is_finished or not one.is_up, "the end of the answer", self._answer_s
            )

    def _reliefs(self) -> tuple[ReliefParts, ...]:
        """The reliefs in the records of this trial; the records go to the file of raw records."""
        text = self._log.take(self._records)
        with self._raw.open("a", encoding="utf-8") as raw:
            raw.write(text)
        records = tuple(json.loads(line) for line in text.splitlines())
        held = {r["budget_bytes"]: r["held_bytes"] for r in records if r["kind"] == "signal"}
        return tuple(
            ReliefParts(
                signal_ns=None if relief.short_ns is None else relief.reported_ns - relief.short_ns,
                boundary_ns=relief.read_ns - relief.reported_ns,
                release_ns=relief.released_ns - relief.read_ns,
                load_ns=relief.load_ns,
                transplant_ns=relief.transplant_ns,
                held_bytes=held.get(relief.budget_bytes),
            )
            for relief in reliefs(RunLog({}, records))
        )

    def _kills(self) -> int:
        return self._processes.confinement.counters().get("kills", 0)

    def _check(self) -> None:
        self._monitor.check()
        if self._failure is not None or not self._thread.is_alive():
            raise BreachError(f"the world of {self._contender.name} has ended: {self._failure}")

    # -- setting up

    def _set_up(self) -> None:
        run, setting = self._run, self._setting
        self._confinement = self._stack.enter_context(confinement_for(run, self._contender, setting))
        self._engine = self._engine_of(engine_spec(run, self._contender, setting, self._confinement))
        self._thread = threading.Thread(target=self._live, name=self._contender.name, daemon=True)
        self._stack.callback(self._end)
        self._thread.start()
        self._warm.wait()
        if self._failure is not None:
            raise self._failure
        self._budget_bytes = largest_budget(run)
        self._processes = set_up_processes(run, setting, self._confinement, self._engine, self._stack)
        self._log = SharedLog(self._records, log_header(run, self._contender, setting))
        self._world = LiveWorld(
            run.spec.ladder, run.costs, self._contender.policy, self._engine, self._log,
            budget_bytes=self._processes.budget_bytes, on_record=self._listener.on_record,
        )  # fmt: skip
        reaction_ns = reaction_time(run, self._step_times)
        self._monitor = Monitor(
            self._processes, self._world, self._log, setting.signal, self._step_times, reaction_ns, []
        )
        self._begin.set()
        self._monitor.start()

    def _live(self) -> None:
        """The thread of the world: it starts the engine, and stays as long as the engine lives."""
        try:
            with start_errors(self._confinement):
                self._engine.start()
            assert self._engine.pid is not None, "it was started"
            self._confinement.adopt_engine(self._engine.pid)
            self._warm.set()
            self._begin.wait()
            if self._world is not None:
                self._world.run()
        except Exception as failure:
            self._failure = failure
        finally:
            self._warm.set()
            self._engine.kill()

    def _the_world(self) -> LiveWorld:
        assert self._world is not None, "it was set up"
        return self._world

    def _end(self) -> None:
        if self._world is not None:
            for part in (lambda: self._monitor.stop_world("campaign over"), self._monitor.join):
                with contextlib.suppress(Exception):  # it was raised before, or is the reason for this end
                    part()
        self._begin.set()
        self._thread.join()


def answer_ns(run: Job) -> int:
    """The predicted time of a trial's answer on the largest rung, with the load of that rung."""
    costs, request = run.costs.rungs[run.spec.ladder.top.name], run.scenario.tenants[0].request
    cells = len(request.prompt_ids)
    return costs.load_ns + costs.read.ns(cells, cells // 2) + request.max_tokens * costs.decode.ns(1, cells)


def fastest(reports: Sequence[Holding]) -> int:
    """The fastest growth between two reports at least 5 ms apart, bytes per second; 0 if there are none."""
    found = first = 0
    for now in reports:
        while (
            first + 1 < len(reports) and now.at_ns - reports[first + 1].at_ns >= SPAN_NS
        ):  # the newest that is old enough
            first += 1
        span_ns = now.at_ns - reports[first].at_ns
        if span_ns >= SPAN_NS:
            found = max(found, (now.taken_bytes - reports[first].taken_bytes) * SECOND_NS // span_ns)
    return found
