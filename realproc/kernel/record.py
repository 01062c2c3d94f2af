"""Records the memory of this machine, or of one control group on it, as a budget trace that the simulator replays.

``molt record TRACE.csv``: ten times a second a row with the columns ``at,budget`` of every trace, see
``molt/jobs/trace.py``, and further columns with the quantities that the budget was computed from, which readers of a
trace ignore.

Rules of this module:

- The *budget* is what the watched process may use: what it holds, and what is free for it. Free is the memory that the
  system calls available, but no more than the group has left below its limit once clean file pages are dropped.
- A quantity that the system does not give is an empty cell. A budget of 0 is written as one byte, as a trace has no 0.
- Every row is on disk when its sample has been taken: a recording that is cut short is a shorter recording.
"""

from __future__ import annotations

import contextlib
import csv
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from molt.errors import InputError
from molt.jobs.trace import COLUMNS
from molt.units import format_duration, format_size
from realproc.kernel.control_groups import UNLIMITED_BYTES, read_count, read_text
from realproc.kernel.limited_group import GroupV1, GroupV2, Reading
from realproc.kernel.machine import REAL_ROOT

INTERVAL_NS = 100_000_000
SIZES = (
    "available", "swap_used", "own_anon", "own_file", "own_shmem", "group_usage", "group_droppable", "group_limit",
)  # fmt: skip
STALLS = ("stall_some", "stall_full")
HEADER = (*COLUMNS, *SIZES, *STALLS)


@dataclass(frozen=True, slots=True)
class Own:
    """Resident memory of a process by kind: without a file behind it, pages of files, shared."""

    anonymous_bytes: int
    file_bytes: int | None
    shmem_bytes: int | None


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """The memory at one moment; ``limit_bytes`` is that of the group. ``stall_ns``: how long some, and all, tasks have
    waited for memory since boot."""

    available_bytes: int
    swap_used_bytes: int | None
    stall_ns: tuple[int, int] | None
    own: Own | None
    group: Reading | None
    limit_bytes: int | None

    @property
    def budget_bytes(self) -> int:
        """What the watched process may use; at least 1."""
        free_bytes = self.available_bytes
        if self.group is not None and self.limit_bytes is not None:
            free_bytes = min(free_bytes, self.limit_bytes - self.group.held_bytes)
        return max(1, free_bytes + (self.own.anonymous_bytes if self.own else 0))


@dataclass(frozen=True, slots=True)
class Recorder:
    """Takes samples: of the machine below ``root``, of a process, of a control group."""

    pid: int | None = None
    group: GroupV1 | GroupV2 | None = None
    root: Path = REAL_ROOT

    def sample(self) -> RecordedSample:
        """A sample taken now; ``OSError`` if the group has gone."""
        available_bytes, swap_used_bytes = _memory(self.root)
        return RecordedSample(
            available_bytes=available_bytes,
            swap_used_bytes=swap_used_bytes,
            stall_ns=stalls(self.root),
            own=None if self.pid is None else own_memory(self.pid, self.root),
            group=None if self.group is None else self.group.read(),
            limit_bytes=None if self.group is None else limit_of(self.group),
        )


def group_at(folder: Path) -> GroupV1 | GroupV2:
    """The memory control group in any folder; ``InputError`` if there is none."""
    if (folder / "memory.usage_in_bytes").exists():
        return GroupV1(folder)
    if (folder / "memory.current").exists():
        return GroupV2(folder)
    raise InputError(f"{folder}: not a memory control group (no memory.current, no memory.usage_in_bytes)")


def limit_of(group: GroupV1 | GroupV2) -> int | None:
    """The limit of a group, or ``None`` without one: v2 then writes ``max``, v1 the largest multiple of a page."""
    file = "memory.limit_in_bytes" if group.version == "v1" else "memory.max"
    limit = read_count(group.folder / file)
    return None if limit is None or limit >= UNLIMITED_BYTES else limit


def own_memory(pid: int, root: Path = REAL_ROOT) -> Own | None:
    """Memory of a process, ``None`` once it has gone. On systems that count no kinds, all of it counts as anonymous."""
    found = dict(
        re.findall(r"^Rss(\w+):\s+(\d+) kB", read_text(root / f"proc/{pid}/status") or "", re.MULTILINE)
    )
    if found:
        return Own(*(int(found.get(kind, "0")) * 1024 for kind in ("Anon", "File", "Shmem")))
    try:
        return Own(psutil.Process(pid).memory_info().rss, None, None)
    except psutil.Error:
        return None


def stalls(root: Path = REAL_ROOT) -> tuple[int, int] | None:
    """How long some, and all, tasks have waited for memory since boot, ns; ``None`` if the kernel counts no stalls."""
    text = read_text(root / "proc/pressure/memory") or ""
    totals = dict(re.findall(r"^(some|full) .*\btotal=(\d+)", text, re.MULTILINE))
    return (int(totals["some"]) * 1000, int(totals.get("full", "0")) * 1000) if "some" in totals else None


def record(recorder: Recorder, out: TextIO, duration_ns: int | None, interval_ns: int = INTERVAL_NS) -> int:
    """Write rows for so long (``None``: until interrupted); returns how many. ``OSError``: see ``Recorder.sample``."""
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(HEADER)
    count, first = 0, None
    for at_ns in _beats(duration_ns, interval_ns):
        sample = recorder.sample()
        first = first or sample
        rows.writerow(row(at_ns, sample, first))
        out.flush()
        count += 1
    return count


def row(at_ns: int, sample: RecordedSample, first: RecordedSample) -> tuple[str, ...]:
    """The cells of a sample; stalls count from the first one."""
    own, group = sample.own, sample.group
    sizes = (
        sample.available_bytes,
        sample.swap_used_bytes,
        None if own is None else own.anonymous_bytes,
        None if own is None else own.file_bytes,
        None if own is None else own.shmem_bytes,
        None if group is None else group.usage_bytes,
        None if group is None else group.droppable_bytes,
        sample.limit_bytes,
    )
    since: tuple[int | None, int | None] = (None, None)
    if sample.stall_ns is not None and first.stall_ns is not None:
        since = (sample.stall_ns[0] - first.stall_ns[0], sample.stall_ns[1] - first.stall_ns[1])
    return (
        format_duration(at_ns),
        format_size(sample.budget_bytes),
        *("" if size is None else format_size(size) for size in sizes),
        *("" if stall is None else format_duration(stall) for stall in since),
    )


def command(
    out: Path, duration_ns: int | None, interval_ns: int, pid: int | None, group: Path | None
) -> None:
    """``molt record``; Ctrl-C ends it well. ``InputError``: nothing to record from, or nothing can be written."""
    if pid is not None and not psutil.pid_exists(pid):
        raise InputError(f"--pid {pid}: no such process")
    recorder = Recorder(pid, None if group is None else group_at(group))
    try:
        with out.open("x", encoding="utf-8", newline="") as sink, contextlib.suppress(KeyboardInterrupt):
            record(recorder, sink, duration_ns, interval_ns)
    except FileExistsError:
        raise InputError(f"{out}: exists already; recordings are never overwritten") from None
    except OSError as error:
        raise InputError(f"{error.filename or out}: {error.strerror}") from None


# --- details ---


def _beats(duration_ns: int | None, interval_ns: int) -> Iterator[int]:
    """The multiples of the interval, each when it is reached; those that were missed are left out."""
    begin_ns, at_ns = time.monotonic_ns(), 0
    while duration_ns is None or at_ns <= duration_ns:
        yield at_ns
        passed_ns = time.monotonic_ns() - begin_ns
        at_ns = max(at_ns, passed_ns // interval_ns * interval_ns) + interval_ns
        time.sleep(max(0, begin_ns + at_ns - time.monotonic_ns()) / 1e9)


def _memory(root: Path) -> tuple[int, int | None]:
    """Available memory and swap in use; both from the system where there is no such file."""
    text = read_text(root / "proc/meminfo") or ""
    found = {key: int(size) * 1024 for key, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    if "MemAvailable" in found:
        swap = found["SwapTotal"] - found["SwapFree"] if {"SwapTotal", "SwapFree"} <= set(found) else None
        return found["MemAvailable"], swap
    return psutil.virtual_memory().available, psutil.swap_memory().used
