"""Made-up machines: folders with the files a kernel would show, and a kernel that makes control groups in them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from realproc.kernel import control_groups

GIB = 2**30

CPUINFO = """processor\t: 0
model name\t: Made-up 9000
flags\t\t: fpu avx2 avx512f avx512_vnni

processor\t: 1
model name\t: Made-up 9001
flags\t\t: fpu avx2 avx512f avx512_vnni
"""

MEMINFO = """MemTotal:        8388608 kB
MemFree:         1000000 kB
MemAvailable:    4194304 kB
SwapTotal:       2097152 kB
SwapFree:        1048576 kB
HugePages_Total:       3
Hugepagesize:       2048 kB
"""

COMMON = {
    "proc/cpuinfo": CPUINFO,
    "proc/meminfo": MEMINFO,
    "proc/loadavg": "0.25 0.50 0.75 1/80 4242\n",
    "proc/self/status": "Name:\tmolt\nCpus_allowed:\tb\nCpus_allowed_list:\t0-1,3\n",
    "proc/self/environ": "HOME=/home/me\0OMP_WAIT_POLICY=active\0SECRET=1\0",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/pressure/memory": "some avg10=1.25 avg60=0.10 avg300=0.00 total=12\nfull avg10=0.00 total=3\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "proc/sys/kernel/sched_autogroup_enabled": "1\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
    "sys/class/power_supply/BAT0/type": "Battery\n",
    "sys/class/power_supply/BAT0/status": "Discharging\n",
}

NO_LIMIT_V1 = "9223372036854771712\n"

V1 = {
    "proc/self/mountinfo": """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
""",
    "proc/self/cgroup": "3:name=systemd:/me\n2:memory:/me/inner\n1:cpu,cpuacct:/me\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
    "sys/fs/cgroup/memory/me/memory.limit_in_bytes": f"{2 * GIB}\n",
    "sys/fs/cgroup/memory/me/memory.usage_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/me/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
    "sys/fs/cgroup/memory/me/inner/memory.limit_in_bytes": NO_LIMIT_V1,
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/me/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/me/cpu.cfs_period_us": "100000\n",
}

V2 = {
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
    "proc/self/cgroup": "0::/user.slice/molt.scope\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
    "sys/fs/cgroup/cgroup.subtree_control": "cpu memory pids\n",
    "sys/fs/cgroup/user.slice/cgroup.controllers": "cpu memory pids\n",
    "sys/fs/cgroup/user.slice/cgroup.subtree_control": "memory pids\n",
    "sys/fs/cgroup/user.slice/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/user.slice/molt.scope/cgroup.controllers": "memory pids\n",
    "sys/fs/cgroup/user.slice/molt.scope/cgroup.subtree_control": "\n",
    "sys/fs/cgroup/user.slice/molt.scope/memory.max": f"{3 * GIB}\n",
    "sys/fs/cgroup/user.slice/molt.scope/memory.current": f"{GIB}\n",
    "sys/fs/cgroup/user.slice/molt.scope/memory.stat": "anon 1\ninactive_file 4096\n",
    "sys/fs/cgroup/user.slice/molt.scope/cpu.max": "max 100000\n",
}

HYBRID = {
    **V1,
    "proc/self/mountinfo": V1["proc/self/mountinfo"]
    + "35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    "proc/self/cgroup": V1["proc/self/cgroup"] + "0::/\n",
    "sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n",
}


def plant(root: Path, *trees: Mapping[str, str]) -> Path:
    """Write the files of some trees below ``root``; gives ``root``."""
    for tree in trees:
        for name, text in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up kernel: files of control appear in a new group and go with it."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for name in ("memory.max", "memory.limit_in_bytes"):
            (folder / name).write_text("", encoding="utf-8")

    monkeypatch.setattr(control_groups, "make_group", make)
    monkeypatch.setattr(control_groups, "remove_group", shutil.rmtree)
