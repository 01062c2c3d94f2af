"""A process that has gone is a victim only if the kernel has counted a kill; major faults are summed over engines."""

from __future__ import annotations

import os
from pathlib import Path

from realproc.supervisor.victims import ALLOCATOR, ENGINE, Victims, major_faults
from tests.realproc.trees import plant


def process(root: Path, pid: int, state: str = "S", faults: int = 0) -> None:
    """A process with an awkward name."""
    fields = f"{state} 1 2 3 4 5 6 7 8 {faults} 10 11"
    plant(root, {f"proc/{pid}/stat": f"{pid} (molt) S (x) {fields}\n"})


def test_a_victim_is_reported_once(tmp_path: Path) -> None:
    process(tmp_path, 7)
    process(tmp_path, 8)
    victims = Victims(tmp_path)
    assert victims.follow(7, ENGINE)
    assert victims.follow(8, ALLOCATOR)
    assert not victims.follow(7, ENGINE)
    assert victims.newly_gone(0) == []
    process(tmp_path, 7, state="Z")
    assert victims.newly_gone(1) == [(ENGINE, 7)]
    assert victims.newly_gone(1) == []
    assert not victims.follow(7, ENGINE), "a process that has gone stays gone"


def test_a_victim_goes_later_than_it_is_counted(tmp_path: Path) -> None:
    process(tmp_path, 7)
    victims = Victims(tmp_path)
    victims.follow(7, ENGINE)
    assert victims.newly_gone(1) == []
    process(tmp_path, 7, state="Z")
    assert victims.newly_gone(1) == [(ENGINE, 7)]


def test_a_process_that_ended_by_itself_is_no_victim(tmp_path: Path) -> None:
    victims = Victims(tmp_path)
    victims.follow(7, ENGINE)
    assert victims.newly_gone(0) == []
    assert victims.newly_gone(1) == [], "it had gone before"


def test_faults_outlive_their_process(tmp_path: Path) -> None:
    victims = Victims(tmp_path)
    for pid, what, faults in ((7, ENGINE, 30), (8, ALLOCATOR, 500)):
        process(tmp_path, pid, faults=faults)
        victims.follow(pid, what)
    victims.newly_gone(0)
    process(tmp_path, 7, state="X")
    process(tmp_path, 9, faults=4)
    victims.follow(9, ENGINE)
    victims.newly_gone(1)
    assert victims.major_faults == 34


def test_this_process_is_alive() -> None:
    assert major_faults(os.getpid()) is not None
    assert major_faults(2**22 + 1) is None
