"""A made-up kernel whose new groups have every file, and the real one where it allows groups."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from realproc.kernel import control_groups
from realproc.kernel.control_groups import ControlGroups, read_groups, try_limit
from tests.realproc.trees import COMMON, V1, V2, plant

STAT_V1 = """cache 3000
rss 1
total_cache 9000
total_rss 5000
total_shmem 1000
total_dirty 200
total_writeback 300
"""
FILES_V1 = {
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.memsw.limit_in_bytes": "9223372036854771712\n",
    "memory.usage_in_bytes": "14000\n",
    "memory.max_usage_in_bytes": "20000\n",
    "memory.failcnt": "7\n",
    "memory.stat": STAT_V1,
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "memory.pressure_level": "",
    "cgroup.event_control": "",
    "cgroup.procs": "",
}
STAT_V2 = "anon 5000\nfile 9000\nshmem 1000\nfile_dirty 200\nfile_writeback 300\n"
FILES_V2 = {
    "memory.max": "max\n",
    "memory.high": "max\n",
    "memory.swap.max": "max\n",
    "memory.current": "14000\n",
    "memory.peak": "20000\n",
    "memory.stat": STAT_V2,
    "memory.events": "low 0\nhigh 3\nmax 7\noom 4\noom_kill 2\n",
    "cgroup.procs": "",
}

Fake = Callable[[str], ControlGroups]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Call it with ``v1`` or ``v2``: the groups of a made-up machine of that kind."""

    def build(version: str) -> ControlGroups:
        files = FILES_V1 if version == "v1" else FILES_V2

        def make(folder: Path) -> None:
            folder.mkdir()
            plant(folder, files)

        monkeypatch.setattr(control_groups, "make_group", make)
        monkeypatch.setattr(control_groups, "remove_group", shutil.rmtree)
        return read_groups(plant(tmp_path, COMMON, V1 if version == "v1" else V2))

    return build


@pytest.fixture(scope="session")
def real_groups() -> ControlGroups:
    """The groups of this very machine; skips where they cannot be limited."""
    groups = read_groups()
    if not (trial := try_limit(groups)).settable:
        pytest.skip(f"no memory control group can be made and limited here: {trial.detail}")
    return groups


@pytest.fixture(scope="session")
def real_v1(real_groups: ControlGroups) -> ControlGroups:
    """Those of v1."""
    if real_groups.memory != "v1":
        pytest.skip(f"the memory controller here is {real_groups.memory}, this is about v1")
    return real_groups
