"""The monitor of a run reports budgets, runs timed actions, and logs what it observes."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, cast

import pytest

from molt.live.live_world import LiveWorld
from molt.units import MIB, MS_NS
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Holding
from realproc.kernel.signals import UsageReading
from realproc.supervisor.headroom import Share, Standing
from realproc.supervisor.monitor import Monitor, RunProcesses, SharedLog, TimedAction
from realproc.supervisor.real_run import DiskFullError, log_file
from realproc.supervisor.step_times import StepTimes

SHARE = Share(limit_bytes=100 * MIB, base_bytes=20 * MIB, margin_bytes=4 * MIB)
GENEROUS_S = 60.0


class FakeConfinement:
    """A confinement whose usage the test sets."""

    def __init__(self, awake: bool) -> None:
        self._awake = awake
        self.watches: dict[int, FakeWatch] = {}
        self.others_bytes = self.excess_bytes = 0
        self.kills = self.looks = 0
        self.breach: str | None = None
        self.engines: list[int] = []

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        self.looks += 1
        own_bytes = SHARE.base_bytes + self.excess_bytes
        return Standing(time.monotonic_ns(), own_bytes + self.others_bytes, own_bytes)

    def watch(self, signal: str, share: Share, reaction_ns: int) -> FakeWatch:
        watch = self.watches[share.limit_bytes] = FakeWatch(self._awake)
        return watch

    def resize(self, share: Share, budget_bytes: int) -> Share:
        return share.with_budget(budget_bytes)

    def counters(self) -> dict[str, int]:
        return {"kills": self.kills, "peak_bytes": 42}

    def adopt_engine(self, pid: int) -> None:
        self.engines.append(pid)

    def check(self) -> None:
        if self.breach is not None:
            raise BreachError(self.breach)


class FakeWorld:
    """A world that records its budgets and stops; a test can wait for them."""

    def __init__(self) -> None:
        self.budgets: list[int] = []
        self.stopped: list[str] = []
        self._news = threading.Condition()

    def budget(self, budget_bytes: int) -> None:
        with self._news:
            self.budgets.append(budget_bytes)
            self._news.notify_all()

    def stop(self, reason: str) -> None:
        with self._news:
            self.stopped.append(reason)
            self._news.notify_all()

    def until(self, fulfilled: Callable[[FakeWorld], bool]) -> None:
        with self._news:
            assert self._news.wait_for(lambda: fulfilled(self), GENEROUS_S)


class FakeProcess:
    """An engine that is there, or an allocator that reports."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid
        self.said: list[Holding] = []

    def reports(self) -> Iterator[Holding]:
        said, self.said = self.said, []
        return iter(said)


class FakeWatch:
    """A watch that looks every millisecond, and is awake if the test says so."""

    def __init__(self, awake: bool) -> None:
        self._awake, self.is_closed = awake, False

    def close(self) -> None:
        self.is_closed = True

    def look(self, until_ns: int) -> UsageReading:
        time.sleep(0.001)
        return UsageReading(time.monotonic_ns(), 0, 0)

    def awake(self, at_ns: int) -> bool:
        return self._awake


class FakeStepTimes:
    """The step times of a world that has begun."""

    cache_bytes = 0
    booked_bytes = 0

    def begin_ns(self, within_s: float) -> int:
        return time.monotonic_ns()


class Scene:
    """A monitor with everything around it made up; it runs as long as the ``with`` block."""

    def __init__(
        self, sink: TextIO | None = None, actions: Iterable[TimedAction] = (), *, awake: bool = True
    ) -> None:
        self.confinement, self.world, self.engine, self.allocator = (
            FakeConfinement(awake),
            FakeWorld(),
            FakeProcess(),
            FakeProcess(2**22 + 1),
        )
        self.processes = RunProcesses(
            cast(Any, self.engine),
            cast(Any, self.allocator),
            cast(Any, self.confinement),
            SHARE,
            budget_bytes=SHARE.budget_bytes(0),
            reported_bytes=SHARE.budget_bytes(0),
        )
        self.monitor = Monitor(
            self.processes,
            cast(LiveWorld, self.world),
            SharedLog(io.StringIO() if sink is None else sink, {}),
            "made up",
            cast(StepTimes, FakeStepTimes()),
            lambda: 0,
            actions,
        )

    def __enter__(self) -> Scene:
        self.monitor.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.monitor.join()

    def seen(self) -> None:
        """Wait until the monitor has looked again, and has handled what it saw."""
        looks = self.confinement.looks
        while self.confinement.looks < looks + 3:
            time.sleep(0.001)


def written(sink: io.StringIO, kind: str) -> list[dict[str, Any]]:
    return [record for line in sink.getvalue().splitlines() if (record := json.loads(line))["kind"] == kind]


def test_a_fall_is_reported_and_logged() -> None:
    sink = io.StringIO()
    with Scene(sink) as scene:
        scene.confinement.others_bytes = 30 * MIB
        scene.world.until(lambda w: bool(w.budgets))
        assert scene.world.budgets == [SHARE.budget_bytes(30 * MIB)]
        assert scene.monitor.held_max_bytes == SHARE.base_bytes + 30 * MIB
        scene.monitor.reset_held_max()
    (signal,) = written(sink, "signal")
    assert signal["budget_bytes"] == SHARE.budget_bytes(30 * MIB)
    assert signal["held_bytes"] == SHARE.base_bytes + 30 * MIB
    assert signal["own_bytes"] == SHARE.base_bytes


def test_what_the_engine_holds_beyond_its_books_is_no_budget() -> None:
    with Scene() as scene:
        scene.confinement.excess_bytes = 6 * MIB
        scene.world.until(lambda w: bool(w.budgets))
        assert scene.world.budgets == [SHARE.budget_bytes(6 * MIB)]


def test_after_a_late_signal_only_another_limit_is_reported() -> None:
    """The budget of a new limit is reported whatever the signal, and later budgets follow from that limit."""
    with Scene(awake=False) as scene:
        scene.confinement.others_bytes = 30 * MIB
        scene.seen()
        scene.monitor.resize(40 * MIB)
        scene.seen()
        assert scene.world.budgets == [40 * MIB]
        assert scene.processes.share == SHARE.with_budget(40 * MIB)
        assert scene.processes.budget_bytes == 40 * MIB


def test_the_watch_follows_the_present_limit_and_is_closed_in_the_end() -> None:
    with Scene() as scene:
        scene.monitor.resize(40 * MIB)
        scene.seen()
        before, now = (
            scene.confinement.watches[share.limit_bytes] for share in (SHARE, SHARE.with_budget(40 * MIB))
        )
        assert (before.is_closed, now.is_closed) == (True, False)
    assert now.is_closed


def test_what_others_take_is_logged_when_it_changes() -> None:
    sink = io.StringIO()
    held = Holding(time.monotonic_ns() + 1000 * MS_NS, 7 * MIB, 7 * MIB)
    with Scene(sink) as scene:
        scene.allocator.said = [held, replace(held, at_ns=held.at_ns + 1)]
        scene.seen()
        assert scene.monitor.taken_bytes == 7 * MIB
        assert list(scene.monitor.reports) == [held]
    (record,) = written(sink, "pressure")
    assert (record["taken_bytes"], record["budget_bytes"]) == (7 * MIB, SHARE.budget_bytes(7 * MIB))


def test_actions_run_in_their_order_and_the_last_ends_the_run() -> None:
    sink, done = io.StringIO(), list[str]()
    actions = [
        TimedAction(3 * MS_NS, lambda: scene.monitor.stop_world("horizon")),
        TimedAction(2 * MS_NS, lambda: done.append("second")),
        TimedAction(1 * MS_NS, lambda: done.append("first")),
    ]
    scene = Scene(sink, actions)
    with scene:
        scene.world.until(lambda w: bool(w.stopped))
    assert done == ["first", "second"]
    assert scene.world.stopped == ["horizon"]
    assert written(sink, "kernel")[-1]["peak_bytes"] == 42


def test_a_victim_is_logged_with_its_role() -> None:
    """Neither of the two processes exists; the kernel has counted a kill, so both count as victims."""
    sink = io.StringIO()
    scene = Scene(sink, [TimedAction(MS_NS, lambda: scene.monitor.stop_world("horizon"))])
    scene.confinement.kills = 1
    scene.engine.pid = 2**22 + 2
    with scene:
        scene.world.until(lambda w: bool(w.stopped))
    assert {(r["what"], r["pid"]) for r in written(sink, "victim")} == {
        ("allocator", 2**22 + 1),
        ("engine", 2**22 + 2),
    }
    assert scene.confinement.engines == [2**22 + 2], "it was adopted once"


def test_a_breach_stops_the_world_and_is_raised() -> None:
    scene = Scene()
    scene.monitor.start()
    scene.confinement.breach = "too little left"
    scene.world.until(lambda w: bool(w.stopped))
    assert scene.world.stopped == ["BreachError: too little left"]
    for call in (scene.monitor.check, lambda: scene.monitor.stop_world("over"), scene.monitor.join):
        with pytest.raises(BreachError, match="too little left"):
            call()
    assert scene.world.stopped[-1] == "over", "it is stopped all the same"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_run_in_a_line(tmp_path: Path) -> None:
    """Whichever thread meets it: here the monitor's, which stops the world."""
    path = tmp_path / "events.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(DiskFullError) as said:
        fill(path)
    assert str(said.value) == f"{path}: No space left on device"


def fill(path: Path) -> None:
    with log_file(path) as sink:
        sink.reconfigure(line_buffering=False)  # else the header would be refused before anything has begun
        with Scene(sink) as scene:
            sink.reconfigure(line_buffering=True)
            scene.world.until(lambda w: bool(w.stopped))


def test_another_failure_of_a_log_is_none_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), log_file(tmp_path / "nowhere" / "events.jsonl"):
        pytest.fail("it was opened")
