"""How much of a group's file pages the kernel can drop: active clean pages too, dirty ones not at once, shared memory
never; and the follower, the recorder and a run count alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from molt.units import MIB
from realproc.follow import FREE_SHARE, ControlGroup
from realproc.kernel import limited_group
from realproc.kernel.control_groups import ControlGroups, read_groups
from realproc.kernel.record import group_at
from tests.realproc.trees import COMMON, GIB, V1, V2, plant

V1_FOLDER, V2_FOLDER = "sys/fs/cgroup/memory/me", "sys/fs/cgroup/user.slice/molt.scope"

FILES = {
    # name: active, inactive, cache, shmem, dirty, writeback, and what of them can be dropped, MiB
    "read three times": (250, 2, 252, 0, 0, 0, 252),
    "read once": (0, 250, 250, 0, 0, 0, 250),
    "just written": (0, 250, 250, 0, 240, 8, 2),
    "in /dev/shm": (0, 0, 250, 250, 0, 0, 0),
    "locked in memory": (0, 10, 250, 0, 0, 0, 10),
    "some of each": (100, 50, 230, 70, 30, 10, 110),
    "counted late": (0, 5, 5, 0, 9, 0, 0),
}


def stat(version: str, active: int, inactive: int, cache: int, shmem: int, dirty: int, writeback: int) -> str:
    names = (
        ("total_active_file", "total_inactive_file", "total_cache", "total_shmem", "total_dirty", "total_writeback")
        if version == "v1"
        else ("active_file", "inactive_file", "file", "shmem", "file_dirty", "file_writeback")
    )  # fmt: skip
    lines = zip(names, (active, inactive, cache, shmem, dirty, writeback), strict=True)
    own = "active_file 1\ninactive_file 1\ncache 2\ndirty 0\n" if version == "v1" else ""
    return own + "".join(f"{name} {size * MIB}\n" for name, size in lines)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", FILES)
def test_what_can_really_be_dropped_counts_as_free(tmp_path: Path, version: str, name: str) -> None:
    """The room below the limit, the follower's budget and the recorder's reading agree."""
    *files, droppable = FILES[name]
    used, limit = 900, 2048
    folder, current, maximum = (
        (V1_FOLDER, "memory.usage_in_bytes", "memory.limit_in_bytes")
        if version == "v1"
        else (V2_FOLDER, "memory.current", "memory.max")
    )
    changed = {
        f"{folder}/{current}": f"{used * MIB}\n",
        f"{folder}/{maximum}": f"{limit * MIB}\n",
        f"{folder}/memory.stat": stat(version, *files),
        f"{folder}/{'memory.failcnt' if version == 'v1' else 'memory.events'}": "0\n",
        f"{folder}/memory.oom_control": "oom_kill 0\n",
    }
    root = plant(tmp_path, COMMON, V1 if version == "v1" else V2, changed)
    assert read_groups(root).room_bytes == (limit - used + droppable) * MIB
    reading = group_at(root / folder).read()
    assert (reading.droppable_bytes, reading.held_bytes) == (droppable * MIB, (used - droppable) * MIB)
    free = (limit - used + droppable) * MIB - limit * MIB // FREE_SHARE
    assert ControlGroup(root).budget_bytes(0) == min(free, 4 * GIB - 8 * GIB // FREE_SHARE)


def test_a_file_that_was_read_three_times_is_free_in_a_real_group(
    real_groups: ControlGroups, tmp_path: Path
) -> None:
    """Its pages are active; all the same as much can be allocated as is counted free."""
    file = tmp_path / "file"
    file.write_bytes(bytes(24 * MIB))
    with file.open("rb+") as written:
        os.fsync(written.fileno())
        os.posix_fadvise(
            written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED
        )  # so that this process is not charged
    program = (
        "import sys; sys.stdin.readline()\n"
        f"for _ in range(3): open({str(file)!r}, 'rb').read()\n"
        "print('read', flush=True); size = int(sys.stdin.readline())\n"
        "block = bytearray(size); block[::4096] = b'1' * len(block[::4096]); print('held', flush=True)\n"
    )
    group = limited_group.make(real_groups, f"molt-test-drop-{os.getpid()}", 64 * MIB)
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        limited_group.add(group.folder, child.pid)
        child.stdin.write("go\n")
        assert child.stdout.readline() == "read\n"
        reading = group.read()
        if reading.file_bytes < 20 * MIB:
            pytest.skip("the file's pages are charged to another group here")
        assert reading.droppable_bytes >= 20 * MIB
        child.stdin.write(f"{group.limit_bytes - reading.held_bytes - 4 * MIB}\n")
        assert child.stdout.readline() == "held\n", "what was counted free could not be had"
        child.communicate()
        assert group.read().kills == 0
    finally:
        assert limited_group.remove(group.folder)
