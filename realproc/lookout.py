"""When to act: on usage, and on where usage will be by the time that the action has worked.

Asleep until a signal wakes it, the lookout then looks every 10 ms for 1 s, as Android's lmkd does, and says so when

    usage + rate * reaction > limit - margin

``reaction`` is everything between now and the memory being back: deciding, the token under way, releasing. ``rate`` is
that of the newest observations; a fall counts as no growth.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from realproc.signals import MS_NS, Meter, Observation, Signal

SECOND_NS = 1000 * MS_NS
LOOK_NS = 10 * MS_NS
ALERT_NS = SECOND_NS
RATE_MIN_NS, RATE_MAX_NS = 5 * MS_NS, 300 * MS_NS
"""Observations this far apart give a rate: the kernel counts in batches, and what is old says nothing about now.

The slowest polling, every 100 ms, must find its last observation in there, however late it is.
"""


@dataclass(frozen=True, slots=True)
class Reaction:
    """How long a release takes from the decision on, and how much is to stay free whatever happens."""

    duration_ns: int
    margin_bytes: int

    def wake_bytes(self, limit_bytes: int, rate_bytes_per_s: int) -> int:
        """The usage at which to wake so that growth at most this fast is met in time; not below nothing."""
        ahead = rate_bytes_per_s * (self.duration_ns + LOOK_NS) // SECOND_NS
        return max(0, limit_bytes - self.margin_bytes - ahead)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Act now: what was seen, how fast it grows, and where it will be when the reaction has taken its time."""

    seen: Observation
    rate_bytes_per_s: int
    expected_bytes: int


def growth(earlier: Sequence[Observation], now: Observation) -> int:
    """Bytes per second since the newest earlier observation that is old enough; 0 for a fall, or without one."""
    for before in reversed(earlier):
        if RATE_MIN_NS <= (since_ns := now.at_ns - before.at_ns) <= RATE_MAX_NS:
            return max(0, (now.usage_bytes - before.usage_bytes) * SECOND_NS // since_ns)
    return 0


def judge(earlier: Sequence[Observation], now: Observation, reaction: Reaction) -> Alarm | None:
    """The alarm that some observations give, if any."""
    rate = growth(earlier, now)
    expected_bytes = now.usage_bytes + rate * reaction.duration_ns // SECOND_NS
    if expected_bytes <= now.limit_bytes - reaction.margin_bytes:
        return None
    return Alarm(now, rate, expected_bytes)


class Vigil:
    """Sleeps until a signal comes, and from then on looks every 10 ms for a while. ``close`` closes the signal.

    A signal that is nothing but looking at an interval is always awake.
    """

    def __init__(self, signal: Signal, read: Callable[[], Observation]) -> None:
        """``read`` observes without a signal."""
        self._signal, self._read = signal, read
        self._alert_until_ns = 0

    def look(self, until_ns: int) -> Observation:
        """Wait for the signal, the next look or ``until_ns``, whichever is first, and observe."""
        now_ns = time.monotonic_ns()
        descriptor, pauses_ns = self._signal.fileno(), [max(0, until_ns - now_ns)]
        if now_ns < self._alert_until_ns:
            pauses_ns.append(LOOK_NS)
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
        """There is a reason to look closely for a second."""
        self._alert_until_ns = since_ns + ALERT_NS

    def close(self) -> None:
        """Nothing wakes any more."""
        self._signal.close()

    def awake(self, at_ns: int) -> bool:
        """Whether it was looking closely at a time, or always is."""
        return at_ns < self._alert_until_ns or self._signal.fileno() is None


class Lookout:
    """Waits on a signal, and looks closely for a while when it comes. Closes neither signal nor meter."""

    def __init__(self, signal: Signal, meter: Meter, reaction: Reaction) -> None:
        self._vigil, self._reaction = Vigil(signal, meter.read), reaction
        self._recent: deque[Observation] = deque()

    def wait(self, within_ns: int) -> Alarm | None:
        """The next reason to act; ``None`` if there is none within this time.

        After an alarm it stays awake: calling again says whether the reason is still there.
        """
        until_ns = time.monotonic_ns() + within_ns
        while True:
            seen = self._vigil.look(until_ns)
            alarm = judge(self._recent, seen, self._reaction)
            remember(self._recent, seen)
            if alarm is not None:
                self._vigil.stay_awake(seen.at_ns)
                return alarm
            if seen.at_ns >= until_ns:
                return None


def remember(recent: deque[Observation], seen: Observation) -> None:
    """Add an observation, and forget those that are too old for a rate."""
    while recent and seen.at_ns - recent[0].at_ns > RATE_MAX_NS:
        recent.popleft()
    recent.append(seen)
