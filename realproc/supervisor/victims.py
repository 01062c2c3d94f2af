"""The victims of a run: which of its processes were killed, and how many pages its engines waited for."""

from __future__ import annotations

from pathlib import Path

from realproc.kernel.control_groups import read_text
from realproc.kernel.machine import REAL_ROOT

ENGINE = "engine"
ALLOCATOR = "allocator"
_STATE, _MAJOR_FAULTS = 0, 9  # places in /proc/PID/stat after the name of the program


class Victims:
    """Follows the processes of a run, each with its role: engine or allocator."""

    def __init__(self, root: Path = REAL_ROOT) -> None:
        self._root = root
        self._seen: set[int] = set()
        self._alive: dict[int, str] = {}
        self._faults: dict[int, int] = {}
        self._reported = 0

    def follow(self, pid: int, what: str) -> bool:
        """Follow a process from now on; returns whether it is a new one. A process that has gone stays gone."""
        is_new = pid not in self._seen
        if is_new:
            self._seen.add(pid)
            self._alive[pid] = what
        return is_new

    def newly_gone(self, kills: int) -> list[tuple[str, int]]:
        """The processes that have gone since the last call, if the kernel counts more ``kills`` than victims were
        returned so far: a killed process goes a little later than its kill is counted."""
        gone = []
        for pid, what in list(self._alive.items()):
            faults = major_faults(pid, self._root)
            if faults is None:
                gone.append((what, pid))
                del self._alive[pid]
            elif what == ENGINE:
                self._faults[pid] = faults
        if kills <= self._reported:
            return []
        self._reported += len(gone)
        return gone

    @property
    def major_faults(self) -> int:
        """Pages that engines have waited for, as far as it was seen."""
        return sum(self._faults.values())


def major_faults(pid: int, root: Path = REAL_ROOT) -> int | None:
    """Pages that a process had to wait for; ``None`` once it has ended, or where the system does not count them."""
    _, _, after = (read_text(root / f"proc/{pid}/stat") or "").rpartition(")")
    fields = after.split()
    if len(fields) <= _MAJOR_FAULTS or fields[_STATE] in ("Z", "X"):
        return None
    return int(fields[_MAJOR_FAULTS])
