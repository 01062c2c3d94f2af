"""What the kernel counted and how long relief took, read from a log of real processes."""

from __future__ import annotations

from molt.core import decisions as d
from molt.core import events as e
from molt.core.ladder import RouteKind
from reports import real_processes
from reports.page import contents, markdown_page
from reports.schema import RunSummary
from reports.summary import summarise_runs, summary_json
from reports.table import text_table
from tests.reports.story import MS, Story, survivor

KERNEL = {
    "limit_bytes": 5000,
    "line_bytes": 4700,
    "held_max_bytes": 4600,
    "own_max_bytes": 3600,
    "base_bytes": 3000,
    "major_faults": 3,
    "stall_ns": 2 * MS,
}


def relieved(*, reported: int = 308, short: bool = True) -> Story:
    """Memory goes away from 300 ms on, is short at 304 ms; the budget is reported at ``reported`` and read at 312 ms,
    and the memory is back at 320 ms."""
    story = (
        Story()
        .record("kernel", 0, peak_bytes=4000, kills=0, **KERNEL)
        .memory(0, 1000, 700)
        .record("pressure", 300, taken_bytes=100, budget_bytes=900)
        .record("pressure", 304, taken_bytes=500, budget_bytes=500 if short else 800)
        .record("signal", reported, budget_bytes=500, usage_bytes=4200, rate_bytes_per_s=0)
    )
    log = story.log
    story.tokens(312)
    cause = log.event(e.BudgetChanged(at_ns=reported * MS, budget_bytes=500))
    demote = d.Demote(tenant="chat", source="tier0", dest="tier1", route=RouteKind.PROJECT, capacity=10)
    switch = log.decision(demote, reported * MS, cause)
    release = log.decision(d.Release(rung="tier0"), reported * MS, cause)
    load = log.decision(d.Load(rung="tier1"), reported * MS, cause)
    log.event(e.RungReleased(at_ns=320 * MS, rung="tier0", freed_bytes=600, decision=release))
    story.memory(320, 500, 60)
    log.event(e.RungLoaded(at_ns=350 * MS, rung="tier1", decision=load))
    log.event(
        e.Switched(
            at_ns=380 * MS, tenant="chat", source="tier0", dest="tier1", route="project", cells=9,
            duration_ns=25 * MS, decision=switch,
        )
    )  # fmt: skip
    return story.record("victim", 390, what="allocator", pid=42).record(
        "kernel", 400, peak_bytes=4800, kills=1, **KERNEL
    )


def test_relief_falls_into_its_parts() -> None:
    run = relieved().run()
    (relief,) = real_processes.reliefs(run)
    times = [relief.short_ns, relief.reported_ns, relief.read_ns, relief.released_ns]
    assert times == [304 * MS, 308 * MS, 312 * MS, 320 * MS]
    assert real_processes.signal_ms(run) == {"p50": 4, "p99": 4, "n": 1}
    assert real_processes.boundary_ms(run)["p50"] == 4
    assert real_processes.release_ms(run)["p50"] == 8
    assert real_processes.told_to_relief_ms(run)["p50"] == 12
    assert real_processes.load_ms(run)["p50"] == 30
    assert real_processes.transplant_ms(run)["p50"] == 25


def test_who_was_told_ahead_waited_less_than_nothing() -> None:
    assert real_processes.signal_ms(relieved(reported=302).run())["p50"] == -2


def test_without_need_there_is_no_delay_of_the_signal() -> None:
    run = relieved(short=False).run()
    assert real_processes.signal_ms(run) == {"p50": None, "p99": None, "n": 0}
    assert real_processes.release_ms(run)["n"] == 1


def test_what_the_kernel_counted_is_its_last_word() -> None:
    run = relieved().run()
    assert real_processes.kernel_peak_bytes(run) == 4800
    assert real_processes.kernel_room_bytes_min(run) == 200
    assert real_processes.over_line_bytes_max(run) == -100
    assert real_processes.own_peak_bytes(run) == 600
    assert (real_processes.kernel_kills(run), real_processes.victims(run)) == (1, ["allocator 42"])
    assert (real_processes.major_faults(run), real_processes.stalled_ms(run)) == (3, 2.0)


def test_speed_is_told_before_and_under_pressure() -> None:
    """What others held at first is usual: four more tokens in 400 ms. Then two in 800 ms, and one in 100 ms again."""
    story = Story().record("kernel", 0, **KERNEL).record("pressure", 10, taken_bytes=50, budget_bytes=950)
    story = story.arrive(20).tokens(100, 200, 300, 400, 500)
    story = story.record("pressure", 500, taken_bytes=500, budget_bytes=500).tokens(700, 1300)
    story = story.record("pressure", 1300, taken_bytes=50, budget_bytes=950).tokens(1400)
    run = story.run()
    assert real_processes.tokens_per_s_before(run) == 5 / 0.5
    assert real_processes.tokens_per_s_under_pressure(run) == 2 / 0.8
    assert real_processes.tokens_per_s_under_pressure(relieved().run()) is None


def test_a_simulated_run_has_none_of_it() -> None:
    run = survivor().run()
    assert real_processes.real_numbers(run) is None
    summary = summarise_runs({"molt": run}, wall_s=None)
    assert "real" not in summary["policies"]["molt"]
    assert "kills by its own count" not in text_table(summary)


def test_it_is_in_every_report_of_a_real_run() -> None:
    """In the summary, which keeps its schema, in the table beside a simulated run, and on the page with definitions."""
    runs = {"molt": relieved().run(), "simulated": survivor().run()}
    summary = summarise_runs(runs, wall_s=None)
    assert RunSummary.model_validate_json(summary_json(summary)).policies["molt"].real is not None
    (line,) = [line for line in text_table(summary).splitlines() if line.startswith("victims")]
    assert line.split() == ["victims", "allocator", "42", "–"]
    page = markdown_page(contents(summary, runs))
    assert "token boundary p50 / p99" in page
    assert "own counter, which misses nothing between two looks" in page
