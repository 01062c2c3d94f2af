"""Who is gone is told when the kernel has killed, and only then; pages waited for are summed over all engines."""

from __future__ import annotations

import os
from pathlib import Path

from realproc.supervisor.victims import ALLOCATOR, ENGINE, Victims, major_faults
from tests.realproc.trees import plant


def process(root: Path, pid: int, state: str = "S", faults: int = 0) -> None:
    """A process with an awkward name."""
    fields = f"{state} 1 2 3 4 5 6 7 8 {faults} 10 11"
    plant(root, {f"proc/{pid}/stat": f"{pid} (molt) S (x) {fields}\n"})


def test_a_victim_is_told_once(tmp_path: Path) -> None:
    process(tmp_path, 7)
    process(tmp_path, 8)
    toll = Victims(tmp_path)
    assert toll.follow(7, ENGINE)
    assert toll.follow(8, ALLOCATOR)
    assert not toll.follow(7, ENGINE)
    assert toll.look(0) == []
    process(tmp_path, 7, state="Z")
    assert toll.look(1) == [(ENGINE, 7)]
    assert toll.look(1) == []
    assert not toll.follow(7, ENGINE), "who has gone stays gone"


def test_a_victim_goes_later_than_it_is_counted(tmp_path: Path) -> None:
    process(tmp_path, 7)
    toll = Victims(tmp_path)
    toll.follow(7, ENGINE)
    assert toll.look(1) == []
    process(tmp_path, 7, state="Z")
    assert toll.look(1) == [(ENGINE, 7)]


def test_who_ended_by_itself_is_no_victim(tmp_path: Path) -> None:
    toll = Victims(tmp_path)
    toll.follow(7, ENGINE)
    assert toll.look(0) == []
    assert toll.look(1) == [], "it had gone before"


def test_faults_outlive_their_process(tmp_path: Path) -> None:
    toll = Victims(tmp_path)
    for pid, what, faults in ((7, ENGINE, 30), (8, ALLOCATOR, 500)):
        process(tmp_path, pid, faults=faults)
        toll.follow(pid, what)
    toll.look(0)
    process(tmp_path, 7, state="X")
    process(tmp_path, 9, faults=4)
    toll.follow(9, ENGINE)
    toll.look(1)
    assert toll.major_faults == 34


def test_this_process_is_alive() -> None:
    assert major_faults(os.getpid()) is not None
    assert major_faults(2**22 + 1) is None
