"""The lookout acts on where usage will be, and never on how bad things are already."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from realproc.lookout import (
    LOOK_NS,
    RATE_MAX_NS,
    RATE_MIN_NS,
    SECOND_NS,
    Lookout,
    Reaction,
    growth,
    judge,
)
from realproc.signals import MS_NS, Messages, Meter, Observation, Polling

MIB = 2**20
LIMIT = 600 * MIB
REACTION = Reaction(duration_ns=95 * MS_NS, margin_bytes=10 * MIB)


def seen(at_ms: int, usage_bytes: int) -> Observation:
    return Observation(at_ms * MS_NS, usage_bytes, LIMIT)


@given(st.integers(0, 590 * MIB), st.integers(1, 2 * 10**9), st.integers(5, 300))
def test_growth_up_to_the_rate_is_met_in_time(start: int, rate: int, step_ms: int) -> None:
    """Whatever grows no faster than the rate that it was told is below ``limit - margin`` when the reaction is over."""
    before = seen(0, start)
    now = seen(step_ms, start + rate * step_ms // 1000)
    alarm = judge([before], now, REACTION)
    after = now.usage_bytes + growth([before], now) * REACTION.duration_ns // SECOND_NS
    assert (alarm is not None) == (after > LIMIT - REACTION.margin_bytes)
    if alarm is not None:
        assert alarm.expected_bytes == after
        assert alarm.rate_bytes_per_s <= rate


@given(st.integers(0, LIMIT), st.integers(0, LIMIT), st.integers(-10, 10**4))
def test_only_growth_between_recent_observations_is_a_rate(first: int, second: int, apart_ms: int) -> None:
    rate = growth([seen(0, first)], seen(apart_ms, second))
    recent = RATE_MIN_NS <= apart_ms * MS_NS <= RATE_MAX_NS
    assert (rate > 0) == (recent and (second - first) * SECOND_NS >= apart_ms * MS_NS > 0)
    assert growth([], seen(0, first)) == 0


def test_every_polling_sees_growth() -> None:
    """Even when it comes twice as late as it should."""
    for late_ms in (10, 100, 20, 200):
        assert growth([seen(0, 0)], seen(late_ms, late_ms * 1000)) == 10**6


def test_full_is_an_alarm_without_any_growth() -> None:
    assert judge([], seen(0, 591 * MIB), REACTION) is not None
    assert judge([], seen(0, 590 * MIB), REACTION) is None


@given(st.integers(0, 10**10), st.integers(0, 10**9), st.integers(0, LIMIT))
def test_waking_leaves_time_for_a_look_and_the_reaction(rate: int, duration_ns: int, margin: int) -> None:
    reaction = Reaction(duration_ns, margin)
    wake = reaction.wake_bytes(LIMIT, rate)
    assert 0 <= wake <= LIMIT
    reached = wake + rate * (LOOK_NS + duration_ns) // SECOND_NS
    assert wake == 0 or reached <= LIMIT - margin


def meter(folder: Path, usage_bytes: int) -> Meter:
    """A meter over a file of our own."""
    (folder / "usage").write_text(f"{usage_bytes}\n")
    return Meter(folder / "usage", LIMIT)


def test_nothing_to_act_on_is_none(tmp_path: Path) -> None:
    lookout = Lookout(Polling(meter(tmp_path, MIB), MS_NS), meter(tmp_path, MIB), REACTION)
    assert lookout.wait(20 * MS_NS) is None


def test_an_event_wakes_and_is_looked_into(tmp_path: Path) -> None:
    """The signal comes while there is room; usage grows while nobody signals any more, and the looks see it."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    signal = Messages(meter(tmp_path, 100 * MIB), reading, late=False)
    lookout = Lookout(signal, meter(tmp_path, 100 * MIB), REACTION)
    assert lookout.wait(MS_NS) is None
    os.write(writing, b"!")
    assert lookout.wait(MS_NS) is None
    assert not select.select([reading], [], [], 0)[0], "the event was acknowledged"
    (tmp_path / "usage").write_text(f"{595 * MIB}\n")
    begun_ns = time.monotonic_ns()
    alarm = lookout.wait(60 * SECOND_NS)
    assert alarm is not None
    assert alarm.seen.usage_bytes == 595 * MIB
    assert alarm.seen.at_ns - begun_ns < 30 * SECOND_NS, "seen by a look, not at the end"
    os.close(writing)
    signal.close()
