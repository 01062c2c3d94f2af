"""A log decides itself again, and a reader takes what a crash leaves of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings

from molt.errors import InputError
from molt.formats import log
from molt.jobs.plugins import make_policy
from molt.jobs.replay import replay
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


def test_an_incomplete_log_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = spike("molt").text.splitlines(keepends=True)
    path.write_text("".join(lines[:20]), encoding="utf-8")
    assert replay(path).difference is None
    assert not replay(path).complete
    path.write_text("".join(lines), encoding="utf-8")
    assert replay(path).complete


def test_a_log_cannot_choose_code_to_run(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(
        spike("molt").text.replace('"source":"molt"', '"source":"molt.policies.molt:Molt"', 1), "utf-8"
    )
    with pytest.raises(InputError, match="cannot choose code"):
        replay(path)
    assert replay(path, "molt.policies.molt:Molt").difference is None


def test_replay_finds_the_decision_that_was_tampered_with(tmp_path: Path) -> None:
    """The control: a changed decision must be noticed."""
    path = tmp_path / "events.jsonl"
    path.write_text(spike("molt").text.replace('"dest":"tier1"', '"dest":"tier2"', 1), encoding="utf-8")
    result = replay(path)
    assert result.difference is not None


def test_every_fact_survives_the_round_trip() -> None:
    for record in spike("molt").records:
        if record["kind"] in {"event", "outcome"}:
            again = log.plain(log.event_from(record))
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
    "text",
    [
        '{"kind":"header","schema":1}\n',
        '{"kind":"header","schema":1,"ladder":7,"costs":{},"policy":{}}\n',
        spike("hold").text.replace('"type":"BudgetChanged"', '"type":"Nonsense"', 1),
        spike("hold").text.replace('"kind":"event"', '"kid":"event"', 1),
        spike("hold").text.replace(
            '"budget_bytes":62914560,"kind":"event"', '"budget_bytes":"x","kind":"event"', 1
        ),
    ],
)
def test_a_log_that_makes_no_sense_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(log.LogError) as caught:
        replay(path)
    assert "\n" not in str(caught.value)


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl: No such file"):
        replay(tmp_path / "nowhere.jsonl")


def test_a_binary_file_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(log.LogError, match="not UTF-8"):
        replay(path)


CONTRACT = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Policy:
    name = {name!r}
    promises = {promises}
    floor_cells = {cells}
    def decide(self, view):
        return None
"""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"name": "../evil"}, "name: '../evil'"),
        ({"name": 7}, "name: 7"),
        ({"promises": "frozenset({'never_kiled'})"}, "nearest: 'never_killed'"),
        ({"promises": "()"}, "not a frozenset"),
        ({"cells": "-1"}, "floor_cells: -1"),
        ({"cells": "1 / 0"}, "ZeroDivisionError"),
    ],
)
def test_a_policy_that_does_not_keep_the_contract_is_refused(
    parts: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"contract_{abs(hash(words))}"
    whole = {"name": "fine", "promises": "frozenset()", "cells": "0", **parts}
    (tmp_path / f"{module}.py").write_text(CONTRACT.format(**whole), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        make_policy(f"{module}:Policy", {})
    assert "\n" not in str(caught.value)


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
