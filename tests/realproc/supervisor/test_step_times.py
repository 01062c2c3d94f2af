"""The boundary is the longest of the last steps, and never longer than a step may take."""

from __future__ import annotations

from molt.core import events as e
from molt.live.live_world import MemorySample
from realproc.supervisor import step_times as p

MS = 10**6
TOKEN = e.TokensProduced(at_ns=0, tenant="chat", rung="tier0", count=1)


def test_the_longest_of_the_last_steps(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    now_ns = 0
    monkeypatch.setattr(p.time, "monotonic_ns", lambda: now_ns)
    step_times = p.StepTimes(100 * MS)
    assert step_times.boundary_ns() == 100 * MS, "before anything is known, the worst"
    for took_ms in (30, *[5] * (p.REMEMBERED - 1)):
        now_ns += took_ms * MS
        step_times.on_record(TOKEN)
    assert step_times.boundary_ns() == 30 * MS
    now_ns += 5 * MS
    step_times.on_record(TOKEN)
    assert step_times.boundary_ns() == 5 * MS, "what is long ago does not count"
    now_ns += 5000 * MS
    step_times.on_record(TOKEN)
    assert step_times.boundary_ns() == 100 * MS, "idle time counts for no more than a step"


def test_it_records_when_the_world_began(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(p.time, "monotonic_ns", lambda: 900 * MS)
    step_times = p.StepTimes(100 * MS)
    assert step_times.begin_ns(within_s=0.0) is None
    for at_ms in (40, 60):
        step_times.on_record(MemorySample(at_ms * MS, 1, 9, {"kv": {"chat": 3, "digest": 4}}, False, {}))
    assert step_times.begin_ns(within_s=0.0) == 860 * MS
    assert (step_times.cache_bytes, step_times.booked_bytes) == (7, 9)


def test_what_is_no_step_takes_no_time(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    now_ns = 0
    monkeypatch.setattr(p.time, "monotonic_ns", lambda: now_ns)
    step_times = p.StepTimes(100 * MS)
    for _ in range(p.REMEMBERED):
        now_ns += 50 * MS
        step_times.on_record(e.BudgetChanged(at_ns=0, budget_bytes=1))
        now_ns += 2 * MS
        step_times.on_record(TOKEN)
    assert step_times.boundary_ns() == 2 * MS


def test_tokens_alone_show_how_slow_a_machine_is(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A load, a switch and a token that heals take longer than a token on any machine."""
    now_ns, expected_ns = 0, {"tier0": 4 * MS, "tier1": 2 * MS}
    monkeypatch.setattr(p.time, "monotonic_ns", lambda: now_ns)
    step_times = p.StepTimes(100 * MS)
    assert step_times.slower(expected_ns) == 1.0, "before anything is known, as it should be"
    slower = []
    for took_ms, record in (
        (3, TOKEN),
        (40, e.RungLoaded(at_ns=0, rung="tier1", decision=1)),
        (40, e.TokensProduced(at_ns=0, tenant="chat", rung="tier0", count=1, heal=8, healed=8)),
        (6, e.TokensProduced(at_ns=0, tenant="chat", rung="tier1", count=1)),
        (8, TOKEN),
    ):
        now_ns += took_ms * MS
        step_times.on_record(record)
        slower.append(step_times.slower(expected_ns))
    assert slower == [1.0, 1.0, 1.0, 3.0, 3.0]
    for _ in range(p.REMEMBERED):
        now_ns += 4 * MS
        step_times.on_record(TOKEN)
    assert step_times.slower(expected_ns) == 1.0, "what is long ago does not count"
