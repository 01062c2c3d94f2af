"""A log decides itself again, and a reader takes what a crash leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from molt import log
from molt.errors import InputError
from molt.plugins import make_policy
from molt.replay import replay
from tests import small
from tests.small import MIB, S
from tests.strategies import worlds


def spike(name: str) -> small.Ran:
    budgets = [(0, 60 * MIB), (8 * S, 22 * MIB), (12 * S, 6 * MIB), (20 * S, 60 * MIB)]
    return small.simulate(make_policy(name, {}), small.scenario(budgets, [small.tenant(max_tokens=300)]))


@settings(max_examples=30)
@given(on=worlds())
def test_replay_decides_identically(tmp_path_factory, on) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    ran = small.simulate(make_policy("molt", {}), on)
    path.write_text(ran.text, encoding="utf-8")
    result = replay(path)
    assert result.difference is None
    assert result.decisions == len(ran.of("decision"))


def test_replay_finds_the_decision_that_was_tampered_with(tmp_path: Path) -> None:
    """The control: a changed decision must be noticed."""
    path = tmp_path / "events.jsonl"
    path.write_text(spike("molt").text.replace('"dest":"tier1"', '"dest":"tier2"', 1), encoding="utf-8")
    result = replay(path)
    assert result.difference is not None


def test_every_record_survives_the_round_trip() -> None:
    for record in spike("molt").records:
        if record["kind"] in {"event", "outcome"}:
            again = log.plain(log.event_from(record))
        elif record["kind"] == "decision":
            again = log.plain(log.decision_from(record))
        else:
            continue
        assert again == {key: record[key] for key in again}


def test_a_torn_last_line_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    text = spike("hold").text
    path.write_text(text[:-20], encoding="utf-8")
    assert len(log.read(path)[1]) == text.count("\n") - 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1"),
        ("{}\n", "line 1"),
        ('{"kind":"header","schema":99}\n', "schema 99"),
        ('{"kind":"header","schema":1}\nnonsense\n{}\n', "line 2"),
        ('{"kind":"header","schema":1}\n[1]\n', "line 2"),
    ],
)
def test_a_broken_log_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(log.LogError, match=words):
        log.read(path)


def test_decisions_name_their_event_and_outcomes_their_decision() -> None:
    records = spike("molt").records
    kind_of = {record["seq"]: record["kind"] for record in records}
    assert all(kind_of[r["cause"]] in {"event", "outcome"} for r in records if r["kind"] == "decision")
    assert all(kind_of[r["decision"]] == "decision" for r in records if r["kind"] == "outcome")


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("mold", {}, "nearest: 'molt'"),
        ("molt", {"cooldwn": "2s"}, "nearest: 'cooldown'"),
        ("molt", {"cooldown": 2}, "needs a unit"),
        ("molt", {"margin": "much"}, "not a number"),
        ("molt", {"margin": 1.5}, "below 1"),
        ("molt", {"min_cells": True}, "not a whole number"),
        ("nowhere:Policy", {}, "nowhere"),
        ("molt.units:parse_size", {}, "not a dataclass"),
    ],
)
def test_wrong_policies_are_refused_in_a_line(name: str, params: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        make_policy(name, params)
    assert "\n" not in str(caught.value)
