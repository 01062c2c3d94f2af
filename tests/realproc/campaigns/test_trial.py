"""A trial: the pressure, the result computed from what was counted, and that all memory is given back."""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from molt.core import events as e
from molt.jobs import job
from molt.jobs.job import Job
from molt.units import MIB
from realproc.campaigns import trial as a
from realproc.campaigns.campaign import SCENARIO
from realproc.campaigns.trial import PressureStep, TrialListener, TrialSubject, VoidError
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Holding, Manner
from realproc.supervisor.headroom import Share
from realproc.supervisor.monitor import RunProcesses, SharedLog
from realproc.supervisor.real_run import Setting, contenders
from realproc.supervisor.step_times import StepTimes

FULL = Share(limit_bytes=1024 * MIB, base_bytes=20 * MIB, margin_bytes=4 * MIB)
PRESSURE = PressureStep(Manner(huge=True), tokens=3, budget_bytes=600 * MIB, left_bytes=14 * MIB)
NO_PROCESS = 2**22 + 1


@cache
def campaign() -> Job:
    return job.prepare(SCENARIO)


class Staged(TrialSubject):
    """A subject whose processes are made up. ``pressed`` is what happens when others take memory."""

    def __init__(self, tmp_path: Path, pressed: Callable[[Staged], None], pid: int = NO_PROCESS) -> None:
        run = campaign()
        molt = next(one for one in contenders(run, mapped=False) if one.name == "molt")
        super().__init__(run, molt, Setting(), cast(Any, None), tmp_path / "raw.jsonl")
        self.pressed, self.pid = pressed, pid
        self.kills = 0
        self.did: list[tuple[str, object]] = []

    def _set_up(self) -> None:
        self._budget_bytes = FULL.budget_bytes(0)
        self._processes = RunProcesses(
            cast(Any, self), cast(Any, self), cast(Any, self), FULL, self._budget_bytes, self._budget_bytes
        )
        self._monitor = self._world = cast(Any, self)
        self._log = SharedLog(self._records, {})
        self._thread = threading.current_thread()
        self.reports: deque[Holding] = deque()
        self.taken_bytes = 0
        self.held_max_bytes = 0

    # an allocator

    alive = True

    def hold(self, target_bytes: int, manner: Manner | None = None) -> None:
        self.did.append(("hold", target_bytes))
        self.taken_bytes = target_bytes
        if target_bytes:
            assert manner == PRESSURE.manner
            self.pressed(self)

    # a monitor

    def resize(self, budget_bytes: int) -> None:
        self.did.append(("resize", budget_bytes))
        self._processes.share, self._processes.budget_bytes = FULL.with_budget(budget_bytes), budget_bytes
        self._listener.on_record(e.BudgetChanged(at_ns=0, budget_bytes=budget_bytes))

    def reset_held_max(self) -> None:
        self.held_max_bytes = self._processes.share.line_bytes - MIB

    def check(self) -> None:
        """Nothing has gone wrong."""

    # a world

    def ask(self, tenant: str, *rest: object) -> None:
        self.did.append(("ask", tenant))
        self.produce("tier0", PRESSURE.tokens)

    def leave(self, tenant: str) -> None:
        self.did.append(("leave", tenant))

    def produce(self, rung: str, count: int) -> None:
        self._listener.on_record(e.TokensProduced(at_ns=0, tenant="chat", rung=rung, count=count))

    def finish(self) -> None:
        self._listener.on_record(e.TenantFinished(at_ns=0, tenant="chat", reason="length"))

    def die(self) -> None:
        self.kills += 1
        self._listener.on_record(e.ProcessKilled(at_ns=0))

    # a confinement

    def counters(self) -> dict[str, int]:
        return {"kills": self.kills, "peak_bytes": 42}

    def reset_peak(self) -> None:
        """The peak is always the same."""


def survives(subject: Staged) -> None:
    subject.produce("tier1", 2)
    subject.finish()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a, "AFTER_S", 0.01)


def test_a_survivor_has_answered_to_the_end(tmp_path: Path) -> None:
    with Staged(tmp_path, survives) as subject:
        trial = subject.try_once(PRESSURE)
    assert (trial.kills, trial.victim, trial.tokens, trial.rungs) == (0, None, 5, ("tier0", "tier1"))
    assert trial.limit_bytes == FULL.with_budget(PRESSURE.budget_bytes).limit_bytes
    assert trial.over_line_bytes == -MIB
    assert trial.peak_bytes == 42


def test_others_take_all_but_what_is_left_and_give_it_back(tmp_path: Path) -> None:
    """The budget when it is asked allows for the rate; the kernel's tables of what others take count as taken."""
    with Staged(tmp_path, survives) as subject:
        subject.try_once(PRESSURE)
        what, amounts = zip(*subject.did, strict=True)
    assert what == ("resize", "ask", "hold", "hold", "leave", "resize")
    taken_bytes = cast(int, amounts[2])
    left_bytes = PRESSURE.budget_bytes - taken_bytes - taken_bytes // 512
    assert PRESSURE.left_bytes <= left_bytes < PRESSURE.left_bytes + 2 * MIB
    assert amounts[0] == PRESSURE.budget_bytes
    assert amounts[3] == 0
    assert amounts[1] == amounts[4]
    assert amounts[5] == FULL.budget_bytes(0)


def test_a_kill_is_the_kernels_to_count(tmp_path: Path) -> None:
    """Its victim is the engine, if that has gone."""
    with Staged(tmp_path, Staged.die) as subject:
        trial = subject.try_once(PRESSURE)
    assert (trial.kills, trial.victim, trial.tokens) == (1, NO_PROCESS, 3)
    with Staged(tmp_path, Staged.die, pid=os.getpid()) as subject:
        trial = subject.try_once(PRESSURE)
    assert (trial.kills, trial.victim) == (1, None)


def test_a_subject_that_does_not_come_up_again_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Staged(tmp_path, Staged.die) as subject:
        subject.try_once(PRESSURE)
        monkeypatch.setattr(a, "PATIENCE_S", 0.01)
        with pytest.raises(VoidError, match="waited in vain for an engine"):
            subject.try_once(PRESSURE)
        subject._listener.on_record(e.ProcessStarted(at_ns=0))
        subject.pressed = survives
        assert subject.try_once(PRESSURE).kills == 0


def test_others_that_cannot_take_what_they_should_make_a_trial_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They give back all the same what they took."""

    def in_vain(subject: Staged) -> None:
        subject.taken_bytes = 0

    monkeypatch.setattr(a, "PATIENCE_S", 0.01)
    with Staged(tmp_path, in_vain) as subject:
        with pytest.raises(VoidError, match="waited in vain for others to take 5"):
            subject.try_once(PRESSURE)
        assert subject.did[-3:] == [("hold", 0), ("leave", "chat-0"), ("resize", FULL.budget_bytes(0))]


def test_an_allocator_that_ended_with_the_whole_run_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise BreachError("the machine has too little left")

    with Staged(tmp_path, survives) as subject:
        monkeypatch.setattr(subject, "alive", False)
        monkeypatch.setattr(subject, "check", stopped)
        with pytest.raises(BreachError, match="too little left"):
            subject.try_once(PRESSURE)


def test_without_a_world_there_are_no_more_trials(tmp_path: Path) -> None:
    with Staged(tmp_path, survives) as subject:
        subject._failure = RuntimeError("made up")
        with pytest.raises(BreachError, match="the world of molt has ended: made up"):
            subject.try_once(PRESSURE)


def test_a_listener_forgets_the_last_answer_and_not_the_budget() -> None:
    listener = TrialListener(StepTimes(1))
    for record in (
        e.BudgetChanged(at_ns=0, budget_bytes=7),
        e.TokensProduced(at_ns=0, tenant="chat", rung="tier0", count=2),
        e.TenantFinished(at_ns=0, tenant="chat", reason="length"),
    ):
        listener.on_record(record)
    assert (listener.budget_bytes, listener.tokens, listener.is_finished) == (7, ["tier0", "tier0"], True)
    listener.begin()
    assert (listener.budget_bytes, listener.tokens, listener.is_finished) == (7, [], False)


def test_the_records_of_a_trial_are_kept(tmp_path: Path) -> None:
    """Those from before the trial are not."""

    def written(subject: Staged) -> None:
        subject._log.write("signal", 1, budget_bytes=5, held_bytes=6)
        survives(subject)

    with Staged(tmp_path, written) as subject:
        subject._log.write("signal", 0, budget_bytes=1, held_bytes=1)
        subject.try_once(PRESSURE)
    (line,) = (tmp_path / "raw.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"budget_bytes":5' in line
    assert isinstance(subject._records, io.StringIO)
    assert subject._records.getvalue() == ""
