"""What a process can know of its budget: what the limit of its group leaves it beside what others use.

Rules of this module:

- Scenarios count weights, scratch and caches. An engine process needs more: Python, torch, their heaps. That *base* is
  measured when the process is at rest, before an answer begins, and taken off the limit together with a *margin* for
  what is not exact in anybody's books (the kernel counts in batches of half a MiB, page tables grow).
- Others are whoever uses the rest. What the kernel can drop by itself (clean file pages) is nobody's. What the engine
  holds beyond its base and its books for a while counts as others': libraries keep code and buffers that no book has.
- A fall is told at once, and ahead of time when others grow so fast that they would meet the limit before the process
  has reacted. It is told only while the signal is awake: a late signal leaves the process in the dark.
- A rise is told when it has lasted a while, whatever the signal: nothing is in danger while it waits.
- Sizes are integer bytes, times those of the monotonic clock.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from realproc.kernel.limited_group import MemoryGroup
from realproc.kernel.signals import MS_NS, UsageReading
from realproc.kernel.touched_pages import MIB
from realproc.supervisor.growth import SECOND_NS, growth, remember

QUANTUM_BYTES = MIB
"""Changes below this are noise: the kernel charges a group, and counts a process, in batches."""
NOISE_BYTES = 8 * QUANTUM_BYTES
READINGS_MAX = 4
CALM_NS = 300 * MS_NS
"""How long a rise must last: others who take memory as fast as they can pause for a sixth of a second sometimes."""
LASTING_NS = 100 * MS_NS
"""How long an engine must hold something beyond its books before it counts as others'."""


@dataclass(frozen=True, slots=True)
class Share:
    """How the limit of a group is divided; ``base_bytes`` is what the engine process holds there at rest."""

    limit_bytes: int
    base_bytes: int
    margin_bytes: int

    def budget_bytes(self, others_bytes: int) -> int:
        """What is left for weights and caches beside what others use; not below nothing."""
        return max(0, self.limit_bytes - self.margin_bytes - self.base_bytes - others_bytes)

    def of(self, budget_bytes: int) -> Share:
        """The same with another limit, which leaves the engine so much while nobody else uses anything."""
        return replace(self, limit_bytes=self.base_bytes + budget_bytes + self.margin_bytes)

    @property
    def line_bytes(self) -> int:
        """The usage of the group that is not to be exceeded."""
        return self.limit_bytes - self.margin_bytes


@dataclass(frozen=True, slots=True)
class Standing:
    """Memory in use in a group that cannot be dropped, and how much of it is the engine's own."""

    at_ns: int
    held_bytes: int
    own_bytes: int

    @property
    def others_bytes(self) -> int:
        """What is not the engine's."""
        return max(0, self.held_bytes - self.own_bytes)

    def beyond(self, excess_bytes: int) -> Standing:
        """The same, with a part of the engine's counted as others'."""
        return replace(self, own_bytes=max(0, self.own_bytes - excess_bytes))


@dataclass(frozen=True, slots=True)
class ReportedBudget:
    """A budget for the process, what it was worked out from, and how fast others were growing."""

    at_ns: int
    budget_bytes: int
    standing: Standing
    rate_bytes_per_s: int


class Excess:
    """What an engine holds beyond its base and its books, and has held for a while.

    For moments it may be more, as when a switch has given something back that is still on its way to the system.
    """

    def __init__(self) -> None:
        self._lately: deque[tuple[int, int]] = deque()

    def see(self, standing: Standing, known_bytes: int) -> int:
        """The excess now; ``known_bytes`` are base and books together."""
        while len(self._lately) > 1 and standing.at_ns - self._lately[1][0] >= LASTING_NS:
            self._lately.popleft()
        self._lately.append((standing.at_ns, max(0, standing.own_bytes - known_bytes)))
        has_lasted = standing.at_ns - self._lately[0][0] >= LASTING_NS
        return min(excess for _, excess in self._lately) if has_lasted else 0


class HeadroomReporter:
    """Decides what a process is told, one standing after the other."""

    def __init__(self, share: Share, budget_bytes: int) -> None:
        """``budget_bytes`` is what the process was told before."""
        self._share, self._told_bytes = share, budget_bytes
        self._recent: deque[UsageReading] = deque()  # of what others use
        self._expected: deque[tuple[int, int]] = deque()  # times and budgets of the last while

    def hear(
        self, standing: Standing, *, awake: bool, reaction_ns: int, kept_bytes: int = 0
    ) -> ReportedBudget | None:
        """What to tell now, if anything.

        ``reaction_ns`` is what the process takes to give memory back, ``kept_bytes`` the size of its caches.
        """
        others = UsageReading(standing.at_ns, standing.others_bytes, self._share.limit_bytes)
        rate = self._rate(others)
        remember(self._recent, others)
        budget_bytes = self._budget(standing, rate * reaction_ns // SECOND_NS, kept_bytes)
        lasting_bytes = self._least_lately(standing.at_ns, budget_bytes)
        if budget_bytes <= self._told_bytes - QUANTUM_BYTES and awake:
            self._told_bytes = budget_bytes
        elif lasting_bytes >= self._told_bytes + QUANTUM_BYTES:
            self._told_bytes = lasting_bytes
        else:
            return None
        return ReportedBudget(standing.at_ns, self._told_bytes, standing, rate)

    def _rate(self, others: UsageReading) -> int:
        """How fast others grow, if they have grown by more than what nobody's books have exactly.

        That is the margin, but no more than ``NOISE_BYTES`` of it: the margin of a large model is what others take in a
        third of a second.
        """
        least_bytes = min((seen.usage_bytes for seen in self._recent), default=others.usage_bytes)
        noise_bytes = max(QUANTUM_BYTES, min(self._share.margin_bytes, NOISE_BYTES))
        if others.usage_bytes < least_bytes + noise_bytes:
            return 0
        return growth(self._recent, others, noise_bytes)

    def _budget(self, standing: Standing, ahead_bytes: int, kept_bytes: int) -> int:
        """The budget now; or, if others would meet the line before a reaction is over, the one to come.

        Of what is to come nothing is told that caches would not survive: weights go back at once, but levers that take
        long wait until it has come.
        """
        budget_bytes = self._share.budget_bytes(standing.others_bytes)
        pressing = standing.held_bytes + ahead_bytes > self._share.line_bytes
        least_bytes = min(budget_bytes, kept_bytes + QUANTUM_BYTES)
        return max(budget_bytes - ahead_bytes, least_bytes) if pressing else budget_bytes

    def _least_lately(self, at_ns: int, budget_bytes: int) -> int:
        """The least budget of the last while, with this one."""
        while self._expected and at_ns - self._expected[0][0] >= CALM_NS:
            self._expected.popleft()
        self._expected.append((at_ns, budget_bytes))
        return min(budget for _, budget in self._expected)


# --- reading ---


class StandingReader:
    """Reads the standing of an engine process in its group, in a tenth of a millisecond.

    A part of the process lies outside: what it allocated before it entered the group is charged elsewhere.
    """

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self._outside_bytes = 0

    def rest(self, pid: int) -> int:
        """The process is alone in its group, and at rest: what is held there is its own. Returns that."""
        held_bytes = self.read(0, None).held_bytes
        self._outside_bytes = anonymous_bytes(pid) - held_bytes
        return held_bytes

    def read(self, at_ns: int, pid: int | None) -> Standing:
        """The standing now; ``OSError`` if the group is gone.

        Usage and the engine's part cannot be read at once, and the reader may be kept waiting in between: what changed
        meanwhile is read again, and where it goes on changing, the larger part is the engine's.
        """
        for _ in range(READINGS_MAX):
            before_bytes = self._own(pid)
            held_bytes = self._group.held_bytes()
            after_bytes = self._own(pid)
            if abs(after_bytes - before_bytes) < QUANTUM_BYTES // 2:
                break
        return Standing(at_ns, held_bytes, max(before_bytes, after_bytes))

    def _own(self, pid: int | None) -> int:
        return 0 if pid is None else max(0, anonymous_bytes(pid) - self._outside_bytes)


def anonymous_bytes(pid: int) -> int:
    """Memory of a process without a file behind it (all of it, where that is not told apart); 0 once it is gone."""
    try:
        if sys.platform != "linux":
            return int(psutil.Process(pid).memory_info().rss)
        pages = Path(f"/proc/{pid}/statm").read_text("ascii").split()
    except (OSError, psutil.Error):
        return 0
    return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
