"""Charts and traces: geometry that is right, and work that lies where it was done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given

from reports.chart import CHART_WIDTH, Chart, Scale, chart, shared_scale
from reports.chrome_trace import chrome_trace, main
from reports.run_log import RunLog
from reports.timeline import Doing, TimelinePhase, phases
from tests.reports.story import MS, Story, scenario_with, survivor, victim
from tests.reports.strategies import stories

AXES = Scale(end_ns=1000 * MS, top_bytes=1000)


def _chart(story: Story) -> Chart:
    return chart(story.run(), AXES)


def _area(picture: Chart, style: str) -> str:
    return next((area.path for area in picture.areas if area.style == style), "")


# --- memory ---


def test_budget_is_a_step_line_over_the_whole_run() -> None:
    picture = _chart(Story().memory(0, 1000, 0).budget(500, 500).end(1000))
    assert picture.budget == "M0 0H500V100H1000"


def test_a_budget_above_the_axis_is_drawn_at_its_edge() -> None:
    assert _chart(Story().memory(0, 9000, 0).end(1000)).budget == "M0 0H1000"


def test_parts_are_stacked_from_the_weights_up() -> None:
    picture = _chart(Story().memory(0, 1000, 750, weights={"tier0": 500}, kv={"a": 100, "b": 100}).end(1000))
    assert _area(picture, "r0") == "M0 200V100H1000V200H0Z"
    assert _area(picture, "kv") == "M0 100V60H1000V100H0Z"
    assert _area(picture, "other") == "M0 60V50H1000V60H0Z"
    assert _area(picture, "scratch") == ""


def test_what_is_over_the_budget_is_marked_exactly() -> None:
    picture = _chart(Story().memory(0, 1000, 800).budget(500, 500).memory(600, 500, 500).end(1000))
    assert picture.over == "M500 40H600V100H500Z"
    assert _chart(survivor()).over != ""
    assert _chart(Story().memory(0, 10, 10).end(1000)).over == ""


def test_a_peak_too_short_for_a_column_is_still_drawn() -> None:
    story = Story().memory(0, 1000, 100, kv={"a": 100}).memory(500, 1000, 1000, kv={"a": 1000})
    picture = chart(story.memory(501, 1000, 100, kv={"a": 100}).end(1000).run(), Scale(100_000 * MS, 1000))
    assert "V0H6" in _area(picture, "kv")


def test_usage_ends_with_a_kill() -> None:
    picture = _chart(Story().memory(0, 1000, 500, kv={"a": 500}).kill(300).end(1000))
    assert _area(picture, "kv") == "M0 200V100H300V200H0Z"
    assert [mark.at for mark in picture.kills] == ["30"]
    assert picture.alternative.endswith("Killed at 0.3 s.")


def test_one_axis_fits_all_policies_but_not_an_endless_budget() -> None:
    small, large = Story().memory(0, 10**9, 100).run(), Story().memory(0, 150, 90).end(700).run()
    scale = shared_scale([small, large])
    assert scale.end_ns == 700 * MS
    assert 150 < scale.top_bytes < 200


@given(stories())
def test_every_coordinate_of_any_chart_is_inside_its_box(story: Story) -> None:
    run = story.run()
    picture = chart(run, shared_scale([run]))
    for path in (picture.budget, picture.usage, picture.over, *(area.path for area in picture.areas)):
        for command, numbers in re.findall(r"([MHVZ])([-\d. ]*)", path):
            values = [float(number) for number in numbers.split()]
            if command in "MH" and values:
                assert 0 <= values[0] <= CHART_WIDTH + 1
            if command in "MV" and values:
                assert -0.01 <= values[-1] <= 200
    for mark in (*picture.time_axis, *picture.bytes_axis, *(m for lane in picture.lanes for m in lane.marks)):
        assert 0 <= float(mark.at) <= 100


def test_charts_do_not_grow_with_the_number_of_samples() -> None:
    story = Story()
    for at in range(20_000):
        story.memory(at, 1000, at % 700, kv={"a": at % 700})
    picture = chart(story.run(), shared_scale([story.run()]))
    assert len(_area(picture, "kv")) < 60_000


# --- levers and lanes ---


def test_levers_have_a_row_each_and_say_what_they_did() -> None:
    picture = _chart(survivor())
    assert [row.name for row in picture.levers] == ["demote"]
    assert [mark.label for mark in picture.levers[0].marks] == ["0.3 s demote chat tier0 → tier1 (project)"]
    assert [row.name for row in _chart(victim()).levers] == ["kill"]


def test_levers_too_close_to_tell_apart_share_a_mark() -> None:
    (row,) = _chart(Story().arrive(0).defer(100).defer(100).defer(900)).levers
    assert [mark.label for mark in row.marks] == ["0.1 s defer chat; 0.1 s defer chat", "0.9 s defer chat"]


def test_lanes_show_one_tick_a_token_in_the_colour_of_its_rung() -> None:
    lane = _chart(survivor()).lanes[-1]
    ticks = {shape.style: shape.path for shape in lane.shapes if shape.style.startswith("token")}
    assert ticks == {"token r0": "M200 3V21M250 3V21M300 3V21", "token r1": "M450 3V21M500 3V21"}
    assert [mark.style for mark in lane.marks] == ["finished"]
    assert lane.alternative == (
        "chat: attempt 1 arrived at 0 s, 5 tokens, tier0 to tier1 at 0.4 s, finished: length."
    )


def test_lanes_pale_what_was_lost() -> None:
    lane = _chart(victim()).lanes[0]
    assert {shape.style for shape in lane.shapes if "token" in shape.style} == {"token r0 lost", "token r0"}
    assert [mark.style for mark in lane.marks] == ["lost", "finished"]


# --- phases ---


def test_work_begins_when_the_work_before_it_was_complete() -> None:
    found = [phase for phase in phases(survivor().run()) if phase.tenant]
    assert found == [
        TimelinePhase("chat", Doing.PREFILLING, 100 * MS, 150 * MS, "tier0", 9),
        TimelinePhase("chat", Doing.DECODING, 150 * MS, 300 * MS, "tier0", 3),
        TimelinePhase("chat", Doing.SWITCHING, 360 * MS, 400 * MS, "tier1", 10),
        TimelinePhase("chat", Doing.DECODING, 400 * MS, 500 * MS, "tier1", 2),
    ]


def test_loads_last_from_the_request_to_the_outcome() -> None:
    found = [phase for phase in phases(survivor().run()) if not phase.tenant]
    assert found == [
        TimelinePhase("", Doing.LOADING, 0, 100 * MS, "tier0"),
        TimelinePhase("", Doing.LOADING, 310 * MS, 360 * MS, "tier1"),
    ]


def test_parking_ends_with_unparking_or_the_run() -> None:
    run = Story().arrive(0).admit(0).park(10).unpark(30).park(50).end(90).run()
    assert phases(run) == [
        TimelinePhase("chat", Doing.PARKED, 10 * MS, 30 * MS),
        TimelinePhase("chat", Doing.PARKED, 50 * MS, 90 * MS),
    ]


def test_waiting_lasts_from_the_request_to_admission_over_kills() -> None:
    planned = scenario_with({"name": "chat", "kind": "foreground", "arrives_ns": 5 * MS})
    run = Story(scenario=planned).arrive(10).defer(10).kill(20).start(30).arrive(30).admit(40).end(50).run()
    assert phases(run) == [TimelinePhase("chat", Doing.WAITING, 5 * MS, 40 * MS)]


# --- Chrome trace ---


def test_trace_has_tracks_counters_slices_and_instants() -> None:
    events = chrome_trace(survivor().run())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"process", "chat"}
    slices = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert slices[0] == ("prefilling tier0", 100_000, 50_000)
    assert ("switching tier1", 360_000, 40_000) in slices
    counters = [e["args"] for e in events if e["ph"] == "C"]
    assert counters[0] == {"budget": 1000, "usage": 640}
    instants = [e["name"] for e in events if e["ph"] == "i"]
    assert "Demote" in instants
    assert "TenantFinished" in instants


@given(stories())
def test_any_trace_is_valid_and_in_order(story: Story) -> None:
    trace = json.loads(json.dumps(chrome_trace(story.run())))
    timed = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert all(event["dur"] >= 0 for event in timed if event["ph"] == "X")
    assert {event["ph"] for event in timed} <= {"X", "C", "i"}


def test_trace_command_writes_a_file_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = survivor().write(tmp_path), tmp_path / "trace.json"
    assert main([str(log), str(out)]) == 0
    assert json.loads(out.read_text())["otherData"]["log_sha256"] == RunLog.read(log).sha256
    assert main([str(log)]) == 2
    assert main([str(tmp_path / "absent"), str(out)]) == 2
    log.write_text("not a log\n{}\n")
    assert main([str(log), str(out)]) == 2
    reasons = capsys.readouterr().err.splitlines()
    assert len(reasons) == 3
    assert "line 1" in reasons[2]
