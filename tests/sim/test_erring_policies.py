"""A run whose policy errs says so in one line, with the user's file and line, and its exit status says it too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

from molt.core.plan import Plan, Run, Wait
from molt.core.view import View


@dataclass(frozen=True)
class Base:
    name: ClassVar[str] = "erring"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        return self.{wrong}


class Raises(Base):
    def decide(self, view):
        return 1 / 0  # here


class ReturnsADict(Base):
    def decide(self, view):  # here
        return {tenant: Run("tier0") for tenant in view.state.tenants}


class NamesAnotherRung(Base):
    def decide(self, view):  # here
        return Plan({tenant.name: Run("tier9") for tenant in view.waiting()})


class RaisesOnce(Base):
    def decide(self, view):
        if view.now_ns == 0 and not view.state.tenants:
            raise LookupError("too early")  # here
        return Plan({tenant.name: Run("tier2") for tenant in view.waiting()})


class TooBigAtFirst(Base):
    def decide(self, view):  # here
        if view.waiting() and view.budget_bytes < 2**60:
            plan = Plan({tenant.name: Run("tier9") for tenant in view.waiting()}, revisit_ns=view.now_ns + 1)
            if view.now_ns < 10**9:
                return plan
        return Plan({tenant.name: Run("tier2") for tenant in view.waiting()})
""".replace("{wrong}", "nothing")


def run(folder: Path, policy: str, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "erring_policy.py").write_text(SOURCE, encoding="utf-8")
    scenario = str(ROOT / "scenarios" / "spike_mid_answer.yaml")
    words = ["sim.run", scenario, "--engine", "modelled", "--policy", f"erring_policy:{policy}", *more]
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "rule", "status"),
    [
        ("Base", "decide_succeeds", 1),
        ("Raises", "decide_succeeds", 1),
        ("ReturnsADict", "plan_is_well_formed", 1),
        ("NamesAnotherRung", "names_are_known", 1),
        ("RaisesOnce", "decide_succeeds", 1),
        ("TooBigAtFirst", "names_are_known", 0),
    ],
)
def test_one_line_names_policy_time_rule_file_and_line(
    tmp_path: Path, policy: str, rule: str, status: int
) -> None:
    """A run that got over a plan that was refused reports it and succeeds; the others do not."""
    done = run(tmp_path, policy, "--out", "run")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("molt: ")]
    assert len(lines) == 1, done.stderr
    found = re.fullmatch(
        r"molt: policy 'erring' at (\S+) s: (\w+): .+ \((.+):(\d+)\); (\d+) of (\d+) plans were refused",
        lines[0],
    )
    assert found, lines[0]
    assert found[2] == rule
    assert found[3] == str(tmp_path / "erring_policy.py")
    text = SOURCE.splitlines()[int(found[4]) - 1]
    assert "# here" in text or "self.nothing" in text
    assert 1 <= int(found[5]) <= int(found[6])
    assert "answers finished" in done.stdout, "the table is there all the same"


def test_the_other_policies_of_the_run_are_not_touched(tmp_path: Path) -> None:
    done = run(tmp_path, "Raises", "--policy", "molt", "--out", "run")
    assert done.returncode == 1
    assert "policy 'molt'" not in done.stderr
    assert (tmp_path / "run" / "molt" / "events.jsonl").is_file()
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_log_of_mistakes_is_replayed(tmp_path: Path) -> None:
    """What was asked after a refusal, or not, is decided again in the same way."""
    run(tmp_path, "Raises", "--out", "run")
    log = "run/erring/events.jsonl"
    words = ["molt.cli.main", "replay", log, "--policy", "erring_policy:Raises"]
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from molt.cli.main import main; sys.argv[0] = 'molt'; main()", *words[1:]],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "all identical" in done.stdout
