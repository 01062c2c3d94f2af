"""Where the processes of a run live: in a limited memory control group, or beside each other with a declared budget.

A *place* tells how much memory is in use in it and by whom, wakes when that changes, and counts what it can.
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
from realproc.kernel.control_groups import ControlGroups, read_groups
from realproc.kernel.guard import Ceilings, Guard
from realproc.kernel.record import stalls
from realproc.kernel.signals import SIGNALS, UsageReading, best_signal
from realproc.kernel.touched_pages import MIB
from realproc.supervisor.growth import LOOK_NS, SECOND_NS, SignalWatch
from realproc.supervisor.headroom import Share, Standing, StandingReader, anonymous_bytes

WARM_UP_BYTES = 1024 * MIB
"""What Python, tensor libraries and their warming up may take, before it is known what they do take."""
WITHOUT = "or leave the kernel out of it: --no-cgroup"
OOM_SCORE = 1000
FASTEST_BYTES_PER_S = 1024 * MIB
"""The fastest growth that a signal which is told a usage to wake at should meet in time."""


class Confinement(Protocol):
    """What a run needs of the place its processes live in."""

    @property
    def folder(self) -> Path | None:
        """The control group for the processes to enter, if any."""

    def settle(self, budget_bytes: int, margin_bytes: int, pid: int) -> Share:
        """The engine process is warm and at rest: set the limit so that ``budget_bytes`` are left to it; divide it."""

    def resize(self, share: Share, budget_bytes: int) -> Share:
        """Set another limit, so that ``budget_bytes`` are left to the engine, whose base is what it was."""

    def vigil(self, signal: str, share: Share, reaction_ns: int) -> SignalWatch:
        """What wakes when memory gets short; ``InputError`` if there is no such signal here."""

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        """Memory in use now, and how much of it is the engine's; allocators say that they have ``taken_bytes``."""

    def counted(self) -> dict[str, int]:
        """What the kernel has counted by now, by the names of a ``kernel`` record."""

    def forget_peak(self) -> None:
        """The kernel's peak begins anew, where it lets us."""

    def engine_is(self, pid: int) -> None:
        """The engine process: it ends with the run, and is the first that the kernel takes, as the app that asks for
        too much should be."""

    def check(self) -> None:
        """``BreachError`` if the run had to be stopped."""


class GroupConfinement:
    """A limited memory control group under guard: at its limit, the kernel kills."""

    def __init__(self, guard: Guard, nice: int | None = None) -> None:
        self._nice = nice
        self._guard, self._group, self._ledger = guard, guard.group, StandingReader(guard.group)
        self._stalled_before = stalls()

    @property
    def folder(self) -> Path:
        return self._group.folder

    def settle(self, budget_bytes: int, margin_bytes: int, pid: int) -> Share:
        base_bytes = self._ledger.rest(pid)
        share = Share(base_bytes + budget_bytes + margin_bytes, base_bytes, margin_bytes)
        self._group.set_limit(share.limit_bytes)
        self._group.forget_peak()
        self._stalled_before = stalls()
        return share

    def resize(self, share: Share, budget_bytes: int) -> Share:
        resized = share.of(budget_bytes)
        self._group.set_limit(resized.limit_bytes)
        return resized

    def vigil(self, signal: str, share: Share, reaction_ns: int) -> SignalWatch:
        ahead_bytes = FASTEST_BYTES_PER_S * (reaction_ns + LOOK_NS) // SECOND_NS
        wake_bytes = max(share.base_bytes, share.line_bytes - ahead_bytes)
        make = best_signal if signal == "best" else SIGNALS[signal]
        return SignalWatch(make(self._group, wake_bytes), observe_nothing)

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        return self._ledger.read(time.monotonic_ns(), pid)

    def counted(self) -> dict[str, int]:
        reading, now = self._group.read(), stalls()
        found = {"usage_bytes": reading.usage_bytes, "kills": reading.kills, "limit_hits": reading.limit_hits}
        if reading.peak_bytes is not None:
            found["peak_bytes"] = reading.peak_bytes
        if now is not None and self._stalled_before is not None:
            found["stall_ns"] = now[0] - self._stalled_before[0]
        return found

    def forget_peak(self) -> None:
        self._group.forget_peak()

    def engine_is(self, pid: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):  # gone again
            self._guard.child(pid)
            Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
            if self._nice is not None:
                os.setpriority(os.PRIO_PROCESS, pid, self._nice)

    def check(self) -> None:
        self._guard.check()


class DeclaredConfinement:
    """No group: what allocators hold is missing in a declared budget, and nobody is killed. Works anywhere."""

    folder = None

    def settle(self, budget_bytes: int, margin_bytes: int, pid: int) -> Share:
        base_bytes = anonymous_bytes(pid)
        return Share(base_bytes + budget_bytes + margin_bytes, base_bytes, margin_bytes)

    def resize(self, share: Share, budget_bytes: int) -> Share:
        return share.of(budget_bytes)

    def vigil(self, signal: str, share: Share, reaction_ns: int) -> SignalWatch:
        return SignalWatch(Interval(), observe_nothing)

    def standing(self, pid: int | None, taken_bytes: int) -> Standing:
        own_bytes = 0 if pid is None else anonymous_bytes(pid)
        return Standing(time.monotonic_ns(), taken_bytes + own_bytes, own_bytes)

    def counted(self) -> dict[str, int]:
        return {}

    def forget_peak(self) -> None:
        """Nothing is counted."""

    def engine_is(self, pid: int) -> None:
        """It sees for itself when its parent has gone, and nobody is killed."""

    def check(self) -> None:
        """There is no watchdog."""


class Interval:
    """The signal where there is no group: look every 10 ms at what the allocators say."""

    late = False
    interval_ns: int | None = LOOK_NS
    poll_mask = 0

    def fileno(self) -> int | None:
        return None

    def read(self) -> UsageReading:
        return observe_nothing()

    def close(self) -> None:
        """Nothing was opened."""


def observe_nothing() -> UsageReading:
    """That it is time to look."""
    return UsageReading(time.monotonic_ns(), 0, 0)


@contextmanager
def confine(
    limited: bool,
    warm_bytes: int,
    nice: int | None = None,
    ceilings: Ceilings | None = None,
    groups: ControlGroups | None = None,
) -> Iterator[Confinement]:
    """A place for the time of a ``with`` block, with room for ``warm_bytes`` beside the engine's own needs.

    The engine is as ``nice`` as that. ``InputError`` where a limited place is wanted and cannot be had.
    """
    if not limited:
        yield DeclaredConfinement()
        return
    guard = Guard(warm_bytes + WARM_UP_BYTES, ceilings, groups or read_groups())
    try:
        guard.__enter__()
    except InputError as refusal:
        raise InputError(f"{refusal}; {WITHOUT}") from None
    with contextlib.ExitStack() as stack:
        stack.push(guard)
        yield GroupConfinement(guard, nice)
