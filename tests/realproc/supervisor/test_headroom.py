"""A budget is reported at once, or ahead of time, when it falls, and after a while when it rises."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from molt.units import MIB, MS_NS, SECOND_NS
from realproc.kernel.limited_group import GroupV1, GroupV2
from realproc.supervisor.growth import WATCH_INTERVAL_NS
from realproc.supervisor.headroom import (
    LASTING_NS,
    QUANTUM_BYTES,
    RISE_NS,
    Excess,
    HeadroomReporter,
    Share,
    Standing,
    StandingReader,
    anonymous_bytes,
)
from tests.realproc.conftest import FILES_V1, FILES_V2
from tests.realproc.trees import plant

SHARE = Share(limit_bytes=100 * MIB, base_bytes=20 * MIB, margin_bytes=4 * MIB)
REACTION_NS = 50 * MS_NS
OWN = 20 * MIB


def reports(
    others: Callable[[int], int], duration_ms: int, *, awake: bool = True, own: int = OWN
) -> list[tuple[int, int]]:
    """Milliseconds and budgets reported by a look every 10 ms; before the first, the whole budget was reported."""
    reporter = HeadroomReporter(SHARE, SHARE.budget_bytes(0))
    found = []
    for at_ms in range(0, duration_ms, WATCH_INTERVAL_NS // MS_NS):
        standing = Standing(at_ms * MS_NS, others(at_ms) + own, own)
        if reported := reporter.report(standing, awake=awake, reaction_ns=REACTION_NS):
            found.append((at_ms, reported.budget_bytes))
    return found


def test_the_limit_is_divided() -> None:
    assert SHARE.budget_bytes(0) == 76 * MIB
    assert SHARE.budget_bytes(80 * MIB) == 0
    assert SHARE.line_bytes == 96 * MIB


def test_what_an_engine_holds_beyond_its_books_counts_as_others_when_it_lasts() -> None:
    """Its books have 10 MiB; 7 more stay for good, and 20 more for a moment."""
    excess = Excess(base_bytes=10 * MIB)
    seen = [
        excess.observe(Standing(ms * MS_NS, 90 * MIB, (27 + 20 * (ms == 300)) * MIB), booked_bytes=10 * MIB)
        for ms in range(0, 500, 10)
    ]
    lasting = LASTING_NS // (10 * MS_NS)
    assert seen == [0] * lasting + [7 * MIB] * (50 - lasting)
    assert excess.observe(Standing(SECOND_NS, 90 * MIB, 10 * MIB), booked_bytes=10 * MIB) == 0
    assert Standing(0, 90 * MIB, 27 * MIB).with_excess(7 * MIB).others_bytes == 70 * MIB


def test_a_single_look_long_after_the_last_is_no_lasting_excess() -> None:
    excess = Excess(base_bytes=10 * MIB)
    assert excess.observe(Standing(0, 90 * MIB, 10 * MIB), booked_bytes=10 * MIB) == 0
    assert excess.observe(Standing(SECOND_NS, 90 * MIB, 40 * MIB), booked_bytes=10 * MIB) == 0


def test_a_fall_is_reported_at_once_and_a_rise_when_it_lasts() -> None:
    reported = reports(lambda ms: 10 * MIB if 100 <= ms < 400 else 0, 1000)
    assert reported == [(100, 66 * MIB), (390 + RISE_NS // MS_NS, 76 * MIB)]


def test_a_rise_that_does_not_last_is_not_reported() -> None:
    assert reports(lambda ms: 0 if ms % 80 < 10 else 10 * MIB, 1000) == [(10, 66 * MIB)]


def test_a_jump_near_the_line_is_taken_for_the_beginning_of_more() -> None:
    """10 MiB within 10 ms may be 1 GiB a second; a while later it was not."""
    reported = reports(lambda ms: 10 * MIB if ms >= 100 else 0, 1000, own=50 * MIB)
    assert reported == [(100, 16 * MIB), (100 + RISE_NS // MS_NS, 66 * MIB)]


def test_slow_growth_is_growth_beside_a_large_margin() -> None:
    """150 MiB/s are 45 MiB in the time over which growth is measured; with a reaction of a second, the fall is reported
    so long before."""
    share = Share(limit_bytes=6400 * MIB, base_bytes=200 * MIB, margin_bytes=62 * MIB)
    reporter, own, now_ns = HeadroomReporter(share, share.budget_bytes(0)), 5900 * MIB, 0
    while own + (others := now_ns * 150 * MIB // SECOND_NS) < share.line_bytes:
        standing = Standing(now_ns, own + others, own)
        reported = reporter.report(standing, awake=True, reaction_ns=SECOND_NS, cache_bytes=30 * MIB)
        if reported is not None and reported.budget_bytes < share.budget_bytes(others):
            break
        now_ns += WATCH_INTERVAL_NS
    assert share.line_bytes - own - others > 100 * MIB


def test_no_budget_ahead_of_time_is_too_small_for_the_caches() -> None:
    """Growth of 1 GiB/s leaves nothing; the caches take 30 MiB, and there are 50 left still."""
    reporter = HeadroomReporter(SHARE, SHARE.budget_bytes(0))
    own = 64 * MIB
    for at_ms, others, expected in ((0, 0, None), (10, 10, 31), (20, 20, None), (30, 50, 26)):
        standing = Standing(at_ms * MS_NS, others * MIB + own, own)
        reported = reporter.report(standing, awake=True, reaction_ns=100 * MS_NS, cache_bytes=30 * MIB)
        assert (reported.budget_bytes // MIB if reported else None) == expected


@given(st.integers(0, 2**20 - 1), st.integers(1, 50))
def test_noise_is_not_reported(noise: int, period: int) -> None:
    assert reports(lambda ms: noise if ms // 10 % period else 0, 1000) == []


def test_after_a_late_signal_a_fall_is_not_reported() -> None:
    """A rise is: it needs no signal."""
    assert reports(lambda ms: 40 * MIB if ms < 500 else 0, 1000, awake=False) == []
    reporter = HeadroomReporter(SHARE, 0)
    rises = [
        reporter.report(Standing(ms * MS_NS, OWN, OWN), awake=False, reaction_ns=REACTION_NS) is not None
        for ms in (0, 10, 20)
    ]
    assert rises == [True, False, False]


@given(st.integers(5, 400), st.integers(0, 40))
def test_fast_growth_is_reported_before_it_hurts(mib_per_s: int, start_ms: int) -> None:
    """At any steady growth, the budget that is left after the reaction is reported before the line is met."""
    end_ms = start_ms + 40_000 // mib_per_s  # 40 MiB later

    def others(ms: int) -> int:
        return min(max(0, ms - start_ms), end_ms - start_ms) * mib_per_s * MIB // 1000

    own = 60 * MIB  # with 40 MiB more, above the line of 96 MiB
    reported = reports(others, end_ms + 500, own=own)
    meets_ms = start_ms + 36_000 / mib_per_s
    need = SHARE.budget_bytes(36 * MIB)
    assert reported, "it was reported"
    in_time = [
        budget
        for at_ms, budget in reported
        if at_ms <= meets_ms - REACTION_NS / MS_NS + WATCH_INTERVAL_NS / MS_NS
    ]
    if (meets_ms - start_ms) > REACTION_NS / MS_NS + 5 * WATCH_INTERVAL_NS / MS_NS:
        assert in_time, "with time enough, it was reported in time"
        assert min(in_time) <= need + 2 * QUANTUM_BYTES + mib_per_s * MIB * WATCH_INTERVAL_NS // SECOND_NS
    assert abs(reported[-1][1] - SHARE.budget_bytes(others(end_ms + 500))) < 2 * QUANTUM_BYTES


def test_what_can_be_dropped_is_not_held(tmp_path: Path) -> None:
    """Both kinds of group: 14,000 bytes in use, 7,500 of them clean pages of files."""
    for kind, files in ((GroupV1, FILES_V1), (GroupV2, FILES_V2)):
        group = kind(plant(tmp_path / kind.__name__, files))
        standing = StandingReader(group).read(5, None)
        assert standing == Standing(5, 14_000 - 7_500, 0)


def test_what_lies_outside_of_the_group_is_not_counted(tmp_path: Path) -> None:
    """This process holds more than its made-up group. At rest the group has no other process, and what is added later
    is the engine's own, until it is gone."""
    group = GroupV1(plant(tmp_path, FILES_V1))
    reader = StandingReader(group)
    assert reader.measure_base(os.getpid()) == 6_500
    assert reader.read(0, os.getpid()).others_bytes < MIB
    block = bytearray(64 * MIB)
    assert 48 * MIB < reader.read(0, os.getpid()).own_bytes < 80 * MIB  # whatever else it frees meanwhile
    assert reader.read(0, None).own_bytes == 0
    del block


def test_own_memory_is_what_has_no_file_behind_it() -> None:
    before, block = anonymous_bytes(os.getpid()), bytearray(64 * MIB)
    assert 48 * MIB < anonymous_bytes(os.getpid()) - before < 80 * MIB
    del block
    assert anonymous_bytes(2**22 + 1) == 0, "no process has such an id"
