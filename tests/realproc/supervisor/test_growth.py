"""When memory is looked at, and what counts as growth."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from molt.units import MS_NS, SECOND_NS
from realproc.kernel.signals import Messages, Meter, Polling, UsageReading
from realproc.supervisor.growth import (
    RATE_MAX_NS,
    RATE_MIN_NS,
    RATE_NS,
    WATCH_INTERVAL_NS,
    SignalWatch,
    growth,
)

MIB = 2**20
LIMIT = 600 * MIB


def seen(at_ms: int, usage_bytes: int) -> UsageReading:
    return UsageReading(at_ms * MS_NS, usage_bytes, LIMIT)


@given(st.integers(0, LIMIT), st.integers(0, LIMIT), st.integers(-10, 10**4))
def test_only_growth_between_recent_observations_is_a_rate(first: int, second: int, apart_ms: int) -> None:
    """Much within a moment, anything within a while."""
    rate = growth([seen(0, first)], seen(apart_ms, second), MIB)
    earliest_ns = RATE_MIN_NS if second - first >= MIB else RATE_NS
    recent = earliest_ns <= apart_ms * MS_NS <= RATE_MAX_NS
    assert (rate > 0) == (recent and (second - first) * SECOND_NS >= apart_ms * MS_NS > 0)
    assert growth([], seen(0, first), 1) == 0


def test_every_polling_sees_growth() -> None:
    """Even when it comes twice as late as it should."""
    for late_ms in (10, 100, 20, 200):
        assert growth([seen(0, 0)], seen(late_ms, late_ms * 1000), 1) == 10**6


@given(st.integers(5, 60), st.integers(0, 59))
def test_memory_taken_piece_by_piece_does_not_seem_to_be_taken_faster(every_ms: int, start_ms: int) -> None:
    """A MiB every so often, looked at every 10 ms, is no more than one MiB too much in the time that is looked at."""
    looks = [seen(ms, (ms + start_ms) // every_ms * MIB) for ms in range(0, 600, 10)]
    rates = [growth(looks[:number], look, 4 * MIB) for number, look in enumerate(looks)]
    grain = MIB * SECOND_NS // RATE_NS
    assert max(rates) <= MIB * 1000 // every_ms + grain
    assert max(rates) >= 0.8 * MIB * 1000 // every_ms


def test_growth_that_begins_between_two_looks_is_seen_whole_with_the_next() -> None:
    slow = [seen(ms, ms // 20 * MIB) for ms in range(0, 100, 10)]
    fast = [seen(100, 8 * MIB), seen(110, 12 * MIB)]
    assert growth([*slow, fast[0]], fast[1], 4 * MIB) == 400 * MIB


def meter(folder: Path, usage_bytes: int) -> Meter:
    """A meter over a file of our own."""
    (folder / "usage").write_text(f"{usage_bytes}\n")
    return Meter(folder / "usage", LIMIT)


def test_without_a_signal_it_sleeps_until_the_time_it_was_given(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    watch = SignalWatch(Messages(meter(tmp_path, MIB), reading, late=False), meter(tmp_path, MIB).read)
    until_ns = time.monotonic_ns() + 20 * MS_NS
    assert watch.look(until_ns).at_ns >= until_ns - MS_NS
    assert not watch.awake(time.monotonic_ns())
    watch.close()
    os.close(writing)


def test_an_event_wakes_and_is_looked_into(tmp_path: Path) -> None:
    """The signal comes while there is room; usage grows without further signals, and the looks see it."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    watch = SignalWatch(
        Messages(meter(tmp_path, 100 * MIB), reading, late=False), meter(tmp_path, 100 * MIB).read
    )
    os.write(writing, b"!")
    assert watch.look(time.monotonic_ns() + 60 * SECOND_NS).usage_bytes == 100 * MIB
    assert not select.select([reading], [], [], 0)[0], "the event was acknowledged"
    assert watch.awake(time.monotonic_ns())
    (tmp_path / "usage").write_text(f"{595 * MIB}\n")
    begun_ns = time.monotonic_ns()
    seen = watch.look(begun_ns + 60 * SECOND_NS)
    assert seen.usage_bytes == 595 * MIB
    assert seen.at_ns - begun_ns < 30 * SECOND_NS, "seen by a look, not at the end"
    watch.close()
    os.close(writing)


def test_a_signal_without_a_descriptor_is_always_awake(tmp_path: Path) -> None:
    watch = SignalWatch(Polling(meter(tmp_path, MIB), WATCH_INTERVAL_NS), meter(tmp_path, MIB).read)
    begun_ns = time.monotonic_ns()
    assert watch.look(begun_ns + 60 * SECOND_NS).at_ns - begun_ns < 30 * SECOND_NS
    assert watch.awake(0)
    watch.close()
