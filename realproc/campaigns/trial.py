"""One arm of a campaign: a policy's process in a group of its own, pressed again and again.

Rules of this module:

- The process lives on from trial to trial, as a service does, for as long as the kernel lets it. When it is killed the
  world starts it again, cold, as in any run; the tenant whose answer was lost goes away, and the next trial begins.
- In a trial somebody asks; after some tokens others take memory, down to what is left to the process, and hold it
  until the answer is complete or the process is dead. Then they give it back.
- The world has a thread that starts the engine and stays (the engine dies with it); trials are the main thread's.
- A trial is judged by the kernel's counter and the process that is gone, not by what the world believes.
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
from molt.units import show_size
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import SECOND_NS, Allocator, AllocatorSpec, Holding, Manner
from realproc.kernel.signals import MS_NS
from realproc.kernel.touched_pages import MIB
from realproc.supervisor.engine_process import WarmEngine
from realproc.supervisor.monitor import Monitor, SharedLog
from realproc.supervisor.real_run import (
    Contender,
    Setting,
    child_of,
    coming_up,
    confinement_of,
    header_of,
    longest_step_ns,
    most_bytes,
    reaction,
    start_processes,
)
from realproc.supervisor.step_times import StepTimes
from realproc.supervisor.victims import major_faults
from reports.real_processes import reliefs
from reports.run_log import RunLog

SPAN_NS = 5 * MS_NS
PAGES_A_TABLE = 512
"""For so many small pages, or for the huge one in their place, the kernel keeps another as their table."""
LOOK_S = 0.002
PATIENCE_S = 60.0
"""How long anything of a trial may take before the trial is void; an answer may take what is foretold of it besides."""
SLOWER_MAX = 4
"""How many times as long as is foretold."""
AFTER_S = 0.15
"""How long a process is watched after others have got what they wanted: a kill comes at once or not at all."""


class VoidError(Exception):
    """A trial that says nothing, and why."""


@dataclass(frozen=True, slots=True)
class PressureStep:
    """What is done to the process: after ``tokens`` of its answer, others take memory until ``left_bytes`` are left of
    the ``room_bytes`` that it had when it was asked."""

    manner: Manner
    tokens: int
    room_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class ReliefParts:
    """A release of weights in a trial: the wait for the signal (from when memory was short; ``None``: it never was),
    for the boundary and for the release; what loading the smaller rung and carrying the cache there took then; and what
    was in use when the process was told."""

    signal_ns: int | None
    boundary_ns: int
    release_ns: int
    load_ns: int | None
    transplant_ns: int | None
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of it.

    ``kills`` are those that the kernel counted meanwhile, ``victim`` the process id of the engine if it is gone.
    ``rungs`` are those that the tokens came from, in order. ``fastest_bytes_per_s`` is how fast others really took
    memory, ``over_line_bytes`` the most that was in use above ``line_bytes``, the limit less the margin.
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
    """Listens to a world for somebody who waits in another thread."""

    def __init__(self, pulse: StepTimes) -> None:
        self._pulse, self._news = pulse, threading.Condition()
        self.budget_bytes = 0
        self.is_up = True
        self.tokens: list[str] = []
        self.is_finished = False

    def hear(self, heard: WorldRecord) -> None:
        """The world's thread says that something has happened."""
        self._pulse.hear(heard)
        with self._news:
            match heard:
                case e.BudgetChanged():
                    self.budget_bytes = heard.budget_bytes
                case e.TokensProduced():
                    self.tokens += [heard.rung] * heard.count
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
        """Forget the last answer."""
        with self._news:
            self.tokens, self.is_finished = [], False

    def wait(
        self, fulfilled: Callable[[TrialListener], bool], what: str, within_s: float | None = None
    ) -> None:
        """Wait until something is so; ``VoidError`` if that takes too long, ``PATIENCE_S`` by default."""
        with self._news:
            if not self._news.wait_for(lambda: fulfilled(self), PATIENCE_S if within_s is None else within_s):
                raise VoidError(f"waited in vain for {what}")


class TrialSubject:
    """A policy under trial. Enter it in the main thread, try it, leave it."""

    def __init__(
        self,
        run: Job,
        contender: Contender,
        setting: Setting,
        engine_of: Callable[[ChildSpec], WarmEngine],
        raw: Path,
    ) -> None:
        """Everybody asks as the first tenant of the scenario does. ``raw`` is where the records of all trials go."""
        self._engine_of = engine_of
        self._run, self._contender, self._setting, self._raw = run, contender, setting, raw
        self._tenant = run.scenario.tenants[0]
        self._pulse = StepTimes(longest_step_ns(run))
        self._witness = TrialListener(self._pulse)
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

    def try_once(self, pressing: PressureStep) -> TrialResult:
        """One trial; ``VoidError`` if it says nothing, ``BreachError`` if there can be no more."""
        tenant = f"{self._tenant.name}-{self._trials}"
        self._trials += 1
        begin_s, stage, witness = time.monotonic(), self._stage, self._witness
        try:
            self._come_to_rest()
            self._give_room(pressing.room_bytes)
            self._forget()
            kills, pid = self._kills(), stage.engine.pid
            self._world_of().ask(tenant, self._tenant.kind, self._tenant.request)
            witness.wait(lambda w: len(w.tokens) >= pressing.tokens, "the first tokens", self._answer_s)
            self._attendant.heard.clear()
            self._take(self._all_but(pressing.left_bytes), pressing.manner)
            self._see_it_end()
            reports = list(self._attendant.heard)
            killed = self._kills() - kills
            trial = TrialResult(
                kills=killed,
                victim=pid if killed and pid is not None and major_faults(pid) is None else None,
                tokens=len(witness.tokens),
                rungs=tuple(name for name, _ in itertools.groupby(witness.tokens)),
                limit_bytes=stage.share.limit_bytes,
                line_bytes=stage.share.line_bytes,
                peak_bytes=stage.place.counted().get("peak_bytes"),
                over_line_bytes=self._attendant.held_max_bytes - stage.share.line_bytes,
                fastest_bytes_per_s=fastest(reports),
                reliefs=(),
                lasted_s=round(time.monotonic() - begin_s, 3),
            )
            return replace(trial, reliefs=self._reliefs())
        finally:
            stage.allocator.hold(0)
            self._world_of().leave(tenant)
            self._attendant.resize(self._full_bytes)

    # -- a trial

    def _come_to_rest(self) -> None:
        """The engine is there, and so are others, who take nothing."""
        if not self._stage.allocator.alive:  # the kernel may have taken it beside the engine
            self._stage.place.check()  # or the whole run has been stopped
            spec = AllocatorSpec(group=self._home.folder)
            self._stage.allocator = self._stack.enter_context(Allocator(spec))
        self._witness.wait(lambda w: w.is_up, "an engine")
        self._until(lambda: self._attendant.taken_bytes == 0, "others to give back what they took")

    def _forget(self) -> None:
        """Counters and records begin anew with the trial."""
        self._witness.begin()
        self._attendant.forget_held()
        self._stage.place.forget_peak()
        self._log.take(self._records)

    def _give_room(self, room_bytes: int) -> None:
        """The limit leaves the process so much, and it has been told.

        It may be told less, within the margin: at rest it may hold what was not there when its base was measured.
        """
        self._attendant.resize(room_bytes)
        inexact_bytes = self._stage.share.margin_bytes
        try:
            self._witness.wait(
                lambda w: abs(w.budget_bytes - room_bytes) <= inexact_bytes,
                f"room of {show_size(room_bytes)}",
            )
        except VoidError as reason:
            raise VoidError(f"{reason}: it is told {show_size(self._witness.budget_bytes)}") from None

    def _all_but(self, left_bytes: int) -> int:
        """What others have to take so that so much is left beside them and the kernel's tables of their pages."""
        others_bytes = self._stage.budget_bytes - left_bytes
        return others_bytes * PAGES_A_TABLE // (PAGES_A_TABLE + 1) // MIB * MIB

    def _take(self, taken_bytes: int, manner: Manner) -> None:
        """Have others take memory until they have so much, or the process is dead."""
        self._stage.allocator.hold(taken_bytes, manner)
        self._until(
            lambda: not self._witness.is_up or self._attendant.taken_bytes >= taken_bytes,
            f"others to take {show_size(taken_bytes)}",
            PATIENCE_S + taken_bytes / (manner.rate_bytes_per_s or float("inf")),
        )

    def _until(self, fulfilled: Callable[[], bool], what: str, within_s: float | None = None) -> None:
        """Look every while whether something is so; ``VoidError`` if that takes too long, ``PATIENCE_S`` by default."""
        until_s = time.monotonic() + (PATIENCE_S if within_s is None else within_s)
        while not fulfilled():
            self._check()
            if time.monotonic() > until_s:
                raise VoidError(f"waited in vain for {what}")
            time.sleep(LOOK_S)
        self._check()

    def _see_it_end(self) -> None:
        """Others have what they wanted: wait until the process is dead or the answer complete."""
        witness = self._witness
        if witness.is_up:
            with contextlib.suppress(VoidError):  # nobody died: that is what is to be seen
                witness.wait(lambda w: not w.is_up, "a kill", AFTER_S)
        if witness.is_up:
            witness.wait(lambda w: w.is_finished or not w.is_up, "the end of the answer", self._answer_s)

    def _reliefs(self) -> tuple[ReliefParts, ...]:
        """Of the records of this trial, which go to the file of raw records."""
        text = self._log.take(self._records)
        with self._raw.open("a", encoding="utf-8") as raw:
            raw.write(text)
        records = tuple(json.loads(line) for line in text.splitlines())
        held = {r["budget_bytes"]: r["held_bytes"] for r in records if r["kind"] == "signal"}
        return tuple(
            ReliefParts(
                signal_ns=None if relief.short_ns is None else relief.told_ns - relief.short_ns,
                boundary_ns=relief.heard_ns - relief.told_ns,
                release_ns=relief.released_ns - relief.heard_ns,
                load_ns=relief.load_ns,
                transplant_ns=relief.transplant_ns,
                held_bytes=held.get(relief.budget_bytes),
            )
            for relief in reliefs(RunLog({}, records))
        )

    def _kills(self) -> int:
        return self._stage.place.counted().get("kills", 0)

    def _check(self) -> None:
        self._attendant.check()
        if self._failure is not None or not self._thread.is_alive():
            raise BreachError(f"the world of {self._contender.name} has ended: {self._failure}")

    # -- setting up

    def _set_up(self) -> None:
        run, setting = self._run, self._setting
        self._home = self._stack.enter_context(confinement_of(run, self._contender, setting))
        self._engine = self._engine_of(child_of(run, self._contender, setting, self._home))
        self._thread = threading.Thread(target=self._live, name=self._contender.name, daemon=True)
        self._stack.callback(self._end)
        self._thread.start()
        self._warm.wait()
        if self._failure is not None:
            raise self._failure
        self._full_bytes = most_bytes(run)
        self._stage = start_processes(run, setting, self._home, self._engine, self._stack)
        self._log = SharedLog(self._records, header_of(run, self._contender, setting))
        self._world = LiveWorld(
            run.spec.ladder, run.costs, self._contender.policy, self._engine, self._log,
            budget_bytes=self._stage.budget_bytes, listen=self._witness.hear,
        )  # fmt: skip
        reaction_ns = reaction(run, self._pulse)
        self._attendant = Monitor(
            self._stage, self._world, self._log, setting.signal, self._pulse, reaction_ns, []
        )
        self._begin.set()
        self._attendant.start()

    def _live(self) -> None:
        """The thread that starts the engine, and stays with it."""
        try:
            with coming_up(self._home):
                self._engine.start()
            assert self._engine.pid is not None, "it was started"
            self._home.engine_is(self._engine.pid)
            self._warm.set()
            self._begin.wait()
            if self._world is not None:
                self._world.run()
        except Exception as failure:
            self._failure = failure
        finally:
            self._warm.set()
            self._engine.kill()

    def _world_of(self) -> LiveWorld:
        assert self._world is not None, "it was set up"
        return self._world

    def _end(self) -> None:
        if self._world is not None:
            for part in (lambda: self._attendant.end("campaign over"), self._attendant.leave):
                with contextlib.suppress(Exception):  # it has been told, or is why this ends
                    part()
        self._begin.set()
        self._thread.join()


def answer_ns(run: Job) -> int:
    """What the answer of a trial takes on the largest rung, by the profile, from nothing on."""
    costs, request = run.costs.rungs[run.spec.ladder.top.name], run.scenario.tenants[0].request
    cells = len(request.prompt_ids)
    return costs.load_ns + costs.read.ns(cells, cells // 2) + request.max_tokens * costs.decode.ns(1, cells)


def fastest(reports: Sequence[Holding]) -> int:
    """The fastest growth between two reports that are 5 ms or more apart, bytes per second; 0 without."""
    found = first = 0
    for now in reports:
        while (
            first + 1 < len(reports) and now.at_ns - reports[first + 1].at_ns >= SPAN_NS
        ):  # the newest that is old enough
            first += 1
        span_ns = now.at_ns - reports[first].at_ns
        if span_ns >= SPAN_NS:
            found = max(found, (now.resident_bytes - reports[first].resident_bytes) * SECOND_NS // span_ns)
    return found
