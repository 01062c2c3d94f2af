"""Profiles: what is not one is refused in a line, and a slower device is slower in everything a model does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from molt.errors import InputError
from molt.formats.log import plain
from molt.jobs.profile import load_profile, slowed
from molt.models.ladder_file import resolve
from tests.small import COSTS, LADDER


def written(folder: Path, document: Any) -> str:
    path = folder / "profile.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return str(path)


def test_a_profile_is_read_back(tmp_path: Path) -> None:
    assert load_profile(written(tmp_path, plain(COSTS)), LADDER) == COSTS


def test_the_shipped_profile_covers_the_shipped_ladder() -> None:
    ladder = resolve("pico").ladder
    assert load_profile("pico", ladder).ladder == "pico"


def _changed(**change: Any) -> dict[str, Any]:
    document = plain(COSTS)
    document["rungs"]["tier0"].update(change)
    return document


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "not a profile"),
        ("[]", "not a profile"),
        ({}, "not a profile"),
        (_changed(load_ns=-5), "rungs.tier0.load_ns: -5"),
        (_changed(load_ns="5"), "rungs.tier0.load_ns: '5'"),
        (_changed(load_ns=True), "rungs.tier0.load_ns: True"),
        (json.dumps(_changed()).replace("800000000", "NaN"), "nan"),
        (json.dumps(_changed()).replace("800000000", "Infinity"), "inf"),
        ({**plain(COSTS), "rungs": {"tier0": plain(COSTS)["rungs"]["tier0"]}}, "no costs for 'tier1'"),
        ({**plain(COSTS), "routes": {}}, "no costs for 'tier0->tier1'"),
    ],
)
def test_what_is_no_profile_is_refused_in_a_line(document: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_profile(written(tmp_path, document), LADDER)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere", "/nowhere/at/all.json", "../pico/nowhere"])
def test_a_profile_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(InputError, match="no such profile"):
        load_profile(name, LADDER)


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(InputError, match="directory"):
        load_profile(str(tmp_path / "x.json"), LADDER)


def test_slower_is_slower_in_everything_a_model_does() -> None:
    slow = slowed(COSTS, 8.0)
    for name, rung in COSTS.rungs.items():
        assert slow.rungs[name].load_ns == 8 * rung.load_ns
        assert slow.rungs[name].release_ns == 8 * rung.release_ns
        assert slow.rungs[name].decode.ns(1, 100) == pytest.approx(8 * rung.decode.ns(1, 100), rel=1e-6)
    for name, route in COSTS.routes.items():
        assert slow.routes[name].switch.ns(100, 0) == pytest.approx(8 * route.switch.ns(100, 0), rel=1e-6)
        assert slow.routes[name].divergences == route.divergences
    assert slow.process_start_ns == COSTS.process_start_ns


@pytest.mark.parametrize("name", ["./profile.json", "runs/mine.json"])
def test_a_file_that_is_not_there_is_not_looked_for_among_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own files beside it did not ship with Molt; the remedy writes the file that was named."""
    (tmp_path / "runs").mkdir()
    for other in ("theirs.json", "runs/theirs.json"):
        (tmp_path / other).write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_profile(name, LADDER)
    assert "shipped" not in str(caught.value)
    assert "theirs" not in str(caught.value)
    assert f"molt calibrate LADDER --out {name}" in str(caught.value)


def test_a_name_that_is_not_there_is_answered_with_those_that_ship_and_with_both_remedies() -> None:
    with pytest.raises(InputError) as caught:
        load_profile("mine", LADDER)
    for words in (
        "(shipped: ",
        "pico",
        f"--profile {LADDER.name}.json",
        f"hardware: {{profile: {LADDER.name}.json}}",
    ):
        assert words in str(caught.value)
