"""Headroom: the budget that is left to an engine below the limit of its group, and when it is reported to the world.

The group at rest, when the engine is alone in it, and during a run::

    0                                                      line_bytes         limit_bytes
    |---- base_bytes ----|---------- budget_bytes ----------|-- margin_bytes --|

    |------- own_bytes -------|-- others_bytes --|- droppable_bytes -|- free --|
    |-------------- held_bytes ------------------|
    |------------------------ usage_bytes ---------------------------|

- ``limit_bytes``: the limit of the group, where the kernel kills: ``base_bytes + budget_bytes + margin_bytes``.
- ``base_bytes``: what the engine process holds at rest (Python, torch, their heaps), measured before the first answer.
- ``budget_bytes``: what the engine may use for weights, scratch and caches.
- ``margin_bytes``: kept free, because the kernel counts in batches of half a MiB and page tables grow.
- ``line_bytes``: ``limit_bytes - margin_bytes``, which ``held_bytes`` is not to exceed.
- ``usage_bytes``: what the kernel charges to the group and compares with the limit; ``peak_bytes`` is its maximum.
- ``droppable_bytes``: clean file pages in it, which the kernel drops before it kills.
- ``held_bytes``: the rest, ``usage_bytes - droppable_bytes``; only giving memory back, or a kill, makes it less.
- ``own_bytes``: the engine's part of what is held; ``others_bytes``: the part of the other processes.
- ``excess_bytes``: what the engine has held for a while beyond its base and ``booked_bytes``, what the world's books
  have. Libraries keep code and buffers that are in no book: they count as others'.
- ``taken_bytes``: what the allocator, which plays the other programs, holds; ``target_bytes``: what it is to hold.
- ``left_bytes``: what the others leave of the budget in the end, in a campaign.
- ``reported_bytes``: the budget that the world received last.
- ``growth_bytes``: what usage grew by, or what others will take until the engine has reacted.
- ``wake_bytes``: the usage at which a signal wakes the monitor.

While others use memory, ``budget_bytes = line_bytes - base_bytes - others_bytes``.

Rules of this module:

- A fall is reported at once; and ahead of time when others grow so fast that usage would meet the line before the
  engine has reacted. It is reported only while the signal is awake: after a late signal, the report is late too.
- A rise is reported when it has lasted a while, whatever the signal: waiting for memory endangers no process.
- Sizes are integer bytes, times those of the monotonic clock.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from molt.units import MIB, MS_NS, SECOND_NS
from realproc.kernel.limited_group import MemoryGroup
from realproc.kernel.signals import UsageReading
from realproc.supervisor.growth import growth, remember

QUANTUM_BYTES = MIB
"""Changes below this are noise: the kernel charges a group, and counts a process, in batches."""
NOISE_BYTES = 8 * QUANTUM_BYTES
READINGS_MAX = 4
RISE_NS = 300 * MS_NS
"""How long a rise must last: others who take memory as fast as they can pause for a sixth of a second sometimes."""
LASTING_NS = 100 * MS_NS
"""How long an engine must hold an excess before it counts as others'."""


@dataclass(frozen=True, slots=True)
class Share:
    """How the limit of a group is divided."""

    limit_bytes: int
    base_bytes: int
    margin_bytes: int

    def budget_bytes(self, others_bytes: int) -> int:
        """What is left to the engine beside what others use; at least 0."""
        return max(0, self.line_bytes - self.base_bytes - others_bytes)

    def with_budget(self, budget_bytes: int) -> Share:
        """The same base and margin, with the limit that leaves this budget while others use nothing."""
        return replace(self, limit_bytes=self.base_bytes + budget_bytes + self.margin_bytes)

    @property
    def line_bytes(self) -> int:
        """What ``held_bytes`` is not to exceed."""
        return self.limit_bytes - self.margin_bytes


@dataclass(frozen=True, slots=True)
class Standing:
    """The memory held in a group at a time, and how much of it is the engine's own."""

    at_ns: int
    held_bytes: int
    own_bytes: int

    @property
    def others_bytes(self) -> int:
        """The memory held by all processes but the engine."""
        return max(0, self.held_bytes - self.own_bytes)

    def with_excess(self, excess_bytes: int) -> Standing:
        """The same, with the engine's excess counted as others'."""
        return replace(self, own_bytes=max(0, self.own_bytes - excess_bytes))


@dataclass(frozen=True, slots=True)
class ReportedBudget:
    """A budget to report, the standing it was computed from, and how fast others were growing."""

    at_ns: int
    budget_bytes: int
    standing: Standing
    rate_bytes_per_s: int


class Excess:
    """What an engine has held for a while beyond its base and the world's books.

    For moments it holds more, as when a switch has freed memory that is still on its way back to the system.
    """

    def __init__(self, base_bytes: int) -> None:
        self._base_bytes = base_bytes
        self._recent: deque[tuple[int, int]] = deque()  # times and excesses of the last while

    def observe(self, standing: Standing, booked_bytes: int) -> int:
        """The excess now; ``booked_bytes`` is the usage by the world's books."""
        while len(self._recent) > 1 and standing.at_ns - self._recent[1][0] >= LASTING_NS:
            self._recent.popleft()
        excess_bytes = max(0, standing.own_bytes - self._base_bytes - booked_bytes)
        self._recent.append((standing.at_ns, excess_bytes))
        has_lasted = standing.at_ns - self._recent[0][0] >= LASTING_NS
        return min(excess for _, excess in self._recent) if has_lasted else 0


class HeadroomReporter:
    """Decides from one standing after the other which budget is reported, and when."""

    def __init__(self, share: Share, reported_bytes: int) -> None:
        self._share, self._reported_bytes = share, reported_bytes
        self._recent: deque[UsageReading] = deque()  # of others alone
        self._budgets: deque[tuple[int, int]] = deque()  # times and budgets of the last while

    def report(
        self, standing: Standing, *, awake: bool, reaction_ns: int, cache_bytes: int = 0
    ) -> ReportedBudget | None:
        """The budget to report now, if any.

        ``awake``: the signal is. ``reaction_ns`` is how long the engine takes to give memory back, ``cache_bytes`` the
        size of its caches.
        """
        others = UsageReading(standing.at_ns, standing.others_bytes, self._share.limit_bytes)
        rate = self._rate(others)
        remember(self._recent, others)
        budget_bytes = self._budget(standing, rate * reaction_ns // SECOND_NS, cache_bytes)
        lasting_bytes = self._lasting_budget(standing.at_ns, budget_bytes)
        if budget_bytes <= self._reported_bytes - QUANTUM_BYTES and awake:
            self._reported_bytes = budget_bytes
        elif lasting_bytes >= self._reported_bytes + QUANTUM_BYTES:
            self._reported_bytes = lasting_bytes
        else:
            return None
        return ReportedBudget(standing.at_ns, self._reported_bytes, standing, rate)

    def _rate(self, others: UsageReading) -> int:
        """How fast others grow, if they have grown by more than the noise of the counting.

        The noise is the margin, but at most ``NOISE_BYTES``: the margin of a large model is what others take in a third
        of a second.
        """
        noise_bytes = max(QUANTUM_BYTES, min(self._share.margin_bytes, NOISE_BYTES))
        growth_bytes = others.usage_bytes - min(
            (one.usage_bytes for one in self._recent), default=others.usage_bytes
        )
        return 0 if growth_bytes < noise_bytes else growth(self._recent, others, noise_bytes)

    def _budget(self, standing: Standing, growth_bytes: int, cache_bytes: int) -> int:
        """The budget now; or, if others would meet the line before the reaction is over, the budget after their growth.

        A budget ahead of time is not so small that caches would have to go: weights are released at once, but slower
        levers wait until the memory has really been taken.
        """
        budget_bytes = self._share.budget_bytes(standing.others_bytes)
        if standing.held_bytes + growth_bytes <= self._share.line_bytes:
            return budget_bytes
        return max(budget_bytes - growth_bytes, min(budget_bytes, cache_bytes + QUANTUM_BYTES))

    def _lasting_budget(self, at_ns: int, budget_bytes: int) -> int:
        """The least budget of the last ``RISE_NS``, with this one."""
        while self._budgets and at_ns - self._budgets[0][0] >= RISE_NS:
            self._budgets.popleft()
        self._budgets.append((at_ns, budget_bytes))
        return min(budget for _, budget in self._budgets)


# --- reading ---


class StandingReader:
    """Reads the standing of a group with an engine process in it, in a tenth of a millisecond.

    A part of the process lies outside: what it allocated before it entered the group is charged to another group.
    """

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self._outside_bytes = 0

    def measure_base(self, pid: int) -> int:
        """The base of an engine process that is at rest and alone in its group: all that is held there."""
        base_bytes = self._group.held_bytes()
        self._outside_bytes = anonymous_bytes(pid) - base_bytes
        return base_bytes

    def read(self, at_ns: int, pid: int | None) -> Standing:
        """The standing now; ``OSError`` if the group is gone.

        The group and the engine's part cannot be read at the same moment. Where the engine's part changed meanwhile,
        both are read again; where it goes on changing, the larger part counts.
        """
        for _ in range(READINGS_MAX):
            before, held_bytes, after = self._own_bytes(pid), self._group.held_bytes(), self._own_bytes(pid)
            if abs(after - before) < QUANTUM_BYTES // 2:
                break
        return Standing(at_ns, held_bytes, own_bytes=max(before, after))

    def _own_bytes(self, pid: int | None) -> int:
        return 0 if pid is None else max(0, anonymous_bytes(pid) - self._outside_bytes)


def anonymous_bytes(pid: int) -> int:
    """Memory of a process without a file behind it (all of it, on systems that count no kinds); 0 once it is gone."""
    try:
        if sys.platform != "linux":
            return int(psutil.Process(pid).memory_info().rss)
        pages = Path(f"/proc/{pid}/statm").read_text("ascii").split()
    except (OSError, psutil.Error):
        return 0
    return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
