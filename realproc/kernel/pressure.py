"""Pressure: child processes that hold memory as a trace says, so that other processes have less of it.

Rules of this module:

- An allocator holds resident memory to the MiB (``touched_pages.py``), gives it back as soon as it holds too much, and
  takes more at its rate or flat out. It looks at its orders after every block.
- The child follows a trace by itself, by the system's monotonic clock, which processes share: a busy parent delays
  nothing.
- The child enters its control group before it takes anything, so that its Python is not counted and its blocks are.
- It dies with its parent, however that ends: on Linux the kernel sees to it; on every system the child notices the end
  of the pipe and a changed parent id. It ignores Ctrl-C, which is for the parent.
- The child never waits for the parent: a report that does not fit into the pipe is replaced by a later one.

Start allocators from the main thread of a program that may be imported (``if __name__ == "__main__"``): they are
spawned.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import multiprocess

from molt.errors import InputError
from molt.live import parent_death
from molt.units import MIB, SECOND_NS, format_duration, show_size
from realproc.kernel import limited_group
from realproc.kernel.touched_pages import TouchedBlocks

Targets = tuple[tuple[int, int], ...]
"""Pairs of time (ns, strictly rising) and bytes to hold from then on; 0 bytes before the first."""

START_NS = 60 * SECOND_NS
IDLE_NS = 50_000_000
"""How long an idle child waits before it checks its parent and reports again."""

_REPORT = struct.Struct("=qqq")  # smaller than what a pipe takes whole
_NOT_READY = -1
_CANNOT_ENTER = 2  # exit status


@dataclass(frozen=True, slots=True)
class Manner:
    """How memory is taken: at a rate (``None``: flat out), in huge pages or small ones."""

    rate_bytes_per_s: int | None = None
    huge: bool = False


@dataclass(frozen=True, slots=True)
class AllocatorSpec:
    """An allocator: how it takes memory where an order does not say otherwise, and in which group.

    ``rate_bytes_per_s`` limits growth (``None``: flat out). ``group`` is the folder of a control group to enter.
    ``oom_score``, 0 to 1000, makes it a better victim for the OOM killer.
    """

    rate_bytes_per_s: int | None = None
    huge: bool = False
    group: Path | None = None
    oom_score: int = 0

    @property
    def manner(self) -> Manner:
        """Its rate and kind of pages."""
        return Manner(self.rate_bytes_per_s, self.huge)


@dataclass(frozen=True, slots=True)
class Holding:
    """What an allocator held at a time of the monotonic clock, and what it was to hold."""

    at_ns: int
    taken_bytes: int
    target_bytes: int

    @property
    def settled(self) -> bool:
        """Whether it holds what it is to hold."""
        return self.taken_bytes == self.target_bytes


def targets_for(budgets: Sequence[tuple[int, int]], limit_bytes: int) -> Targets:
    """What an allocator takes of a limit so that a budget is left: ``limit - budget(t)``, in whole MiB.

    It is rounded up: no more than the budget is left. ``InputError`` if a budget is more than the limit.
    """
    for at_ns, budget_bytes in budgets:
        if budget_bytes > limit_bytes:
            raise InputError(
                f"budget at {format_duration(at_ns)}: {show_size(budget_bytes)} is more than the limit of the "
                f"run, {show_size(limit_bytes)}"
            )
    return tuple((at_ns, -(-(limit_bytes - budget) // MIB) * MIB) for at_ns, budget in budgets)


class Allocator:
    """An allocator child, seen from its parent. Use it as a context manager, or ``stop`` it."""

    def __init__(self, spec: AllocatorSpec) -> None:
        """Start the child, which holds nothing at first. ``InputError`` if it cannot enter its group."""
        assert threading.current_thread() is threading.main_thread(), "children die with the thread"
        self._group, self._manner = spec.group, spec.manner
        context = multiprocess.get_context("spawn")
        orders, self._orders = context.Pipe(duplex=False)
        self._reports, reports = context.Pipe(duplex=False)
        self._process = context.Process(
            target=allocate, args=(spec, os.getpid(), orders, reports), daemon=True, name="molt-allocator"
        )
        self._process.start()
        orders.close()
        reports.close()
        os.set_blocking(self._reports.fileno(), False)
        self._last = Holding(0, _NOT_READY, 0)
        if self._wait(lambda holding: holding.taken_bytes != _NOT_READY, START_NS) is None:
            why = self._why_not()
            self.stop()
            raise InputError(f"an allocator did not start: {why}; {limited_group.HINT}")

    @property
    def pid(self) -> int:
        """Its process id."""
        pid = self._process.pid
        assert isinstance(pid, int)
        return pid

    @property
    def alive(self) -> bool:
        """Whether it lives; the kernel may have killed it."""
        return bool(self._process.is_alive())

    def hold(self, target_bytes: int, manner: Manner | None = None) -> None:
        """Hold this much from now on, rounded down to a MiB."""
        self.follow(((0, target_bytes),), time.monotonic_ns(), manner)

    def follow(self, targets: Targets, start_ns: int, manner: Manner | None = None) -> None:
        """Follow a trace whose time 0 is ``start_ns`` of ``time.monotonic_ns``, in place of the last order.

        It takes memory in this manner, or in that of its spec.
        """
        with contextlib.suppress(BrokenPipeError):  # it was killed, which ``alive`` shows
            self._orders.send((targets, start_ns, manner or self._manner))

    def holding(self) -> Holding:
        """The newest report: at most 50 ms old, unless the pipe was full; then the next call gives a newer one."""
        for _ in self.reports():
            pass
        return self._last

    def reports(self) -> Iterator[Holding]:
        """Every report since the last call: one a block, and one every 50 ms; those that met a full pipe are lost."""
        with contextlib.suppress(BlockingIOError):
            while raw := os.read(self._reports.fileno(), _REPORT.size):
                self._last = Holding(*_REPORT.unpack(raw))
                yield self._last

    def wait_until_held(self, target_bytes: int, within_ns: int) -> Holding | None:
        """The report that it holds the target; ``None`` if that does not come in time, or the child has gone."""
        return self._wait(lambda h: h.settled and h.taken_bytes == target_bytes // MIB * MIB, within_ns)

    def stop(self) -> None:
        """Kill the child and wait for it: its memory is back."""
        self._process.kill()
        self._process.join()
        self._orders.close()
        self._reports.close()

    def __enter__(self) -> Allocator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _why_not(self) -> str:
        match self._process.exitcode:
            case None:
                return f"not ready after {format_duration(START_NS)}"
            case status if status == _CANNOT_ENTER:
                return f"cannot enter {self._group}"
            case status:
                return f"it ended with status {status}"

    def _wait(self, accepted: Callable[[Holding], bool], within_ns: int) -> Holding | None:
        waited_ns = 0
        while not accepted(holding := self.holding()):
            if waited_ns >= within_ns or not self.alive:
                return None
            begun_ns = time.monotonic_ns()
            select.select([self._reports.fileno()], [], [], IDLE_NS / SECOND_NS)
            waited_ns += min(
                time.monotonic_ns() - begun_ns, 2 * IDLE_NS
            )  # a machine may stand still meanwhile
        return holding


# --- in the child ---


def allocate(spec: AllocatorSpec, parent_pid: int, orders: Connection, reports: Connection) -> None:
    """The life of an allocator child; it ends with the pipe of its orders."""
    parent_death.tie_to_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent_death.offer_to_oom_killer(spec.oom_score)
    try:
        if spec.group is not None:
            limited_group.join(spec.group)
    except InputError:
        os._exit(_CANNOT_ENTER)  # the parent raises
    os.set_blocking(reports.fileno(), False)
    with contextlib.suppress(EOFError):
        _follow_orders(spec, parent_pid, orders, reports)


def _follow_orders(spec: AllocatorSpec, parent_pid: int, orders: Connection, reports: Connection) -> None:
    blocks, pace, manner = TouchedBlocks(), AllocationPace(spec.rate_bytes_per_s), spec.manner
    targets: Targets = ()
    start_ns = 0
    while True:
        now_ns = time.monotonic_ns()
        target_bytes, next_ns = target_at(targets, now_ns - start_ns)
        if blocks.taken_bytes > target_bytes:
            blocks.shrink()
            wait_ns = 0
        elif blocks.taken_bytes < target_bytes and pace.next_ns <= now_ns:
            pace.took(blocks.grow(target_bytes, huge=manner.huge), now_ns)
            wait_ns = 0
        else:
            wait_ns = min(IDLE_NS, IDLE_NS if next_ns is None else start_ns + next_ns - now_ns)
            if blocks.taken_bytes < target_bytes:
                wait_ns = min(wait_ns, pace.next_ns - now_ns)
        _report(reports, Holding(now_ns, blocks.taken_bytes, target_bytes))
        parent_death.end_if_orphaned(parent_pid)
        if orders.poll(max(0, wait_ns) / SECOND_NS):
            targets, start_ns, manner = orders.recv()
            pace = AllocationPace(manner.rate_bytes_per_s)


def target_at(targets: Targets, at_ns: int) -> tuple[int, int | None]:
    """The bytes to hold at a time, in whole MiB, and the time at which that changes next."""
    index = bisect_right(targets, at_ns, key=lambda target: target[0])
    target_bytes = targets[index - 1][1] // MIB * MIB if index else 0
    return target_bytes, targets[index][0] if index < len(targets) else None


class AllocationPace:
    """When the next block may be taken. Lost time is not made up for: the rate is a ceiling at every moment."""

    def __init__(self, rate_bytes_per_s: int | None) -> None:
        assert rate_bytes_per_s is None or rate_bytes_per_s > 0, rate_bytes_per_s
        self._rate_bytes_per_s = rate_bytes_per_s
        self.next_ns = 0

    def took(self, size_bytes: int, at_ns: int) -> None:
        """Record that a block was begun at this time."""
        if self._rate_bytes_per_s is not None:
            self.next_ns = at_ns + size_bytes * SECOND_NS // self._rate_bytes_per_s


def _report(reports: Connection, holding: Holding) -> None:
    """Report to the parent; with a full pipe the report is dropped, as the next one will be newer."""
    record = _REPORT.pack(holding.at_ns, holding.taken_bytes, holding.target_bytes)
    with contextlib.suppress(BlockingIOError):
        os.write(reports.fileno(), record)
