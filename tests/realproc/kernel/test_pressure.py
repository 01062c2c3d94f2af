"""Allocators hold what a trace says, to the MiB, in resident pages, and die with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.errors import InputError
from molt.units import MIB, SECOND_NS
from realproc.kernel.pressure import (
    AllocationPace,
    Allocator,
    AllocatorSpec,
    target_at,
    targets_for,
)
from realproc.kernel.touched_pages import HUGE_BYTES, TouchedBlocks
from tests.realproc.waiting import until_gone

LONG_NS = 60 * SECOND_NS


def anonymous_bytes(pid: int | str) -> int:
    """Resident anonymous memory, as the kernel counts it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    pytest.skip("this system does not count anonymous memory")


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux_only
@pytest.mark.parametrize("huge", [False, True])
def test_blocks_are_resident_and_go_back(huge: bool) -> None:
    """9 MiB are 9 MiB, whether the kernel has huge pages left or not; and nothing once they are given back."""
    before = anonymous_bytes("self")
    blocks = TouchedBlocks()
    while blocks.taken_bytes < 9 * MIB:
        assert blocks.grow(9 * MIB, huge=huge) in (MIB, HUGE_BYTES)
    assert blocks.taken_bytes == 9 * MIB
    assert abs(anonymous_bytes("self") - before - 9 * MIB) <= MIB
    while blocks.taken_bytes:
        blocks.shrink()
    assert abs(anonymous_bytes("self") - before) <= MIB


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 2**34)), min_size=1, max_size=6),
    st.integers(0, 5000),
)
def test_what_is_left_of_the_limit_is_the_budget(steps: list[tuple[int, int]], at_ns: int) -> None:
    """At every moment an allocator leaves at most the budget, and less than 1 MiB less."""
    budgets, time_ns = [], 0
    for wait_ns, budget in steps:
        budgets.append((time_ns, budget))
        time_ns += wait_ns
    limit = max(budget for _, budget in budgets) // MIB * MIB + MIB
    held, changes_ns = target_at(targets_for(budgets, limit), at_ns)
    now = max(index for index, (begins_ns, _) in enumerate(budgets) if begins_ns <= at_ns)
    assert 0 <= budgets[now][1] - (limit - held) < MIB
    assert changes_ns == (budgets[now + 1][0] if now + 1 < len(budgets) else None)


def test_a_budget_over_the_limit_is_refused() -> None:
    with pytest.raises(InputError, match="budget at 2s: 3MiB is more than the limit of the run, 2MiB"):
        targets_for(((0, MIB), (2 * SECOND_NS, 3 * MIB)), 2 * MIB)


def test_nothing_is_held_before_the_first_step() -> None:
    assert target_at(((5, MIB),), 4) == (0, 5)
    assert target_at((), 4) == (0, None)


@given(
    st.integers(1, 10**10),
    st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from((MIB, HUGE_BYTES))), min_size=1),
)
def test_the_rate_is_a_ceiling(rate: int, steps: list[tuple[int, int]]) -> None:
    """However late a child is, between any two blocks there is at least the time that the first of them takes."""
    pace, at_ns = AllocationPace(rate), 0
    for late_ns, size in steps:
        at_ns = max(at_ns, pace.next_ns) + late_ns
        pace.took(size, at_ns)
        assert pace.next_ns - at_ns == size * SECOND_NS // rate
    flat_out = AllocationPace(None)
    flat_out.took(MIB, 5)
    assert flat_out.next_ns <= 5


@linux_only
def test_an_allocator_follows_orders_and_a_trace() -> None:
    """It holds, gives back, and takes again at a later moment; the kernel sees the same as it reports."""
    with Allocator(AllocatorSpec()) as allocator:
        empty = anonymous_bytes(allocator.pid)
        allocator.hold(24 * MIB)
        assert allocator.wait_until_held(24 * MIB, LONG_NS) is not None
        assert abs(anonymous_bytes(allocator.pid) - empty - 24 * MIB) <= MIB
        start_ns = time.monotonic_ns()
        allocator.follow(((0, 2 * MIB), (200_000_000, 8 * MIB)), start_ns)
        assert allocator.wait_until_held(2 * MIB, LONG_NS) is not None
        grown = allocator.wait_until_held(8 * MIB, LONG_NS)
        assert grown is not None
        assert grown.at_ns >= start_ns + 200_000_000
        assert abs(anonymous_bytes(allocator.pid) - empty - 8 * MIB) <= MIB
        assert allocator.alive
    assert not psutil.pid_exists(allocator.pid)


def test_an_allocator_that_cannot_enter_its_group_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"did not start: cannot enter {tmp_path}/gone; `molt doctor`"):
        Allocator(AllocatorSpec(group=tmp_path / "gone"))


def test_an_allocator_dies_with_its_parent() -> None:
    """Its parent is killed, and can order nothing."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.realproc.parent"], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    os.kill(parent.pid, 9)
    parent.wait()
    parent.stdout.close()
    until_gone([pid])
