"""Many answers at once under a budget that never rests: the short form of ``python -m benchmarks.serve``."""

from __future__ import annotations

import asyncio

from benchmarks.serve import Driver, books, percentiles
from tests.server.local import ADMIN
from tests.server.process import Process


def test_every_stream_completes_and_the_bound_is_kept(pico: Process) -> None:
    """Eight streams on real models, the budget changed ten times a second."""
    driver = Driver(pico.url, ADMIN, streams=8, tokens=24)
    try:
        phase = asyncio.run(driver.phase("pressure", 2.0, hz=10))
        state = asyncio.run(driver.state())
    finally:
        pico.budget("90MiB")
    assert phase.completed >= 8
    assert (phase.broken, phase.killed, state["kills"]) == (0, 0, 0)
    assert phase.tokens == 24 * phase.completed
    assert len(phase.ttft_s) == phase.completed
    assert len(phase.itl_s) == 23 * phase.completed
    assert phase.budgets > 5
    kept = books(pico.log)
    assert (kept.overshoot_bytes_max, kept.violations) == (0, 0)
    assert state["tenants"] == []


def test_percentiles() -> None:
    assert percentiles([]) == (0, 0, 0)
    assert percentiles([3]) == (3, 3, 3)
    assert percentiles(range(101)) == (50, 90, 99)
