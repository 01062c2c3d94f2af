"""Every number, on stories short enough to compute by hand, and what holds for any story."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.core import events as e
from molt.core.events import Handoff
from molt.core.ladder import RouteKind
from reports import metrics
from reports.run_log import Fate, Record, RunLog
from reports.summary import METRICS
from tests.reports.story import MS, Story, scenario_with, survivor, victim
from tests.reports.strategies import stories

EMPTY = {"p50": None, "p90": None, "p99": None}


# --- answers ---


def test_a_kill_loses_what_was_admitted_and_unfinished() -> None:
    run = victim().run()
    assert metrics.killed(run) == 1
    assert metrics.answers_lost(run) == 2
    assert metrics.tokens_lost(run) == 2
    assert metrics.tokens_out(run) == 3
    assert (metrics.answers_asked(run), metrics.answers_finished(run), metrics.answers_unfinished(run)) == (
        2,
        1,
        1,
    )


def test_a_kill_does_not_lose_who_was_only_waiting() -> None:
    """It comes back with the same attempt number and is the same request."""
    run = Story().arrive(10).defer(10).kill(20).start(30).arrive(30).defer(30).admit(40).tokens(60).run()
    assert metrics.answers_lost(run) == 0
    assert len(run.attempts) == 1
    assert metrics.deferrals(run) == 1
    assert metrics.ttft_ms(run)["p50"] == 50


def test_each_kill_loses_an_answer_again() -> None:
    run = Story().arrive(0).admit(0).kill(10).start(20).arrive(20, attempt=2).admit(20).kill(30).run()
    assert (metrics.killed(run), metrics.answers_lost(run), metrics.answers_unfinished(run)) == (2, 2, 1)
    assert metrics.tenants(run)["chat"]["attempts"] == 2
    assert metrics.tenants(run)["chat"]["reason"] == "lost"


def test_a_finished_answer_cannot_be_lost() -> None:
    run = Story().arrive(0).admit(0).tokens(10).finish(10).kill(20).run()
    assert (metrics.killed(run), metrics.answers_lost(run), metrics.tokens_lost(run)) == (1, 0, 0)


def test_tokens_of_cancelled_and_open_answers_were_delivered() -> None:
    run = Story().arrive(0).tokens(10, 20).cancel(25).arrive(30, "digest").tokens(40, tenant="digest").run()
    assert metrics.tokens_out(run) == 3
    assert [attempt.fate for attempt in run.attempts] == [Fate.CANCELLED, Fate.OPEN]
    assert metrics.tenants(run)["chat"]["reason"] == "cancelled"
    assert metrics.answers_unfinished(run) == 1


def test_a_request_to_a_dead_process_counts_from_when_it_was_made() -> None:
    planned = scenario_with(
        {"name": "late", "kind": "batch", "arrives_ns": 40 * MS},
        {"name": "never", "kind": "batch", "arrives_ns": 45 * MS},
        {"name": "after", "kind": "batch", "arrives_ns": 900 * MS},
    )
    story = Story(scenario=planned).kill(30).start(100).arrive(100, "late").admit(100, "late")
    run = story.tokens(140, tenant="late").finish(140, "late").end(200).run()
    assert metrics.ttft_ms(run)["p50"] == 100
    assert metrics.answers_asked(run) == 2
    assert metrics.answers_unfinished(run) == 1
    assert metrics.tenants(run)["never"] == {
        "kind": "batch",
        "tokens": 0,
        "finished": False,
        "reason": None,
        "ttft_ms": None,
        "stall_ms_max": None,
        "attempts": 1,
        "tokens_lost": 0,
        "rung_tokens": {"tier0": 0, "tier1": 0, "tier2": 0},
    }


def test_tokens_read_again_after_a_dropped_cache() -> None:
    """9 read, 3 produced, everything dropped: 12 are read a second time, the 13th is new."""
    story = Story().arrive(0).read(10, 9).tokens(20, 30, 40).shed(50, 0).read(60, 8).read(70, 5)
    assert metrics.tokens_reread(story.run()) == 12


def test_tokens_read_again_after_a_kill_and_on_another_rung() -> None:
    assert metrics.tokens_reread(victim().run()) == 9
    story = Story().arrive(0).read(10, 9).demote(20, "tier0", "tier1", route=RouteKind.REREAD)
    assert metrics.tokens_reread(story.read(30, 9, rung="tier1").run()) == 9


def test_carrying_and_partial_shedding_read_nothing_again() -> None:
    story = Story().arrive(0).read(10, 9).tokens(20).switched(30, "tier0", "tier1").shed(40, 4)
    assert metrics.tokens_reread(story.tokens(50, rung="tier1").run()) == 0


# --- levers ---


def test_switches_are_outcomes_between_different_rungs() -> None:
    run = (
        Story()
        .arrive(0)
        .tokens(10)
        .switched(20, "tier0", "tier1")
        .switched(30, "tier1", "tier2")
        .switched(40, "tier2", "tier0")
        .switched(50, "tier0", "tier0")
        .run()
    )
    assert (metrics.switches_down(run), metrics.switches_up(run)) == (2, 1)


def test_a_demotion_that_was_only_asked_for_is_no_switch() -> None:
    run = Story().arrive(0).tokens(10).demote(20, "tier0", "tier1", route=RouteKind.PROJECT).run()
    assert metrics.switches_down(run) == 0


def test_reading_again_on_another_rung_is_a_switch() -> None:
    story = Story().arrive(0).read(5, 9).tokens(10).demote(20, "tier0", "tier2", route=RouteKind.REREAD)
    run = story.read(40, 10, rung="tier2").tokens(60, rung="tier2").run()
    assert (metrics.switches_down(run), metrics.switches_up(run)) == (1, 0)
    assert metrics.switch_pause_ms_max(run) == 50


def test_another_attempt_on_another_rung_is_no_switch() -> None:
    run = Story().arrive(0).tokens(10).kill(20).start(30).arrive(30, attempt=2).tokens(40, rung="tier2").run()
    assert (metrics.switches_down(run), metrics.switches_up(run)) == (0, 0)


def test_deferrals_count_once_an_attempt() -> None:
    run = Story().arrive(0).defer(0).defer(10).arrive(10, "digest").defer(10, "digest").run()
    assert metrics.deferrals(run) == 2


def test_parks_and_sheds_are_outcomes() -> None:
    run = Story().arrive(0).admit(0).park(10).unpark(20).park(30).shed(40, 4).run()
    assert (metrics.parks(run), metrics.sheds(run), metrics.spills(run)) == (2, 1, 0)


def test_only_context_that_is_not_read_again_is_lost() -> None:
    story = Story().arrive(0).admit(0).park(10).shed(20, 4).shed(30, 0)
    assert metrics.context_lost_tokens(story.run()) == 40


def test_a_cache_dropped_to_be_read_again_is_not_shed() -> None:
    story = Story().arrive(0).demote(10, "tier0", "tier1", route=RouteKind.REREAD)
    seq = next(story.run().decisions("Demote"))["seq"]
    story.record("outcome", 10, type="ContextShed", tenant="chat", kept_cells=0, freed_bytes=1, decision=seq)
    assert metrics.sheds(story.run()) == 0


def test_refusals_and_violations_are_counted() -> None:
    story = Story().record("refusal", 5, rule="one_way", reason="no", cause=1)
    run = story.record("violation", 6, invariant="floor", detail="too much").run()
    assert metrics.refusals(run) == 1
    assert metrics.violations(run) == [
        {"seq": 2, "at_ns": 6 * MS, "invariant": "floor", "detail": "too much"}
    ]


# --- latency ---


def test_gaps_are_within_one_answer_and_exclude_the_first_token() -> None:
    story = Story().arrive(0).arrive(0, "digest").tokens(100, 110, 130).tokens(135, 145, tenant="digest")
    run = story.tokens(150).run()
    assert metrics.itl_ms(run) == {"p50": 10, "p90": 20, "p99": 20}
    assert metrics.ttft_ms(run) == {"p50": 100, "p90": 135, "p99": 135}
    assert metrics.stall(run) == metrics.Stall("chat", 110 * MS, 20 * MS)
    assert metrics.stall_ms_max(run) == 20


def test_latency_of_an_answer_that_was_killed_is_that_of_its_last_attempt() -> None:
    run = victim().run()
    assert metrics.ttft_ms(run) == {"p50": 800, "p90": 800, "p99": 800}
    assert metrics.itl_ms(run) == {"p50": 50, "p90": 100, "p99": 100}
    assert metrics.tenants(run)["chat"]["ttft_ms"] == 800


def test_an_answer_that_stays_lost_has_no_latency() -> None:
    run = Story().arrive(0).tokens(10, 400).kill(500).run()
    assert metrics.ttft_ms(run) == metrics.itl_ms(run) == EMPTY
    assert metrics.stall(run) is None
    assert metrics.rung_token_share(run) == {}


def test_the_silence_of_an_open_answer_is_not_hidden() -> None:
    run = Story().arrive(5).tokens(10, 20).arrive(30, "digest").end(100).run()
    assert metrics.open_stall_ms_max(run) == 80
    assert metrics.open_stall_ms_max(Story().arrive(0).tokens(10).finish(10).end(90).run()) is None


def test_tokens_without_stamps_are_complete_with_their_record() -> None:
    story = Story().arrive(0).record("event", 40, type="TokensProduced", tenant="chat", rung="tier0", count=2)
    assert metrics.itl_ms(story.run())["p99"] == 0
    assert metrics.ttft_ms(story.run())["p50"] == 40


def test_a_single_token_has_no_gap() -> None:
    assert metrics.itl_ms(Story().arrive(0).tokens(10).run()) == EMPTY


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99"),
    [
        ([7], 7, 7, 7),
        ([1, 2], 1, 2, 2),
        (range(1, 11), 5, 9, 10),
        (range(1, 101), 50, 90, 99),
        ([3, 1, 2], 2, 3, 3),
    ],
)
def test_percentiles_are_nearest_rank(values: list[float], p50: float, p90: float, p99: float) -> None:
    assert metrics.percentiles(values) == {"p50": p50, "p90": p90, "p99": p99}


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 99))
def test_nearest_rank_is_the_smallest_value_that_covers_its_share(values: list[int], percent: int) -> None:
    ordered = sorted(values)
    value = metrics.nearest_rank(ordered, percent)
    assert value in values
    assert 100 * sum(v <= value for v in values) >= percent * len(values)
    assert 100 * sum(v < value for v in values) < percent * len(values)


# --- memory ---


def test_overshoot_is_sampled_after_enforcement_while_alive() -> None:
    story = (
        Story().memory(0, 1000, 900, enforced=True).memory(10, 500, 900).memory(20, 500, 450, enforced=True)
    )
    assert metrics.overshoot_bytes_max(story.run()) == -50
    story.kill(30).memory(30, 100, 400, enforced=True)
    assert metrics.overshoot_bytes_max(story.run()) == -50
    story.start(40).memory(40, 300, 400, enforced=True)
    assert metrics.overshoot_bytes_max(story.run()) == 100
    assert metrics.usage_peak_bytes(story.run()) == 900


def test_healed_tokens_are_summed_over_all_runs() -> None:
    story = Story().arrive(0).admit(0)
    story._event(e.TokensProduced(at_ns=1, tenant="chat", rung="tier1", count=2, heal=8, healed=16))
    story._event(e.TokensProduced(at_ns=2, tenant="chat", rung="tier1", count=1))
    assert metrics.tokens_healed(story.run()) == 16


def test_file_mapped_weights_are_told_apart() -> None:
    rungs = [{"name": "tier0", "weight_bytes": 600, "mapped": True}, {"name": "tier1", "weight_bytes": 300}]
    story = Story(ladder={"name": "small", "rungs": rungs, "routes": []})
    story.memory(0, 1000, 900, weights={"tier0": 600, "tier1": 300}).memory(
        10, 1000, 300, weights={"tier1": 300}
    )
    assert metrics.file_mapped_peak_bytes(story.run()) == 600
    assert metrics.file_mapped_peak_bytes(Story().memory(0, 1000, 600, weights={"tier0": 600}).run()) == 0


def test_overshoot_without_a_sample_is_unknown() -> None:
    run = Story().memory(0, 100, 900).run()
    assert metrics.overshoot_bytes_max(run) is None
    assert metrics.usage_peak_bytes(Story().run()) is None


def test_overshoot_over_time_is_an_integral() -> None:
    """300 bytes over for 10 ms, then 100 over for 30 ms."""
    story = (
        Story().memory(0, 1000, 800).memory(10, 500, 800).memory(20, 500, 600).memory(50, 500, 500).end(100)
    )
    assert metrics.overshoot_byte_seconds(story.run()) == pytest.approx(300 * 0.010 + 100 * 0.030)


def test_overshoot_over_time_knows_budget_changes_and_kills() -> None:
    """The budget falls between two samples, and the kill ends the usage: 300 bytes over for 20 ms."""
    story = Story().memory(0, 1000, 800).budget(10, 500).kill(30).end(100)
    assert metrics.overshoot_byte_seconds(story.run()) == pytest.approx(300 * 0.020)


def test_overshoot_over_time_lasts_until_the_end() -> None:
    assert metrics.overshoot_byte_seconds(Story().memory(0, 0, 1000).end(2000).run()) == 2000


def test_transient_peak_is_the_usage_while_something_is_on_its_way() -> None:
    assert metrics.transient_peak_bytes(survivor().run()) == 640
    assert metrics.transient_peak_bytes(victim().run()) is None
    assert metrics.transient_peak_bytes(Story().memory(0, 9, 5, transient={"load tier0": 0}).run()) is None


# --- rungs and quality ---


def test_shares_are_of_delivered_tokens() -> None:
    assert metrics.rung_token_share(survivor().run()) == {"tier0": 0.6, "tier1": 0.4, "tier2": 0}
    run = Story().arrive(0).tokens(1, 2).kill(3).start(4).arrive(5, attempt=2).tokens(6, rung="tier2").run()
    assert metrics.rung_token_share(run) == {"tier0": 0, "tier1": 0, "tier2": 1}


def test_rungs_the_ladder_does_not_know_come_last() -> None:
    run = Story().arrive(0).tokens(1, rung="other").run()
    assert list(metrics.rung_token_share(run)) == ["tier0", "tier1", "tier2", "other"]


def test_rung_seconds_end_with_release_kill_and_run() -> None:
    story = (
        Story()
        .load(100, "tier0")
        .release(300, "tier0")
        .load(400, "tier1")
        .kill(600)
        .load(700, "tier2")
        .end(1000)
    )
    assert metrics.rung_seconds(story.run()) == pytest.approx({"tier0": 0.2, "tier1": 0.2, "tier2": 0.3})


def test_handoff_is_the_mean_over_what_was_measured() -> None:
    first = Handoff(kl=0.2, jsd=0.1, jsd_floor=0.0, recovered_context=1.0)
    second = Handoff(kl=0.4, jsd=0.3, jsd_floor=0.1, recovered_context=0.5)
    story = Story().arrive(0).switched(1, "tier0", "tier1", handoff=first).switched(2, "tier1", "tier0")
    run = story.switched(3, "tier0", "tier2", handoff=second).run()
    assert metrics.handoff(run) == pytest.approx(
        {"kl": 0.3, "jsd": 0.2, "jsd_floor": 0.05, "recovered_context": 0.75, "n": 2}
    )


def test_handoff_tells_missing_from_zero() -> None:
    unmeasured = {"kl": None, "jsd": None, "jsd_floor": None, "recovered_context": None, "n": 0}
    assert metrics.handoff(Story().run()) == unmeasured
    fields = {
        "tenant": "chat",
        "source": "tier0",
        "dest": "tier1",
        "route": "carry",
        "cells": 1,
        "duration_ns": 1,
    }
    run = Story().record("outcome", 1, type="Switched", handoff={"kl": 0.0, "jsd": None}, **fields).run()
    assert metrics.handoff(run) == {**unmeasured, "kl": 0.0, "n": 1}


# --- any story ---


@given(stories())
def test_numbers_of_any_story_agree_with_each_other(story: Story) -> None:
    run = story.run()
    numbers = {key: metric(run) for key, metric in METRICS.items()}
    produced = sum(record["count"] for record in run.events("TokensProduced"))
    assert numbers["tokens_out"] + numbers["tokens_lost"] == produced
    assert sum(tenant["tokens"] for tenant in numbers["tenants"].values()) == numbers["tokens_out"]
    shares = numbers["rung_token_share"].values()
    assert not shares or sum(shares) == pytest.approx(1)
    assert bool(shares) == bool(numbers["tokens_out"])
    assert numbers["overshoot_byte_seconds"] >= 0
    assert numbers["answers_finished"] + numbers["answers_unfinished"] >= 0
    assert numbers["tokens_reread"] <= sum(record["tokens"] for record in run.events("PromptRead"))
    assert sum(numbers["rung_seconds"].values()) <= 3 * numbers["simulated_s"] + 1e-9
    for percentiles in (numbers["ttft_ms"], numbers["itl_ms"]):
        ordered = [value for value in percentiles.values() if value is not None]
        assert ordered == sorted(ordered)
        assert len(ordered) in (0, 3)
    if numbers["stall_ms_max"] is not None:
        assert numbers["stall_ms_max"] >= numbers["itl_ms"]["p99"]
        assert numbers["stall_ms_max"] >= (numbers["switch_pause_ms_max"] or 0)
        assert numbers["stall_ms_max"] >= (numbers["foreground_stall_ms_max"] or 0)


@given(stories())
def test_cutting_runs_of_tokens_changes_no_number(story: Story) -> None:
    run = story.run()
    cut = RunLog(run.header, tuple(piece for record in run.records for piece in _cut(record)))
    for key, metric in METRICS.items():
        assert metric(cut) == metric(run), key


def _cut(record: Record) -> list[Record]:
    if record.get("type") != "TokensProduced":
        return [record]
    return [
        {**record, "count": 1, "at_ns": stamp, "stamps_ns": [stamp], "pieces": record["pieces"][i : i + 1]}
        for i, stamp in enumerate(record["stamps_ns"])
    ]


@given(stories())
def test_names_of_tenants_change_no_number(story: Story) -> None:
    run = story.run()
    renamed = RunLog(
        run.header,
        tuple({**r, **({"tenant": r["tenant"] + "'"} if "tenant" in r else {})} for r in run.records),
    )
    for key, metric in METRICS.items():
        if key != "tenants":
            assert metric(renamed) == metric(run), key


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    path = survivor().write(tmp_path)
    whole = RunLog.read(path)
    path.write_bytes(path.read_bytes()[:-10])
    torn = RunLog.read(path)
    assert whole.complete
    assert not torn.complete
    assert torn.records == whole.records[:-1]
    assert metrics.tokens_out(torn) == metrics.tokens_out(whole)


def test_an_empty_log_has_numbers_too() -> None:
    run = Story().run()
    numbers = {key: metric(run) for key, metric in METRICS.items()}
    assert numbers["killed"] == numbers["tokens_out"] == numbers["overshoot_byte_seconds"] == 0
    assert numbers["overshoot_bytes_max"] is numbers["stall_ms_max"] is None
    assert numbers["tenants"] == {}
    assert numbers["rung_token_share"] == {}


def test_every_number_has_a_definition() -> None:
    for key, metric in METRICS.items():
        assert metric.__doc__, key
        assert metric.__doc__.strip().endswith("."), key
