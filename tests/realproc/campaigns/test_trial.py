"""A trial: what is done to the process, what is made of what was counted, and that everything is given back."""

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
from realproc.campaigns import trial as a
from realproc.campaigns.campaign import SCENARIO
from realproc.campaigns.trial import PressureStep, TrialListener, TrialSubject, VoidError
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Holding, Manner
from realproc.kernel.touched_pages import MIB
from realproc.supervisor.headroom import Share
from realproc.supervisor.monitor import RunProcesses, SharedLog
from realproc.supervisor.real_run import Setting, contenders
from realproc.supervisor.step_times import StepTimes

FULL = Share(limit_bytes=1024 * MIB, base_bytes=20 * MIB, margin_bytes=4 * MIB)
PRESSING = PressureStep(Manner(huge=True), tokens=3, room_bytes=600 * MIB, left_bytes=14 * MIB)
NOBODY = 2**22 + 1


@cache
def campaign() -> Job:
    return job.prepare(SCENARIO)


class Staged(TrialSubject):
    """An arm whose processes are made up. ``pressed`` is what happens when others take memory."""

    def __init__(self, tmp_path: Path, pressed: Callable[[Staged], None], pid: int = NOBODY) -> None:
        run = campaign()
        molt = next(one for one in contenders(run, mapped=False) if one.name == "molt")
        super().__init__(run, molt, Setting(), cast(Any, None), tmp_path / "raw.jsonl")
        self.pressed, self.pid = pressed, pid
        self.kills = 0
        self.did: list[tuple[str, object]] = []

    def _set_up(self) -> None:
        self._full_bytes = FULL.budget_bytes(0)
        self._stage = RunProcesses(
            cast(Any, self), cast(Any, self), cast(Any, self), FULL, self._full_bytes, self._full_bytes
        )
        self._attendant = self._world = cast(Any, self)
        self._log = SharedLog(self._records, {})
        self._thread = threading.current_thread()
        self.heard: deque[Holding] = deque()
        self.taken_bytes = 0
        self.held_max_bytes = 0

    # an allocator

    alive = True

    def hold(self, target_bytes: int, manner: Manner | None = None) -> None:
        self.did.append(("hold", target_bytes))
        self.taken_bytes = target_bytes
        if target_bytes:
            assert manner == PRESSING.manner
            self.pressed(self)

    # an attendant

    def resize(self, budget_bytes: int) -> None:
        self.did.append(("resize", budget_bytes))
        self._stage.share, self._stage.budget_bytes = FULL.of(budget_bytes), budget_bytes
        self._witness.hear(e.BudgetChanged(at_ns=0, budget_bytes=budget_bytes))

    def forget_held(self) -> None:
        self.held_max_bytes = self._stage.share.line_bytes - MIB

    def check(self) -> None:
        """Nothing has gone wrong."""

    # a world

    def ask(self, tenant: str, *rest: object) -> None:
        self.did.append(("ask", tenant))
        self.produce("tier0", PRESSING.tokens)

    def leave(self, tenant: str) -> None:
        self.did.append(("leave", tenant))

    def produce(self, rung: str, count: int) -> None:
        self._witness.hear(e.TokensProduced(at_ns=0, tenant="chat", rung=rung, count=count))

    def finish(self) -> None:
        self._witness.hear(e.TenantFinished(at_ns=0, tenant="chat", reason="length"))

    def die(self) -> None:
        self.kills += 1
        self._witness.hear(e.ProcessKilled(at_ns=0))

    # a place

    def counted(self) -> dict[str, int]:
        return {"kills": self.kills, "peak_bytes": 42}

    def forget_peak(self) -> None:
        """The peak is always the same."""


def survives(arm: Staged) -> None:
    arm.produce("tier1", 2)
    arm.finish()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a, "AFTER_S", 0.01)


def test_who_survives_has_answered_to_the_end(tmp_path: Path) -> None:
    with Staged(tmp_path, survives) as arm:
        trial = arm.try_once(PRESSING)
    assert (trial.kills, trial.victim, trial.tokens, trial.rungs) == (0, None, 5, ("tier0", "tier1"))
    assert trial.limit_bytes == FULL.of(PRESSING.room_bytes).limit_bytes
    assert trial.over_line_bytes == -MIB
    assert trial.peak_bytes == 42


def test_others_take_all_but_what_is_left_and_give_it_back(tmp_path: Path) -> None:
    """The room of its rate is there when it is asked, and the kernel's tables of what others take count as taken."""
    with Staged(tmp_path, survives) as arm:
        arm.try_once(PRESSING)
        what, amounts = zip(*arm.did, strict=True)
    assert what == ("resize", "ask", "hold", "hold", "leave", "resize")
    taken_bytes = cast(int, amounts[2])
    left_bytes = PRESSING.room_bytes - taken_bytes - taken_bytes // 512
    assert PRESSING.left_bytes <= left_bytes < PRESSING.left_bytes + 2 * MIB
    assert amounts[0] == PRESSING.room_bytes
    assert amounts[3] == 0
    assert amounts[1] == amounts[4]
    assert amounts[5] == FULL.budget_bytes(0)


def test_a_kill_is_the_kernels_to_count(tmp_path: Path) -> None:
    """And its victim is the engine if that has gone."""
    with Staged(tmp_path, Staged.die) as arm:
        trial = arm.try_once(PRESSING)
    assert (trial.kills, trial.victim, trial.tokens) == (1, NOBODY, 3)
    with Staged(tmp_path, Staged.die, pid=os.getpid()) as arm:
        trial = arm.try_once(PRESSING)
    assert (trial.kills, trial.victim) == (1, None)


def test_one_that_does_not_come_up_again_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Staged(tmp_path, Staged.die) as arm:
        arm.try_once(PRESSING)
        monkeypatch.setattr(a, "PATIENCE_S", 0.01)
        with pytest.raises(VoidError, match="waited in vain for an engine"):
            arm.try_once(PRESSING)
        arm._witness.hear(e.ProcessStarted(at_ns=0))
        arm.pressed = survives
        assert arm.try_once(PRESSING).kills == 0


def test_others_that_do_not_get_what_they_want_make_a_trial_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They give back what they got all the same."""

    def in_vain(arm: Staged) -> None:
        arm.taken_bytes = 0

    monkeypatch.setattr(a, "PATIENCE_S", 0.01)
    with Staged(tmp_path, in_vain) as arm:
        with pytest.raises(VoidError, match="waited in vain for others to take 5"):
            arm.try_once(PRESSING)
        assert arm.did[-3:] == [("hold", 0), ("leave", "chat-0"), ("resize", FULL.budget_bytes(0))]


def test_an_allocator_that_went_with_the_whole_run_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise BreachError("the machine has too little left")

    with Staged(tmp_path, survives) as arm:
        monkeypatch.setattr(arm, "alive", False)
        monkeypatch.setattr(arm, "check", stopped)
        with pytest.raises(BreachError, match="too little left"):
            arm.try_once(PRESSING)


def test_without_a_world_there_are_no_more_trials(tmp_path: Path) -> None:
    with Staged(tmp_path, survives) as arm:
        arm._failure = RuntimeError("made up")
        with pytest.raises(BreachError, match="the world of molt has ended: made up"):
            arm.try_once(PRESSING)


def test_a_witness_forgets_the_last_answer_and_not_the_budget() -> None:
    witness = TrialListener(StepTimes(1))
    for heard in (
        e.BudgetChanged(at_ns=0, budget_bytes=7),
        e.TokensProduced(at_ns=0, tenant="chat", rung="tier0", count=2),
        e.TenantFinished(at_ns=0, tenant="chat", reason="length"),
    ):
        witness.hear(heard)
    assert (witness.budget_bytes, witness.tokens, witness.is_finished) == (7, ["tier0", "tier0"], True)
    witness.begin()
    assert (witness.budget_bytes, witness.tokens, witness.is_finished) == (7, [], False)


def test_the_records_of_a_trial_are_kept(tmp_path: Path) -> None:
    """Those of before are not; they were nobody's."""

    def written(arm: Staged) -> None:
        arm._log.write("signal", 1, budget_bytes=5, held_bytes=6)
        survives(arm)

    with Staged(tmp_path, written) as arm:
        arm._log.write("signal", 0, budget_bytes=1, held_bytes=1)
        arm.try_once(PRESSING)
    (line,) = (tmp_path / "raw.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"budget_bytes":5' in line
    assert isinstance(arm._records, io.StringIO)
    assert arm._records.getvalue() == ""
