"""The budget of a server, read from the machine that it runs on: the followers of ``molt serve --follow``.

Rules of this module:

- A follower computes the budget of a server that uses so many bytes now: these, and what is free, less a margin that
  always stays free. What a process holds outside of its books (its libraries) is not free.
- Everything is read below ``root``, so that a test can make up a machine. Making a follower raises an ``InputError`` of
  one line where there is nothing to read; after that a missing file is an ``OSError``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from molt.errors import InputError
from realproc.kernel.control_groups import read_groups
from realproc.kernel.machine import REAL_ROOT, read_memory
from realproc.kernel.record import stalls

FREE_SHARE = 32
"""One part in so many of the limit, or of the machine's memory, stays free."""

STALL_NS = 20_000_000
"""So much waiting for memory means that there is too little of it. The kernel updates its count every two seconds."""

CALM_NS = 5_000_000_000
"""After so long without waiting, there is enough again."""


class Available:
    """The memory that the system calls available."""

    def __init__(self, root: Path = REAL_ROOT) -> None:
        self._root = root
        if read_memory(root).available_bytes is None:
            raise InputError("memavailable: /proc/meminfo gives no available memory")

    def budget_bytes(self, usage_bytes: int) -> int:
        memory = read_memory(self._root)
        if memory.available_bytes is None or memory.total_bytes is None:
            raise OSError("/proc/meminfo gives no available memory any more")
        return usage_bytes + memory.available_bytes - memory.total_bytes // FREE_SHARE


class ControlGroup:
    """The available memory, or what is free below the tightest limit of this process's control groups, if less.

    File pages that the kernel drops before it kills count as free.
    """

    def __init__(self, root: Path = REAL_ROOT) -> None:
        self._root = root
        self._available = Available(root)
        if read_groups(root).limit_bytes is None:
            raise InputError("cgroup: no memory limit is set on a control group of this process")

    def budget_bytes(self, usage_bytes: int) -> int:
        groups = read_groups(self._root)
        if groups.room_bytes is None or groups.limit_bytes is None:
            raise OSError("the control group's limit is gone")
        below = usage_bytes + groups.room_bytes - groups.limit_bytes // FREE_SHARE
        return min(below, self._available.budget_bytes(usage_bytes))


class Stalls:
    """The available memory; after tasks had to wait for memory, for a while at most nine tenths of what was used."""

    def __init__(self, root: Path = REAL_ROOT, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._root = root
        self._clock_ns = clock_ns
        self._available = Available(root)
        self._waited_ns = self._waited()
        self._stalled_budget, self._until_ns = 0, 0

    def budget_bytes(self, usage_bytes: int) -> int:
        now_ns, before_ns = self._clock_ns(), self._waited_ns
        self._waited_ns = self._waited()
        if self._waited_ns - before_ns >= STALL_NS:
            self._stalled_budget, self._until_ns = usage_bytes * 9 // 10, now_ns + CALM_NS
        available = self._available.budget_bytes(usage_bytes)
        return min(available, self._stalled_budget) if now_ns < self._until_ns else available

    def _waited(self) -> int:
        found = stalls(self._root)
        if found is None:
            raise InputError("psi: /proc/pressure/memory gives no stall times")
        return found[0]
