"""A process is told what it may have: at once and ahead of time when it falls, after a while when it rises."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from realproc.kernel.limited_group import GroupV1, GroupV2
from realproc.kernel.signals import MS_NS
from realproc.kernel.touched_pages import MIB
from realproc.supervisor.growth import LOOK_NS, SECOND_NS
from realproc.supervisor.headroom import (
    CALM_NS,
    LASTING_NS,
    QUANTUM_BYTES,
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


def told(
    others: Callable[[int], int], duration_ms: int, *, awake: bool = True, own: int = OWN
) -> list[tuple[int, int]]:
    """Milliseconds and budgets told, to a process that was told everything, by a look every 10 ms."""
    teller = HeadroomReporter(SHARE, SHARE.budget_bytes(0))
    heard = []
    for at_ms in range(0, duration_ms, LOOK_NS // MS_NS):
        standing = Standing(at_ms * MS_NS, others(at_ms) + own, own)
        if news := teller.hear(standing, awake=awake, reaction_ns=REACTION_NS):
            heard.append((at_ms, news.budget_bytes))
    return heard


def test_the_limit_is_divided() -> None:
    assert SHARE.budget_bytes(0) == 76 * MIB
    assert SHARE.budget_bytes(80 * MIB) == 0
    assert SHARE.line_bytes == 96 * MIB


def test_what_an_engine_holds_beyond_its_books_counts_as_others_when_it_lasts() -> None:
    """Its books have 10 MiB; 7 more stay for good, and 20 more for a moment."""
    excess = Excess()
    seen = [
        excess.see(Standing(ms * MS_NS, 90 * MIB, (27 + 20 * (ms == 300)) * MIB), 20 * MIB)
        for ms in range(0, 500, 10)
    ]
    lasting = LASTING_NS // (10 * MS_NS)
    assert seen == [0] * lasting + [7 * MIB] * (50 - lasting)
    assert excess.see(Standing(SECOND_NS, 90 * MIB, 10 * MIB), 20 * MIB) == 0
    assert Standing(0, 90 * MIB, 27 * MIB).beyond(7 * MIB).others_bytes == 70 * MIB


def test_a_single_look_long_after_the_last_is_no_lasting_excess() -> None:
    excess = Excess()
    assert excess.see(Standing(0, 90 * MIB, 10 * MIB), 20 * MIB) == 0
    assert excess.see(Standing(SECOND_NS, 90 * MIB, 40 * MIB), 20 * MIB) == 0


def test_a_fall_is_told_at_once_and_a_rise_when_it_lasts() -> None:
    news = told(lambda ms: 10 * MIB if 100 <= ms < 400 else 0, 1000)
    assert news == [(100, 66 * MIB), (390 + CALM_NS // MS_NS, 76 * MIB)]


def test_a_rise_that_does_not_last_is_not_told() -> None:
    assert told(lambda ms: 0 if ms % 80 < 10 else 10 * MIB, 1000) == [(10, 66 * MIB)]


def test_a_jump_near_the_line_is_taken_for_the_beginning_of_more() -> None:
    """10 MiB within 10 ms may be 1 GiB a second; a while later it was not."""
    news = told(lambda ms: 10 * MIB if ms >= 100 else 0, 1000, own=50 * MIB)
    assert news == [(100, 16 * MIB), (100 + CALM_NS // MS_NS, 66 * MIB)]


def test_slow_growth_is_growth_beside_a_large_margin() -> None:
    """150 MiB/s are 45 MiB in the time that is looked back upon; a reaction of a second is told that long before."""
    share = Share(limit_bytes=6400 * MIB, base_bytes=200 * MIB, margin_bytes=62 * MIB)
    teller, own, now_ns = HeadroomReporter(share, share.budget_bytes(0)), 5900 * MIB, 0
    while own + (others := now_ns * 150 * MIB // SECOND_NS) < share.line_bytes:
        standing = Standing(now_ns, own + others, own)
        news = teller.hear(standing, awake=True, reaction_ns=SECOND_NS, kept_bytes=30 * MIB)
        if news is not None and news.budget_bytes < share.budget_bytes(others):
            break
        now_ns += LOOK_NS
    assert share.line_bytes - own - others > 100 * MIB


def test_ahead_of_time_nothing_is_told_that_caches_would_not_survive() -> None:
    """Growth of 1 GiB/s leaves nothing; the caches take 30 MiB, and there are 50 left still."""
    teller = HeadroomReporter(SHARE, SHARE.budget_bytes(0))
    own = 64 * MIB
    for at_ms, others, told_bytes in ((0, 0, None), (10, 10, 31), (20, 20, None), (30, 50, 26)):
        standing = Standing(at_ms * MS_NS, others * MIB + own, own)
        news = teller.hear(standing, awake=True, reaction_ns=100 * MS_NS, kept_bytes=30 * MIB)
        assert (news.budget_bytes // MIB if news else None) == told_bytes


@given(st.integers(0, 2**20 - 1), st.integers(1, 50))
def test_noise_is_not_told(noise: int, period: int) -> None:
    assert told(lambda ms: noise if ms // 10 % period else 0, 1000) == []


def test_a_late_signal_leaves_the_process_in_the_dark() -> None:
    """But not for ever: what has been told of a rise needs no signal."""
    assert told(lambda ms: 40 * MIB if ms < 500 else 0, 1000, awake=False) == []
    teller = HeadroomReporter(SHARE, 0)
    told_rise = [
        teller.hear(Standing(ms * MS_NS, OWN, OWN), awake=False, reaction_ns=REACTION_NS) is not None
        for ms in (0, 10, 20)
    ]
    assert told_rise == [True, False, False]


@given(st.integers(5, 400), st.integers(0, 40))
def test_fast_growth_is_told_before_it_hurts(mib_per_s: int, start_ms: int) -> None:
    """Whatever grows steadily, the budget it will have left after the reaction is told before the line is met."""
    end_ms = start_ms + 40_000 // mib_per_s  # 40 MiB later

    def others(ms: int) -> int:
        return min(max(0, ms - start_ms), end_ms - start_ms) * mib_per_s * MIB // 1000

    own = 60 * MIB  # with 40 MiB more, above the line of 96 MiB
    news = told(others, end_ms + 500, own=own)
    meets_ms = start_ms + 36_000 / mib_per_s
    need = SHARE.budget_bytes(36 * MIB)
    assert news, "it was told"
    in_time = [budget for at_ms, budget in news if at_ms <= meets_ms - REACTION_NS / MS_NS + LOOK_NS / MS_NS]
    if (meets_ms - start_ms) > REACTION_NS / MS_NS + 5 * LOOK_NS / MS_NS:
        assert in_time, "with time enough, it was told in time"
        assert min(in_time) <= need + 2 * QUANTUM_BYTES + mib_per_s * MIB * LOOK_NS // SECOND_NS
    assert abs(news[-1][1] - SHARE.budget_bytes(others(end_ms + 500))) < 2 * QUANTUM_BYTES


def test_what_can_be_dropped_is_not_held(tmp_path: Path) -> None:
    """Both kinds of group: 14,000 bytes in use, 7,500 of them clean pages of files."""
    for kind, files in ((GroupV1, FILES_V1), (GroupV2, FILES_V2)):
        group = kind(plant(tmp_path / kind.__name__, files))
        standing = StandingReader(group).read(5, None)
        assert standing == Standing(5, 14_000 - 7_500, 0)


def test_what_lies_outside_of_the_group_is_not_counted(tmp_path: Path) -> None:
    """This process has more than its made-up group holds; at rest nobody else has anything, and what comes on top is
    its own, until it is gone."""
    group = GroupV1(plant(tmp_path, FILES_V1))
    ledger = StandingReader(group)
    assert ledger.rest(os.getpid()) == 6_500
    assert ledger.read(0, os.getpid()).others_bytes < MIB
    block = bytearray(64 * MIB)
    assert 48 * MIB < ledger.read(0, os.getpid()).own_bytes < 80 * MIB  # whatever else it frees meanwhile
    assert ledger.read(0, None).own_bytes == 0
    del block


def test_own_memory_is_what_has_no_file_behind_it() -> None:
    before, block = anonymous_bytes(os.getpid()), bytearray(64 * MIB)
    assert 48 * MIB < anonymous_bytes(os.getpid()) - before < 80 * MIB
    del block
    assert anonymous_bytes(2**22 + 1) == 0, "no process has such an id"
