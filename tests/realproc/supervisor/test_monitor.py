"""Who attends a run: it tells the process what it may have, lets things happen, and writes down what others count."""

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
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Holding
from realproc.kernel.signals import MS_NS, UsageReading
from realproc.kernel.touched_pages import MIB
from realproc.supervisor.headroom import Share, Standing
from realproc.supervisor.monitor import Monitor, RunProcesses, SharedLog, TimedAction
from realproc.supervisor.real_run import log_file
from realproc.supervisor.step_times import StepTimes

SHARE = Share(limit_bytes=100 * MIB, base_bytes=20 * MIB, margin_bytes=4 * MIB)
GENEROUS_S = 60.0


class Place:
    """A place whose usage the test says."""

    def __init__(self, awake: bool) -> None:
        self._awake = awake
        self.sights: dict[int, Sight] = {}
        self.others_bytes = self.excess_bytes = 0
        self.kills = self.looks = 0
        self.breach: str | None = None
        self.engines: list[int] = []

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        self.looks += 1
        own_bytes = SHARE.base_bytes + self.excess_bytes
        return Standing(time.monotonic_ns(), own_bytes + self.others_bytes, own_bytes)

    def vigil(self, signal: str, share: Share, reaction_ns: int) -> Sight:
        sight = self.sights[share.limit_bytes] = Sight(self._awake)
        return sight

    def resize(self, share: Share, budget_bytes: int) -> Share:
        return share.of(budget_bytes)

    def counted(self) -> dict[str, int]:
        return {"kills": self.kills, "peak_bytes": 42}

    def engine_is(self, pid: int) -> None:
        self.engines.append(pid)

    def check(self) -> None:
        if self.breach is not None:
            raise BreachError(self.breach)


class World:
    """A world that hears, and lets a test wait for that."""

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

    def until(self, fulfilled: Callable[[World], bool]) -> None:
        with self._news:
            assert self._news.wait_for(lambda: fulfilled(self), GENEROUS_S)


class Processes:
    """An engine that is there, or an allocator that reports."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid
        self.said: list[Holding] = []

    def reports(self) -> Iterator[Holding]:
        said, self.said = self.said, []
        return iter(said)


class Sight:
    """A vigil that looks every millisecond, and is awake if the test says so."""

    def __init__(self, awake: bool) -> None:
        self._awake, self.is_closed = awake, False

    def close(self) -> None:
        self.is_closed = True

    def look(self, until_ns: int) -> UsageReading:
        time.sleep(0.001)
        return UsageReading(time.monotonic_ns(), 0, 0)

    def awake(self, at_ns: int) -> bool:
        return self._awake


class Beat:
    """A pulse of a world that has begun."""

    kept_bytes = 0
    booked_bytes = 0

    def begin_ns(self, within_s: float) -> int:
        return time.monotonic_ns()


class Scene:
    """An attendant with everything around it made up; it is there as long as the ``with`` block."""

    def __init__(
        self, sink: TextIO | None = None, due: Iterable[TimedAction] = (), *, awake: bool = True
    ) -> None:
        self.place, self.world, self.engine, self.allocator = (
            Place(awake),
            World(),
            Processes(),
            Processes(2**22 + 1),
        )
        self.stage = RunProcesses(
            cast(Any, self.engine),
            cast(Any, self.allocator),
            cast(Any, self.place),
            SHARE,
            budget_bytes=SHARE.budget_bytes(0),
            told_bytes=SHARE.budget_bytes(0),
        )
        self.attendant = Monitor(
            self.stage,
            cast(LiveWorld, self.world),
            SharedLog(io.StringIO() if sink is None else sink, {}),
            "made up",
            cast(StepTimes, Beat()),
            lambda: 0,
            due,
        )

    def __enter__(self) -> Scene:
        self.attendant.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.attendant.leave()

    def seen(self) -> None:
        """Wait until the attendant has looked, and has done with what it saw."""
        looks = self.place.looks
        while self.place.looks < looks + 3:
            time.sleep(0.001)


def written(sink: io.StringIO, kind: str) -> list[dict[str, Any]]:
    return [record for line in sink.getvalue().splitlines() if (record := json.loads(line))["kind"] == kind]


def test_a_fall_is_told_and_written_down() -> None:
    sink = io.StringIO()
    with Scene(sink) as scene:
        scene.place.others_bytes = 30 * MIB
        scene.world.until(lambda w: bool(w.budgets))
        assert scene.world.budgets == [SHARE.budget_bytes(30 * MIB)]
        assert scene.attendant.held_max_bytes == SHARE.base_bytes + 30 * MIB
        scene.attendant.forget_held()
    (told,) = written(sink, "signal")
    assert told["budget_bytes"] == SHARE.budget_bytes(30 * MIB)
    assert told["held_bytes"] == SHARE.base_bytes + 30 * MIB
    assert told["own_bytes"] == SHARE.base_bytes


def test_what_the_engine_holds_beyond_its_books_is_no_budget() -> None:
    with Scene() as scene:
        scene.place.excess_bytes = 6 * MIB
        scene.world.until(lambda w: bool(w.budgets))
        assert scene.world.budgets == [SHARE.budget_bytes(6 * MIB)]


def test_a_late_signal_leaves_it_in_the_dark_but_for_another_limit() -> None:
    """The new limit is told whatever the signal, and what is told afterwards goes by it."""
    with Scene(awake=False) as scene:
        scene.place.others_bytes = 30 * MIB
        scene.seen()
        scene.attendant.resize(40 * MIB)
        scene.seen()
        assert scene.world.budgets == [40 * MIB]
        assert scene.stage.share == SHARE.of(40 * MIB)
        assert scene.stage.budget_bytes == 40 * MIB


def test_what_wakes_goes_by_the_limit_of_now_and_is_closed_in_the_end() -> None:
    with Scene() as scene:
        scene.attendant.resize(40 * MIB)
        scene.seen()
        before, now = (scene.place.sights[share.limit_bytes] for share in (SHARE, SHARE.of(40 * MIB)))
        assert (before.is_closed, now.is_closed) == (True, False)
    assert now.is_closed


def test_what_others_take_is_written_when_it_changes() -> None:
    sink = io.StringIO()
    held = Holding(time.monotonic_ns() + 1000 * MS_NS, 7 * MIB, 7 * MIB)
    with Scene(sink) as scene:
        scene.allocator.said = [held, replace(held, at_ns=held.at_ns + 1)]
        scene.seen()
        assert scene.attendant.taken_bytes == 7 * MIB
        assert list(scene.attendant.heard) == [held]
    (record,) = written(sink, "pressure")
    assert (record["taken_bytes"], record["budget_bytes"]) == (7 * MIB, SHARE.budget_bytes(7 * MIB))


def test_what_is_due_happens_in_its_order_and_the_last_ends_the_run() -> None:
    sink, happened = io.StringIO(), list[str]()
    due = [
        TimedAction(3 * MS_NS, lambda: scene.attendant.end("horizon")),
        TimedAction(2 * MS_NS, lambda: happened.append("second")),
        TimedAction(1 * MS_NS, lambda: happened.append("first")),
    ]
    scene = Scene(sink, due)
    with scene:
        scene.world.until(lambda w: bool(w.stopped))
    assert happened == ["first", "second"]
    assert scene.world.stopped == ["horizon"]
    assert written(sink, "kernel")[-1]["peak_bytes"] == 42


def test_a_victim_is_told_by_what_it_was() -> None:
    """Neither of the two is there; the kernel has counted one kill, so both have gone by it."""
    sink = io.StringIO()
    scene = Scene(sink, [TimedAction(MS_NS, lambda: scene.attendant.end("horizon"))])
    scene.place.kills = 1
    scene.engine.pid = 2**22 + 2
    with scene:
        scene.world.until(lambda w: bool(w.stopped))
    assert {(r["what"], r["pid"]) for r in written(sink, "victim")} == {
        ("allocator", 2**22 + 1),
        ("engine", 2**22 + 2),
    }
    assert scene.place.engines == [2**22 + 2], "it was told of once"


def test_a_breach_stops_the_world_and_is_raised() -> None:
    scene = Scene()
    scene.attendant.start()
    scene.place.breach = "too little left"
    scene.world.until(lambda w: bool(w.stopped))
    assert scene.world.stopped == ["BreachError: too little left"]
    for told in (scene.attendant.check, lambda: scene.attendant.end("over"), scene.attendant.leave):
        with pytest.raises(BreachError, match="too little left"):
            told()
    assert scene.world.stopped[-1] == "over", "it is stopped all the same"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_run_in_a_line(tmp_path: Path) -> None:
    """Whoever came upon it: here the attendant, whose world is stopped."""
    path = tmp_path / "events.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(BreachError) as said:
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
