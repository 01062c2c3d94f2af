"""What a server may use, read from the machine it runs on: the followers of ``molt serve --follow``.

Rules of this module:

- A follower says how much somebody who uses so many bytes now may use: that, and what is free beside it, less a margin
  that stays free whatever happens. What a process holds that is in nobody's books (its libraries) is not free.
- Everything is read below ``root``, so that a test can make up a machine. Making one refuses in one line, an
  ``InputError``, where there is nothing to read; after that a file that is gone is an ``OSError``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from molt.errors import InputError
from realproc.kernel.control_groups import read_groups
from realproc.kernel.machine import REAL_ROOT, read_memory
from realproc.kernel.record import stalls

MARGIN_SHARE = 32
"""One part in so many of the limit, or of the machine's memory, stays free."""

STALL_NS = 20_000_000
"""Waiting for memory from which on there is too little of it. The kernel counts it up every two seconds."""

CALM_NS = 5_000_000_000
"""Without waiting for so long, there is enough again."""


class Available:
    """What the system calls available."""

    def __init__(self, root: Path = REAL_ROOT) -> None:
        self._root = root
        if read_memory(root).available_bytes is None:
            raise InputError("memavailable: /proc/meminfo does not tell")

    def budget_bytes(self, usage_bytes: int) -> int:
        memory = read_memory(self._root)
        if memory.available_bytes is None or memory.total_bytes is None:
            raise OSError("/proc/meminfo does not tell any more")
        return usage_bytes + memory.available_bytes - memory.total_bytes // MARGIN_SHARE


class ControlGroup:
    """What is available, and free below the tightest limit of the control groups this process is in.

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
        below = usage_bytes + groups.room_bytes - groups.limit_bytes // MARGIN_SHARE
        return min(below, self._available.budget_bytes(usage_bytes))


class Stalls:
    """What is available; and a tenth less than was used, for a while after tasks had to wait for memory."""

    def __init__(self, root: Path = REAL_ROOT, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._root = root
        self._clock_ns = clock_ns
        self._available = Available(root)
        self._waited_ns = self._waited()
        self._budget_bytes, self._until_ns = 0, 0

    def budget_bytes(self, usage_bytes: int) -> int:
        now_ns, before_ns = self._clock_ns(), self._waited_ns
        self._waited_ns = self._waited()
        if self._waited_ns - before_ns >= STALL_NS:
            self._budget_bytes, self._until_ns = usage_bytes * 9 // 10, now_ns + CALM_NS
        available = self._available.budget_bytes(usage_bytes)
        return min(available, self._budget_bytes) if now_ns < self._until_ns else available

    def _waited(self) -> int:
        found = stalls(self._root)
        if found is None:
            raise InputError("psi: /proc/pressure/memory does not tell")
        return found[0]
