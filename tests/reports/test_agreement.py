"""The same scenario in two worlds: what differs is told with its sign, what must be the same is compared exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.agreement import agreement, main, markdown, rung_sequences
from tests.reports.story import Story, survivor, victim
from tests.reports.test_real import KERNEL


def slower(factor: int) -> Story:
    """Two tokens, so many times later."""
    story = Story().budget(0, 1000).arrive(0).admit(0).memory(0, 1000, 600)
    return story.tokens(100 * factor, 150 * factor).finish(150 * factor)


def test_an_error_is_signed_and_a_share_of_the_real_number() -> None:
    found = agreement("molt", slower(4).end(900).run(), slower(5).record("kernel", 900, **KERNEL).run())
    errors = {compared.name: compared.error for compared in found.compared}
    assert errors["first token, mean"] == pytest.approx(0.2)
    assert errors["between tokens, p99"] == pytest.approx(0.2)
    assert errors["peak of the engine"] == 0.0
    assert errors["switch, mean"] is None
    assert "+20.0 %" in markdown([found])
    assert found.differences == ()


def test_kills_and_rungs_are_compared_exactly() -> None:
    found = agreement("molt", survivor().run(), victim().run())
    assert found.differences == (
        "killed 0 times in the simulation, 1 times for real",
        "chat: tier0 tier1 in the simulation, tier0 for real",
        "digest: nothing in the simulation, tier0 for real",
    ) or found.differences[0].startswith("killed 0")
    assert rung_sequences(survivor().run()) == {"chat": ("tier0", "tier1")}
    assert not agreement("molt", survivor().run(), survivor().run()).differences


def test_the_page_says_how_many_numbers_are_as_near_as_they_should_be() -> None:
    near = agreement("molt", slower(19).end(900).run(), slower(20).record("kernel", 900, **KERNEL).run())
    far = agreement("hold", slower(4).end(900).run(), slower(5).record("kernel", 900, **KERNEL).run())
    told = markdown([near, far])
    assert "Of 4 mean times 2 are within 10%; they are 12.5% off on average." in told
    assert "Of 2 peaks 2 are within 5%; they are 0.0% off on average." in told


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


def test_runs_without_a_policy_in_common_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survivor().write(tmp_path / "sim" / "molt")
    survivor().write(tmp_path / "real" / "hold")
    assert main([str(tmp_path / "sim"), str(tmp_path / "real")]) == 2
    assert "have no policy in common" in capsys.readouterr().err
