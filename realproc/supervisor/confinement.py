"""Where the processes of a run live: in a limited memory control group, or without one, with a declared budget.

A *confinement* sets the limit, says how much memory is held and by which process, wakes the monitor when that changes,
and gives the kernel's counters. ``headroom.py`` defines the names of the sizes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from molt.errors import InputError
from molt.units import MIB, SECOND_NS
from realproc.kernel.control_groups import ControlGroups, read_groups
from realproc.kernel.guard import Ceilings, Guard
from realproc.kernel.record import stalls
from realproc.kernel.signals import SIGNALS, UsageReading, best_signal
from realproc.supervisor.growth import WATCH_INTERVAL_NS, SignalWatch
from realproc.supervisor.headroom import Share, Standing, StandingReader, anonymous_bytes

WARM_UP_BYTES = 1024 * MIB
"""What Python, tensor libraries and their warming up may take, before it is known what they do take."""
NO_CGROUP_HINT = "or leave the kernel out of it: --no-cgroup"
OOM_SCORE = 1000
FASTEST_BYTES_PER_S = 1024 * MIB
"""The fastest growth in which a signal that wakes at a usage should still come in time."""


class Confinement(Protocol):
    """What a run needs of the place where its processes live."""

    @property
    def folder(self) -> Path | None:
        """The control group that the processes enter, if any."""

    def set_limit(self, budget_bytes: int, margin_bytes: int, pid: int) -> Share:
        """Measure the base of the engine, which is warm and at rest, and set the limit that leaves the budget."""

    def resize(self, share: Share, budget_bytes: int) -> Share:
        """Set the limit that leaves another budget to the engine; its base and the margin stay."""

    def watch(self, signal: str, share: Share, reaction_ns: int) -> SignalWatch:
        """The watch that wakes when memory gets short; ``InputError`` if there is no such signal here."""

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        """The memory held now, and how much of it is the engine's; ``taken_bytes`` is what the allocator reports."""

    def counters(self) -> dict[str, int]:
        """The kernel's counters, by the names of a ``kernel`` record."""

    def reset_peak(self) -> None:
        """The kernel's peak begins anew, where it can be reset."""

    def adopt_engine(self, pid: int) -> None:
        """Have the engine process end with the run, and be the first that the kernel kills, as the app that asks for
        too much should be."""

    def check(self) -> None:
        """``BreachError`` if the run had to be stopped."""


class GroupConfinement:
    """A limited memory control group under guard: at its limit, the kernel kills."""

    def __init__(self, guard: Guard, nice: int | None = None) -> None:
        self._nice = nice
        self._guard, self._group, self._reader = guard, guard.group, StandingReader(guard.group)
        self._stalled_before = stalls()

    @property
    def folder(self) -> Path:
        return self._group.folder

    def set_limit(self, budget_bytes: int, margin_bytes: int, pid: int) -> Share:
        base_bytes = self._reader.measure_base(pid)
        share = Share(base_bytes + budget_bytes + margin_bytes, base_bytes, margin_bytes)
        self._group.set_limit(share.limit_bytes)
        self._group.reset_peak()
        self._stalled_before = stalls()
        return share

    def resize(self, share: Share, budget_bytes: int) -> Share:
        resized = share.with_budget(budget_bytes)
        self._group.set_limit(resized.limit_bytes)
        return resized

    def watch(self, signal: str, share: Share, reaction_ns: int) -> SignalWatch:
        growth_bytes = FASTEST_BYTES_PER_S * (reaction_ns + WATCH_INTERVAL_NS) // SECOND_NS
        wake_bytes = max(share.base_bytes, share.line_bytes - growth_bytes)
        make = best_signal if signal == "best" else SIGNALS[signal]
        return SignalWatch(make(self._group, wake_bytes), empty_reading)

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        return self._reader.read(time.monotonic_ns(), pid)

    def counters(self) -> dict[str, int]:
        reading, now = self._group.read(), stalls()
        found = {"usage_bytes": reading.usage_bytes, "kills": reading.kills, "limit_hits": reading.limit_hits}
        if reading.peak_bytes is not None:
            found["peak_bytes"] = reading.peak_bytes
        if now is not None and self._stalled_before is not None:
            found["stall_ns"] = now[0] - self._stalled_before[0]
        return found

    def reset_peak(self) -> None:
        self._group.reset_peak()

    def adopt_engine(self, pid: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):  # it has gone already
            self._guard.child(pid)
            Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
            if self._nice is not None:
                os.setpriority(os.PRIO_PROCESS, pid, self._nice)

    def check(self) -> None:
        self._guard.check()


class DeclaredConfinement:
    """No group: a declared budget, less what the allocator takes; no process is killed. Works on any system."""

    folder = None

    def set_limit(self, budget_bytes: int, margin_bytes: int, pid: int) -> Share:
        base_bytes = anonymous_bytes(pid)
        return Share(base_bytes + budget_bytes + margin_bytes, base_bytes, margin_bytes)

    def resize(self, share: Share, budget_bytes: int) -> Share:
        return share.with_budget(budget_bytes)

    def watch(self, signal: str, share: Share, reaction_ns: int) -> SignalWatch:
        return SignalWatch(Interval(), empty_reading)

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        own_bytes = 0 if pid is None else anonymous_bytes(pid)
        return Standing(time.monotonic_ns(), taken_bytes + own_bytes, own_bytes)

    def counters(self) -> dict[str, int]:
        return {}

    def reset_peak(self) -> None:
        """Nothing is counted."""

    def adopt_engine(self, pid: int) -> None:
        """The engine ends by itself when its parent has gone, and no process is killed."""

    def check(self) -> None:
        """There is no watchdog."""


class Interval:
    """The signal where there is no group: look every 10 ms at what the allocator reports."""

    late = False
    interval_ns: int | None = WATCH_INTERVAL_NS
    poll_mask = 0

    def fileno(self) -> int | None:
        return None

    def read(self) -> UsageReading:
        return empty_reading()

    def close(self) -> None:
        """Nothing was opened."""


def empty_reading() -> UsageReading:
    """A reading that says only that it is time to look."""
    return UsageReading(time.monotonic_ns(), 0, 0)


@contextmanager
def confine(
    limited: bool,
    budget_bytes: int,
    nice: int | None = None,
    ceilings: Ceilings | None = None,
    groups: ControlGroups | None = None,
) -> Iterator[Confinement]:
    """A confinement for the time of a ``with`` block, with room for ``budget_bytes`` beside the engine's base.

    ``nice`` is the niceness of the engine. ``InputError`` where no limit can be set.
    """
    if not limited:
        yield DeclaredConfinement()
        return
    guard = Guard(budget_bytes + WARM_UP_BYTES, ceilings, groups or read_groups())
    try:
        guard.__enter__()
    except InputError as refusal:
        raise InputError(f"{refusal}; {NO_CGROUP_HINT}") from None
    with contextlib.ExitStack() as stack:
        stack.push(guard)
        yield GroupConfinement(guard, nice)
