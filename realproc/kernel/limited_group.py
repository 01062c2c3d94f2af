"""A memory control group made for one run: v1 and v2 behind one protocol.

Rules of this module:

- A run has a new group, so that the kernel's own counters (peak, kills) begin at 0 and belong to that run alone.
- The kernel charges a page to the group of the process that first touches it, and never moves the charge. A process
  therefore enters the group (``join``, ``add``) before it allocates what is to be counted.
- Where there is swap, the group may not use it: at the limit, memory is given back or a process is killed.
- Where no group can be made, ``make`` raises an ``InputError`` of one line. After that a missing or unreadable file is
  an ``OSError``: the group was taken away.
- ``remove`` kills the processes in the group. This process never enters a group that it has made.
- Sizes are integer bytes; ``realproc/supervisor/headroom.py`` defines their names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from molt.errors import InputError
from realproc.kernel import control_groups
from realproc.kernel.control_groups import (
    ControlGroups,
    Version,
    as_count,
    droppable_bytes,
    limits_children,
    read_count,
    read_table,
    read_text,
    with_below,
    write,
)

HINT = "`molt doctor` shows what this machine offers and how to get one"
REMOVAL_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of what the kernel counts in a group. ``None``: this kernel does not count it.

    ``usage_bytes`` is what the limit is compared with, ``peak_bytes`` its maximum (the kernel's counter, which
    misses nothing between readings). ``anonymous_bytes`` is memory without a file behind it, ``file_bytes`` the page
    cache with shared memory; of that the kernel can drop ``droppable_bytes`` by itself. ``kills`` is how many processes
    its OOM killer has killed, ``limit_hits`` how often the limit was met at all.
    """

    usage_bytes: int
    peak_bytes: int | None
    anonymous_bytes: int
    file_bytes: int
    droppable_bytes: int
    kills: int
    limit_hits: int

    @property
    def held_bytes(self) -> int:
        """The usage that cannot be dropped: only giving memory back, or a kill, makes it less."""
        return max(0, self.usage_bytes - self.droppable_bytes)


class MemoryGroup(Protocol):
    """A memory control group that was made for a run."""

    @property
    def version(self) -> Version:
        """Which of the two interfaces it has."""

    @property
    def folder(self) -> Path:
        """The folder of its files, which ``join`` takes."""

    @property
    def usage_file(self) -> Path:
        """The file with its usage, a number of bytes; a ``Meter`` keeps it open."""

    @property
    def limit_bytes(self) -> int:
        """The limit that is set now."""

    def set_limit(self, limit_bytes: int) -> None:
        """Set the limit. Below usage, v1 refuses with ``OSError`` (EBUSY) and v2 kills."""

    def reset_peak(self) -> None:
        """The peak begins anew, where the kernel allows it: not in v2, whose peak counts since the group was made."""

    def read(self) -> Reading:
        """Everything that is counted."""

    def held_bytes(self) -> int:
        """``Reading.held_bytes`` alone, from two files."""


@dataclass(frozen=True, slots=True)
class GroupV1:
    """A group of a v1 hierarchy. Beyond the protocol, it signals a usage, and can pause instead of kill."""

    folder: Path

    version: Version = "v1"

    @property
    def usage_file(self) -> Path:
        return self.folder / "memory.usage_in_bytes"

    @property
    def limit_bytes(self) -> int:
        return _number(self.folder / "memory.limit_in_bytes")

    def set_limit(self, limit_bytes: int) -> None:
        """The limit of memory with swap is kept equal; it may never be below, so the order of writing matters. If the
        kernel does not count swap, nothing of the group is swapped out."""
        files = [self.folder / "memory.limit_in_bytes", self.folder / "memory.memsw.limit_in_bytes"]
        if not files[1].exists() and (swappiness := self.folder / "memory.swappiness").exists():
            write(swappiness, "0")
        before = read_count(files[0])
        if before is not None and limit_bytes > before:
            files.reverse()
        for file in files:
            if file.exists():
                write(file, str(limit_bytes))

    def read(self) -> Reading:
        stat = read_table(self.folder / "memory.stat")
        return Reading(
            usage_bytes=_number(self.usage_file),
            peak_bytes=read_count(self.folder / "memory.max_usage_in_bytes"),
            anonymous_bytes=with_below(stat, "rss") or 0,
            file_bytes=with_below(stat, "cache") or 0,
            droppable_bytes=droppable_bytes(stat, self.version),
            kills=read_table(self.folder / "memory.oom_control").get("oom_kill", 0),
            limit_hits=_number(self.folder / "memory.failcnt"),
        )

    def held_bytes(self) -> int:
        return max(
            0,
            _number(self.usage_file) - droppable_bytes(read_table(self.folder / "memory.stat"), self.version),
        )

    def reset_peak(self) -> None:
        """The peak begins anew, at the present usage."""
        write(self.folder / "memory.max_usage_in_bytes", "0")

    def usage_event(self, *wake_bytes: int) -> int:
        """An eventfd that becomes readable when usage crosses a threshold, either way. The caller closes it."""
        return self._event("memory.usage_in_bytes", *map(str, wake_bytes))

    def oom_event(self) -> int:
        """An eventfd that becomes readable when the group is out of memory. The caller closes it."""
        return self._event("memory.oom_control", "")

    def pressure_event(self, level: str) -> int:
        """An eventfd for ``low``, ``medium`` or ``critical``: how badly reclaim does. The caller closes it."""
        return self._event("memory.pressure_level", level)

    def pause_at_limit(self, on: bool) -> None:
        """At the limit, let a process that asks for more sleep until there is room, instead of killing one."""
        write(self.folder / "memory.oom_control", str(int(on)))

    @property
    def paused(self) -> bool:
        """Whether a process sleeps at the limit now."""
        return read_table(self.folder / "memory.oom_control").get("under_oom") == 1

    def _event(self, file: str, *arguments: str) -> int:
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            target = os.open(self.folder / file, os.O_RDONLY)
            try:
                for argument in arguments:
                    write(self.folder / "cgroup.event_control", f"{event} {target} {argument}".rstrip())
            finally:
                os.close(target)
        except BaseException:
            os.close(event)
            raise
        return event


@dataclass(frozen=True, slots=True)
class GroupV2:
    """A group of the v2 hierarchy. Beyond the protocol, it slows processes down above a usage, and signals that."""

    folder: Path

    version: Version = "v2"

    @property
    def usage_file(self) -> Path:
        return self.folder / "memory.current"

    @property
    def events_file(self) -> Path:
        """Polled for ``POLLPRI``, it signals that ``memory.high`` or the limit was met."""
        return self.folder / "memory.events"

    @property
    def limit_bytes(self) -> int:
        return _number(self.folder / "memory.max")

    def set_limit(self, limit_bytes: int) -> None:
        swap = self.folder / "memory.swap.max"
        if swap.exists():
            write(swap, "0")
        write(self.folder / "memory.max", str(limit_bytes))

    def reset_peak(self) -> None:
        """Does nothing: since Linux 6.12 a reader can reset the peak for its own open file alone."""

    def set_high(self, wake_bytes: int) -> None:
        """Above this usage, a process that asks for more is slowed down, up to 2 s for each batch; none is killed."""
        write(self.folder / "memory.high", str(wake_bytes))

    def read(self) -> Reading:
        stat, events = read_table(self.folder / "memory.stat"), read_table(self.events_file)
        return Reading(
            usage_bytes=_number(self.usage_file),
            peak_bytes=read_count(self.folder / "memory.peak"),
            anonymous_bytes=stat.get("anon", 0),
            file_bytes=stat.get("file", 0),
            droppable_bytes=droppable_bytes(stat, self.version),
            kills=events.get("oom_kill", 0),
            limit_hits=events.get("max", 0),
        )

    def held_bytes(self) -> int:
        return max(
            0,
            _number(self.usage_file) - droppable_bytes(read_table(self.folder / "memory.stat"), self.version),
        )


# --- making and removing ---


def candidate_folders(groups: ControlGroups, name: str) -> tuple[Path, ...]:
    """The folders where a group may be made, best first: below the own group, then below its ancestors.

    A v2 group limits its children only where ``cgroup.subtree_control`` hands the controller down.
    """
    return tuple(
        Path(folder) / name for folder in groups.memory_folders if limits_children(groups, Path(folder))
    )


def make(groups: ControlGroups, name: str, limit_bytes: int) -> GroupV1 | GroupV2:
    """A new, empty group with a limit, in the first candidate folder that allows it; ``InputError`` if none does.

    The caller removes it.
    """
    if groups.memory is None:
        raise InputError(f"no memory limit can be set: no memory controller is mounted; {HINT}")
    refusals = []
    for folder in candidate_folders(groups, name):
        group = GroupV1(folder) if groups.memory == "v1" else GroupV2(folder)
        try:
            control_groups.make_group(folder)
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror}")
            continue
        try:
            group.set_limit(limit_bytes)
        except OSError as error:
            refusals.append(f"{error.filename or folder}: {error.strerror}")
            remove(folder)
        else:
            return group
    why = refusals[0] if refusals else f"{groups.memory_folders[0]} does not hand the memory controller down"
    raise InputError(f"no memory limit can be set: {why}; {HINT}")


def join(folder: Path) -> None:
    """Move this process into the group; ``InputError`` if that is not allowed, or the group is gone."""
    _enter(folder, "0")


def add(folder: Path, pid: int) -> None:
    """Move another process into the group; ``InputError`` if that is not allowed, or either is gone."""
    assert pid != os.getpid(), "the process that removes a group stays out of it"
    _enter(folder, str(pid))


def processes(folder: Path) -> tuple[int, ...]:
    """Ids of the living processes in a group; none where there is no group."""
    pids = map(as_count, _words(folder / "cgroup.procs"))
    return tuple(pid for pid in pids if pid)  # 0 is a process of another PID namespace


def remove(folder: Path, within_s: float = 5.0) -> bool:
    """Kill every process of a group, and remove it once they are gone; returns whether it is gone.

    A group that does not exist is gone. Killing is repeated, because a process may have been forked in between.
    """
    until = time.monotonic() + within_s
    while folder.exists():
        with contextlib.suppress(OSError):
            write(folder / "cgroup.kill", "1")  # v2 since Linux 5.14: all at once
        for pid in processes(folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            control_groups.remove_group(folder)
            return True
        if time.monotonic() > until:
            return False
        time.sleep(REMOVAL_POLL_S)
    return True


# --- details ---


def _enter(folder: Path, pid: str) -> None:
    try:
        write(folder / "cgroup.procs", pid)
    except OSError as error:
        who = "this process" if pid == "0" else f"process {pid}"
        raise InputError(f"{folder}: {who} cannot be moved into it: {error.strerror}; {HINT}") from None


def _number(file: Path) -> int:
    """The number in a file that must exist; ``max`` is no number, and no group made here has it."""
    text = file.read_text(encoding="ascii").strip()
    number = as_count(text)
    if number is None:
        raise OSError(0, f"{text!r} is not a number of bytes", str(file))
    return number


def _words(file: Path) -> list[str]:
    return (read_text(file) or "").split()
