"""A recording has the budgets that a process might have had, and is a trace that a scenario can replay."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.errors import InputError
from molt.jobs.trace import read_csv
from molt.models.ladder_file import resolve
from molt.units import MIB, SECOND_NS
from realproc.kernel.control_groups import ControlGroups
from realproc.kernel.guard import Ceilings, Guard
from realproc.kernel.limited_group import GroupV1, GroupV2, Reading
from realproc.kernel.pressure import Allocator, AllocatorSpec
from realproc.kernel.record import (
    HEADER,
    Own,
    RecordedSample,
    Recorder,
    command,
    group_at,
    limit_of,
    own_memory,
    record,
    stalls,
)
from tests.realproc.conftest import FILES_V1, FILES_V2
from tests.realproc.trees import COMMON, GIB, plant

SIZE = st.integers(0, 2**40)


def reading(usage_bytes: int, droppable_bytes: int) -> Reading:
    return Reading(usage_bytes, None, 0, 0, droppable_bytes, 0, 0)


@given(SIZE, SIZE, SIZE, SIZE, SIZE)
def test_the_budget_is_what_is_held_and_what_is_free(
    available: int, own: int, limit: int, usage: int, droppable: int
) -> None:
    """Clean file pages count as free, and neither the machine nor the group is asked for more than it has."""
    droppable = min(droppable, usage)
    sample = RecordedSample(available, 0, None, Own(own, 0, 0), reading(usage, droppable), limit)
    assert sample.budget_bytes == max(1, own + min(available, limit - usage + droppable))
    assert RecordedSample(available, 0, None, None, None, None).budget_bytes == max(1, available)
    without_limit = RecordedSample(available, 0, None, None, reading(usage, droppable), None)
    assert without_limit.budget_bytes == max(1, available)


def test_rows_are_a_trace(tmp_path: Path) -> None:
    """The machine is made up; what its files do not have is an empty cell, and the trace reads the rest."""
    recorder = Recorder(root=plant(tmp_path / "machine", COMMON))
    file = tmp_path / "trace.csv"
    with file.open("w") as sink:
        assert record(recorder, sink, duration_ns=2_000_000, interval_ns=1_000_000) >= 2
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert tuple(rows[0]) == HEADER
    assert rows[0]["at"] == "0s"
    assert {row["budget"] for row in rows} == {"4GiB"}
    assert {row["swap_used"] for row in rows} == {"1GiB"}
    assert {row["own_anon"] + row["group_limit"] for row in rows} == {""}
    assert {(row["stall_some"], row["stall_full"]) for row in rows} == {("0s", "0s")}
    assert dict(read_csv(file).on(resolve("pico").ladder))[0] == 4 * GIB


def test_without_pressure_information_its_cells_are_empty(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/meminfo": COMMON["proc/meminfo"]})
    assert stalls(root) is None
    sink = io.StringIO()
    record(Recorder(root=root), sink, duration_ns=0)
    assert sink.getvalue().splitlines()[1].endswith(",,")


def test_stalls_are_read_in_nanoseconds(tmp_path: Path) -> None:
    assert stalls(plant(tmp_path, COMMON)) == (12_000, 3_000)


@pytest.mark.parametrize(("unlimited", "limited"), [("9223372036854771712\n", "8388608\n")])
def test_a_group_without_a_limit(tmp_path: Path, unlimited: str, limited: str) -> None:
    """v1 says so with the largest multiple of a page, v2 with ``max``."""
    v1 = group_at(plant(tmp_path / "v1", FILES_V1))
    v2 = group_at(plant(tmp_path / "v2", FILES_V2))
    assert isinstance(v1, GroupV1)
    assert isinstance(v2, GroupV2)
    plant(v1.folder, {"memory.limit_in_bytes": unlimited})
    assert (limit_of(v1), limit_of(v2)) == (None, None)
    plant(v1.folder, {"memory.limit_in_bytes": limited})
    plant(v2.folder, {"memory.max": limited})
    assert (limit_of(v1), limit_of(v2)) == (8 * MIB, 8 * MIB)


def test_own_memory_by_kind(tmp_path: Path) -> None:
    status = "Name:\tmolt\nVmRSS:\t 60 kB\nRssAnon:\t 10 kB\nRssFile:\t 20 kB\nRssShmem:\t 30 kB\n"
    root = plant(tmp_path, {"proc/7/status": status})
    assert own_memory(7, root) == Own(10 * 1024, 20 * 1024, 30 * 1024)
    assert own_memory(2**22 + 1, root) is None, "no process has such an id"
    here = own_memory(os.getpid(), root)
    assert here is not None
    assert here.anonymous_bytes > MIB, "the system knows what the made-up machine does not"


def test_what_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.touch()
    with pytest.raises(InputError, match=r"there\.csv: exists already"):
        command(there, 0, 1, None, None)
    with pytest.raises(InputError, match="no such process"):
        command(tmp_path / "new.csv", 0, 1, 2**22 + 1, None)
    with pytest.raises(InputError, match="not a memory control group"):
        command(tmp_path / "new.csv", 0, 1, None, tmp_path)
    with pytest.raises(InputError, match="No such file or directory"):
        command(tmp_path / "nowhere" / "new.csv", 0, 1, None, None)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda self, *args, **rest: open("/dev/full", "w"))  # noqa: SIM115
    with pytest.raises(InputError, match=r"new\.csv: No space left on device"):
        command(tmp_path / "new.csv", 0, 1, None, None)


def test_a_group_under_pressure(real_groups: ControlGroups) -> None:
    """What an allocator takes of a real group is missing in the budget."""
    with Guard(64 * MIB, Ceilings(64 * MIB, keep_free_bytes=64 * MIB), real_groups) as guard:
        recorder = Recorder(group=group_at(guard.group.folder))
        before = recorder.sample()
        assert before.limit_bytes == 64 * MIB
        with Allocator(AllocatorSpec(group=guard.group.folder)) as allocator:
            guard.child(allocator.pid)
            allocator.hold(24 * MIB)
            assert allocator.wait_until_held(24 * MIB, 60 * SECOND_NS) is not None
            taken = before.budget_bytes - recorder.sample().budget_bytes
    assert 24 * MIB <= taken < 32 * MIB
