"""Groups made for a run: the same readings from v1 and v2, refusals in one line, and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from molt.errors import InputError
from molt.units import MIB
from realproc.kernel import control_groups, limited_group
from realproc.kernel.control_groups import ControlGroups
from realproc.kernel.limited_group import GroupV1, GroupV2, Reading
from tests.realproc.conftest import FILES_V1, Fake
from tests.realproc.trees import plant

LIMIT_BYTES = 64 * MIB
EXPECTED = Reading(
    usage_bytes=14000,
    peak_bytes=20000,
    anonymous_bytes=5000,
    file_bytes=9000,
    droppable_bytes=7500,
    kills=2,
    limit_hits=7,
)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_group_is_made_limited_read_and_removed(fake: Fake, version: str) -> None:
    """What the two kinds of kernel write differently comes out the same."""
    group = limited_group.make(fake(version), "run", LIMIT_BYTES)
    assert (group.version, group.limit_bytes, group.read()) == (version, LIMIT_BYTES, EXPECTED)
    group.set_limit(2 * LIMIT_BYTES)
    assert group.limit_bytes == 2 * LIMIT_BYTES
    assert int(group.usage_file.read_text()) == 14000
    assert limited_group.remove(group.folder)
    assert not group.folder.exists()
    assert limited_group.remove(group.folder), "what is not there is gone"


def test_swap_is_out_of_reach(fake: Fake, tmp_path: Path) -> None:
    v1 = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    assert int((v1.folder / "memory.memsw.limit_in_bytes").read_text()) == LIMIT_BYTES
    v2 = limited_group.make(fake("v2"), "run", LIMIT_BYTES)
    assert (v2.folder / "memory.swap.max").read_text() == "0"


def test_swap_that_is_on_and_not_counted_is_not_used(tmp_path: Path) -> None:
    """A kernel of v1 without the accounting: with swap, a process that holds would be written out and not killed."""
    group = GroupV1(plant(tmp_path, FILES_V1, {"memory.swappiness": "60\n"}))
    group.set_limit(LIMIT_BYTES)
    assert (tmp_path / "memory.swappiness").read_text() == "60\n"
    (tmp_path / "memory.memsw.limit_in_bytes").unlink()
    group.set_limit(2 * LIMIT_BYTES)
    assert (tmp_path / "memory.swappiness").read_text() == "0"
    assert group.limit_bytes == 2 * LIMIT_BYTES


def test_v1_registers_its_events_with_the_kernel(fake: Fake) -> None:
    """The kernel receives eventfd, file and argument."""
    group = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    assert isinstance(group, GroupV1)
    control = group.folder / "cgroup.event_control"
    for make_event, argument in (
        (lambda: group.usage_event(4096), "4096"),
        (lambda: group.pressure_event("low"), "low"),
        (group.oom_event, ""),
    ):
        event = make_event()
        words = control.read_text().split()
        assert words[0] == str(event)
        assert words[2:] == ([argument] if argument else [])
        os.close(event)
    group.pause_at_limit(True)
    assert (group.folder / "memory.oom_control").read_text() == "1"
    (group.folder / "memory.oom_control").write_text("oom_kill_disable 1\nunder_oom 1\noom_kill 0\n")
    assert group.paused


def test_v2_slows_down(fake: Fake) -> None:
    group = limited_group.make(fake("v2"), "run", LIMIT_BYTES)
    assert isinstance(group, GroupV2)
    group.set_high(LIMIT_BYTES // 2)
    assert (group.folder / "memory.high").read_text() == str(LIMIT_BYTES // 2)


def test_v2_goes_where_the_controller_is_handed_down(fake: Fake) -> None:
    """The own group has processes in it and cannot limit children; its parent can."""
    group = limited_group.make(fake("v2"), "run", LIMIT_BYTES)
    assert group.folder.parent.name == "user.slice"


def test_the_next_ancestor_is_taken(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, make = fake("v1"), control_groups.make_group

    def refuse_inmost(folder: Path) -> None:
        if folder.parent.name == "inner":
            raise PermissionError(13, "Permission denied", str(folder))
        make(folder)

    monkeypatch.setattr(control_groups, "make_group", refuse_inmost)
    assert limited_group.make(groups, "run", LIMIT_BYTES).folder.parent.name == "me"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_limit_that_is_refused_leaves_no_group(
    fake: Fake, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = fake(version)

    def refuse(file: Path, text: str) -> None:
        raise OSError(16, "Device or resource busy", str(file))

    monkeypatch.setattr(limited_group, "write", refuse)
    with pytest.raises(
        InputError, match=r"^no memory limit can be set: \S+: Device or resource busy; `molt "
    ):
        limited_group.make(groups, "run", LIMIT_BYTES)
    assert list(tmp_path.rglob("run")) == []


def test_without_a_group_there_is_one_line(fake: Fake, tmp_path: Path) -> None:
    groups = fake("v2")
    nothing = dataclasses.replace(groups, memory=None, memory_folders=())
    with pytest.raises(InputError, match="no memory controller is mounted; `molt doctor`"):
        limited_group.make(nothing, "run", LIMIT_BYTES)
    kept = dataclasses.replace(groups, memory_folders=groups.memory_folders[:1])
    with pytest.raises(InputError, match="does not hand the memory controller down"):
        limited_group.make(kept, "run", LIMIT_BYTES)
    with pytest.raises(InputError, match="this process cannot be moved into it: No such file"):
        limited_group.join(tmp_path / "gone")
    assert limited_group.processes(tmp_path / "gone") == ()


def test_a_torn_file_is_an_error_and_not_a_number(fake: Fake) -> None:
    group = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    group.usage_file.write_text("many\n")
    with pytest.raises(OSError, match="not a number of bytes"):
        group.read()


def test_the_real_kernel_counts_wakes_and_removes(real_groups: ControlGroups) -> None:
    """A child is moved in, takes 8 MiB, is counted, sets off the event at 4 MiB (v1), and is killed with its group."""
    group = limited_group.make(real_groups, f"molt-test-{os.getpid()}", LIMIT_BYTES)
    program = "import sys; sys.stdin.readline(); b = bytearray(8 << 20); print(len(b), flush=True); sys.stdin.read()"
    try:
        assert group.limit_bytes == LIMIT_BYTES
        event = group.usage_event(4 * MIB) if isinstance(group, GroupV1) else None
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert child.stdin is not None
        assert child.stdout is not None
        limited_group.add(group.folder, child.pid)
        assert limited_group.processes(group.folder) == (child.pid,)
        child.stdin.write(b"go\n")
        assert child.stdout.readline() == b"8388608\n"
        reading = group.read()
        assert 8 * MIB <= reading.usage_bytes <= LIMIT_BYTES
        assert reading.peak_bytes is None or reading.peak_bytes >= reading.usage_bytes - MIB
        assert reading.kills == 0
        if event is not None:
            assert select.select([event], [], [], 10)[0] == [event]
            os.close(event)
    finally:
        assert limited_group.remove(group.folder)
    child.communicate()
    assert child.returncode == -9
    assert not group.folder.exists()
