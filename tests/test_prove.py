"""``molt prove``: what it counts, that it notices what breaks and what never fires, and that one can go on with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import exhaustive, prove, rules
from tests.core.test_machine import EVERY_TIME
from tests.prove import Batch, Form, Machines


def batch(machine: str = "CalmMachine", seed: int = 0, **fired: int) -> Batch:
    return Batch(machine, seed, {"steps": 7, **fired}, None, "abc")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "BATCH", 2)
    monkeypatch.setattr(prove, "STEPS", 6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", prove.MACHINES)
def test_a_batch_is_drawn_from_its_seed(name: str) -> None:
    once, twice = prove.run_batch((name, 3)), prove.run_batch((name, 3))
    assert once == twice
    assert once.failure is None
    assert once.fired["steps"] >= 2
    assert prove.run_batch((name, 4)).fired != once.fired


@pytest.mark.usefixtures("small")
def test_a_rule_that_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a rule that forbids loading."""

    def nothing_is_loaded(world) -> str | None:  # type: ignore[no-untyped-def]
        return "something is" if world.state.occupied else None

    monkeypatch.setattr(rules, "WORLD_RULES", (*rules.WORLD_RULES, nothing_is_loaded))
    failure = prove.run_batch(("CalmMachine", 3)).failure
    assert failure is not None
    assert "something is" in failure


def test_what_is_in_the_log_is_not_done_again(tmp_path: Path) -> None:
    log = tmp_path / "machines.jsonl"
    done = [batch(name, seed, Admit=2) for seed in range(3) for name in prove.MACHINES]
    log.write_text("".join(json.dumps(prove.asdict(one)) + "\n" for one in done), encoding="utf-8")
    machines = prove.run_machines(60, 1, log)
    assert machines.steps == 63
    document = machines.document()
    assert (document["seeds"], document["commits"]) == (3, {"abc": 63})
    assert document["fired"]["RestartMachine"] == {"Admit": 6, "steps": 21}


def test_what_broke_is_done_again_and_may_be_mended() -> None:
    machines = Machines()
    machines.add(prove.replace(batch("CalmMachine", 4), failure="it broke"))
    assert machines.batches == set()
    assert machines.document()["failures"] == ["CalmMachine, seed 4: it broke"]
    machines.add(batch("CalmMachine", 4))
    assert machines.batches == {("CalmMachine", 4)}
    assert (machines.document()["failures"], machines.mended) == ([], ["CalmMachine, seed 4: it broke"])


def test_what_never_fired_is_named() -> None:
    machines = Machines()
    for machine, expected in EVERY_TIME.items():
        machines.add(batch(machine.__name__, **dict.fromkeys(expected - {"Spill"}, 1)))
    assert set(machines.silent) == {"CalmMachine: Spill", "FaultyMachine: Spill"}


def test_small_worlds_are_searched_and_a_broken_one_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = prove.small_worlds(2, 3)
    assert found["failures"] == []
    assert found["three_tenants"]["depth"] == 2
    assert found["one_tenant"]["depth"] == 3
    assert not found["one_tenant"]["complete"]

    def forbidden(asked, ladder, policy) -> str | None:  # type: ignore[no-untyped-def]
        return "something was decided"

    monkeypatch.setattr(exhaustive, "DECISION_RULES", (forbidden,))
    broken = prove.small_worlds(1, 1)["failures"]
    assert [line.split(":")[0] for line in broken] == ["three_tenants", "one_tenant"]


def test_a_suite_that_fails_or_is_empty_is_told(tmp_path: Path) -> None:
    good, bad, none = tmp_path / "test_good.py", tmp_path / "test_bad.py", tmp_path / "test_none.py"
    good.write_text("def test_one(): pass\ndef test_two(): pass\n")
    bad.write_text("def test_one(): pass\ndef test_two(): assert False\n")
    none.write_text("")
    assert prove.run_suite((str(good),)) == {"files": [str(good)], "passed": 2, "failed": []}
    failed = prove.run_suite((str(bad),))
    assert failed["passed"] == 1
    assert len(failed["failed"]) == 1
    assert prove.run_suite((str(none),))["failed"]


def test_beyond_the_bound_is_a_failure() -> None:
    kept = {"after_enforcement_bytes": 0, "share_of_bound": 1.0}
    assert prove._beyond({"worst": {"molt": kept}}) == []
    assert prove._beyond({"worst": {"molt": {**kept, "after_enforcement_bytes": 1}}})
    assert prove._beyond({"worst": {"molt": {**kept, "share_of_bound": 1.01}}})


@pytest.mark.usefixtures("small")
def test_the_document_has_every_part_and_what_is_finished_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "machines.jsonl").write_text(json.dumps(prove.asdict(batch())) + "\n", encoding="utf-8")
    monkeypatch.setattr(prove, "SUITES", {"one": ("tests/test_units.py",)})
    form = Form(steps=1, depth=1, alone=1, seeds=2, worlds=3)
    document = prove.prove(form, 1, tmp_path, say=lambda line: None)
    assert document["rule_machines"]["steps"] == 7
    assert document["fuzz"]["seeds"] == 2
    assert document["worst_found"]["worst"]["molt"]["worlds"] >= 3
    assert document["one"]["passed"] > 10
    assert document["failures"] == []
    assert any(line.startswith("CalmMachine: ") for line in document["silent"]), (
        "one batch cannot show everything"
    )
    for broken in ("small_worlds", "worst_of_both", "run_suite", "run_campaign", "run_machines"):
        monkeypatch.delattr(prove, broken)
    again = prove.prove(form, 1, tmp_path, say=lambda line: None)
    assert {**again, "began": 0, "wall_s": 0} == {**document, "began": 0, "wall_s": 0}
