"""The same scenario in two worlds: what differs is shown with its sign, what must be the same is compared exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.agreement import agreement, differences, main, markdown, rung_sequences
from reports.run_log import RunLog
from tests.reports.story import Story, survivor, victim
from tests.reports.test_real_processes import KERNEL


def slower(factor: int) -> Story:
    """Two tokens, so many times later."""
    story = Story().budget(0, 1000).arrive(0).admit(0).memory(0, 1000, 600)
    return story.tokens(100 * factor, 150 * factor).finish(150 * factor)


def in_both(simulated: int, real: int) -> tuple[RunLog, RunLog]:
    """The story so many times slower in each of the worlds."""
    return slower(simulated).end(900).run(), slower(real).record("kernel", 900, **KERNEL).run()


def test_an_error_is_signed_and_a_share_of_the_real_number() -> None:
    found = agreement("molt", [in_both(4, 5)])
    errors = {compared.name: compared.error for compared in found.compared}
    assert errors["first token, mean"] == pytest.approx(0.2)
    assert errors["between tokens, p99"] == pytest.approx(0.2)
    assert errors["peak of the engine"] == 0.0
    assert errors["switch, mean"] is None
    assert "+20.0 %" in markdown([found])
    assert "spread" not in markdown([found])
    assert found.verdict == "kills and rungs agree exactly"


def test_of_several_rounds_every_number_is_the_median_and_the_real_ones_have_a_spread() -> None:
    found = agreement("molt", [in_both(4, 5), in_both(4, 4), in_both(4, 8)])
    first = next(one for one in found.compared if one.name == "first token, mean")
    assert first.rounds == ((400.0, 500.0), (400.0, 400.0), (400.0, 800.0))
    assert (first.simulated, first.real) == (400.0, 500.0)
    assert first.error == pytest.approx(0.2)
    assert first.spread == pytest.approx(0.8)
    assert "80 %" in markdown([found])
    assert found.verdict == "kills and rungs agree exactly"


def test_differences_are_told_round_by_round() -> None:
    alike, killed = (survivor().run(), survivor().run()), (survivor().run(), victim().run())
    shown = agreement("molt", [alike, killed]).verdict
    assert shown.startswith(
        "round 1: kills and rungs agree exactly; round 2: killed 0 times in the simulation, 1"
    )


def test_kills_and_rungs_are_compared_exactly() -> None:
    found = differences(survivor().run(), victim().run())
    assert found == (
        "killed 0 times in the simulation, 1 times for real",
        "chat: tier0 tier1 in the simulation, tier0 for real",
    )
    assert rung_sequences(survivor().run()) == {"chat": ("tier0", "tier1")}
    assert not differences(survivor().run(), survivor().run())


def test_the_page_says_how_many_numbers_are_as_near_as_they_should_be() -> None:
    near, far = agreement("molt", [in_both(19, 20)]), agreement("hold", [in_both(4, 5)])
    shown = markdown([near, far])
    assert "Of 4 mean times 2 are within 10%; they are 12.5% off on average." in shown
    assert "Of 2 peaks 2 are within 5%; they are 0.0% off on average." in shown


def test_the_command_compares_what_both_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real: dict[str, Any] = {"engine": "real", "real": {"slowdown": 10.0}}
    survivor().write(tmp_path / "sim" / "molt")
    survivor().write(tmp_path / "sim" / "hold")
    survivor(**real).write(tmp_path / "real" / "molt")
    assert main([str(tmp_path / "sim"), str(tmp_path / "real")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Simulated and real: ")
    assert "10 times slower than measured" in printed
    assert "molt: kills and rungs agree exactly" in printed
    assert "hold" not in printed
    assert main(["one"]) == 2
    twice = 2 * [str(tmp_path / "sim"), str(tmp_path / "real")]
    assert main(twice) == 0
    assert "2 rounds" in capsys.readouterr().out


def test_runs_without_a_policy_in_common_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survivor().write(tmp_path / "sim" / "molt")
    survivor().write(tmp_path / "real" / "hold")
    assert main([str(tmp_path / "sim"), str(tmp_path / "real")]) == 2
    assert "have no policy in common" in capsys.readouterr().err


@pytest.mark.parametrize("torn", ["sim", "real"])
def test_an_incomplete_run_is_not_compared(
    torn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real: dict[str, Any] = {"engine": "real", "real": {"slowdown": 10.0}}
    survivor().write(tmp_path / "sim" / "molt")
    survivor(**real).write(tmp_path / "real" / "molt")
    path = tmp_path / torn / "molt" / "events.jsonl"
    path.write_text(path.read_text(encoding="utf-8")[:-60], encoding="utf-8")
    assert main([str(tmp_path / "sim"), str(tmp_path / "real")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"molt: {path}: incomplete: the log has no end, so its figures cannot be compared"
