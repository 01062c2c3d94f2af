"""When memory is looked at, and how fast usage grows.

As with Android's lmkd, the watch sleeps until a signal wakes it, and then looks every 10 ms for 1 s. The rate is that
of the newest readings far enough apart to give one; a fall counts as no growth.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Sequence

from molt.units import MS_NS, SECOND_NS
from realproc.kernel.signals import Signal, UsageReading

WATCH_INTERVAL_NS = 10 * MS_NS
ALERT_NS = SECOND_NS
RATE_MIN_NS, RATE_NS, RATE_MAX_NS = 5 * MS_NS, 40 * MS_NS, 300 * MS_NS
"""Readings this far apart give a rate: the kernel counts in batches, and an old reading says nothing about now.

The slowest polling, every 100 ms, must find its last reading in this span, even if it is late.
"""


def growth(earlier: Sequence[UsageReading], now: UsageReading, noise_bytes: int) -> int:
    """Bytes per second since the newest earlier reading that is ``RATE_NS`` old, or ``noise_bytes`` smaller.

    Less growth in less time may be the grain in which others take memory and the kernel counts it: a MiB every 20 ms
    would seem twice as fast to a reader that looks every 10 ms. 0 for a fall, or without a recent reading.
    """
    for before in reversed(earlier):
        since_ns, growth_bytes = now.at_ns - before.at_ns, now.usage_bytes - before.usage_bytes
        is_clear = since_ns >= RATE_NS or (since_ns >= RATE_MIN_NS and growth_bytes >= noise_bytes)
        if is_clear and since_ns <= RATE_MAX_NS:
            return max(0, growth_bytes * SECOND_NS // since_ns)
    return 0


class SignalWatch:
    """Sleeps until a signal comes, and from then on looks every 10 ms for a while. ``close`` closes the signal.

    A signal that only polls at an interval is always awake.
    """

    def __init__(self, signal: Signal, read: Callable[[], UsageReading]) -> None:
        """``read`` takes a reading when no signal has come."""
        self._signal, self._read = signal, read
        self._alert_until_ns = 0

    def look(self, until_ns: int) -> UsageReading:
        """Wait for the signal, the next look or ``until_ns``, whichever is first, and take a reading."""
        now_ns = time.monotonic_ns()
        descriptor, pauses_ns = self._signal.fileno(), [max(0, until_ns - now_ns)]
        if now_ns < self._alert_until_ns:
            pauses_ns.append(WATCH_INTERVAL_NS)
        if self._signal.interval_ns is not None:
            pauses_ns.append(self._signal.interval_ns)
        poll = select.poll()
        if descriptor is not None:
            poll.register(descriptor, self._signal.poll_mask)
        if poll.poll(min(pauses_ns) / MS_NS):
            seen = self._signal.read()
            self.stay_awake(seen.at_ns)
            return seen
        return self._read()

    def stay_awake(self, since_ns: int) -> None:
        """Look every 10 ms for a second from this time on."""
        self._alert_until_ns = since_ns + ALERT_NS

    def close(self) -> None:
        """Close the signal; nothing wakes any more."""
        self._signal.close()

    def awake(self, at_ns: int) -> bool:
        """Whether it was looking every 10 ms at this time, or polls always."""
        return at_ns < self._alert_until_ns or self._signal.fileno() is None


def remember(recent: deque[UsageReading], seen: UsageReading) -> None:
    """Add a reading, and drop those that are too old for a rate."""
    while recent and seen.at_ns - recent[0].at_ns > RATE_MAX_NS:
        recent.popleft()
    recent.append(seen)
