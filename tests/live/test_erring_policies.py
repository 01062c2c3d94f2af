"""A policy that errs in a live world: the world goes on, caches are kept, no engine is killed; one line says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from molt.core.plan import Plan
from molt.core.view import View
from molt.jobs.plugins import make_policy
from tests import small
from tests.live import stage
from tests.small import COSTS, LADDER, MIB, S

BUDGETS = [(0, 60 * MIB), (4 * S, 8 * MIB), (8 * S, 60 * MIB)]


@dataclass(frozen=True, slots=True)
class Erring:
    """As molt, and in its place a mistake between two moments."""

    begin_ns: int
    end_ns: int

    name: ClassVar[str] = "erring"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        if self.begin_ns <= view.now_ns < self.end_ns:
            return view.ladder.rung("tier9")  # type: ignore[return-value]
        return make_policy("molt", {}).decide(view)


@pytest.mark.parametrize(("begin_s", "end_s"), [(0, 60), (2, 6), (3, 60)])
def test_the_world_goes_on(begin_s: int, end_s: int, capsys: pytest.CaptureFixture[str]) -> None:
    """From the start, for a while, and to the end: a budget that falls meanwhile is kept by parking, and by nothing
    that costs an answer its tokens."""
    on = small.scenario(BUDGETS, [small.tenant(max_tokens=200)], horizon_ns=60 * S)
    lived = stage.play(Erring(begin_s * S, end_s * S), on, LADDER, COSTS)
    assert '"kind":"end"' in lived.text
    assert not [
        r for r in lived.records if r.get("type") in {"ProcessKilled", "ContextShed", "TenantCancelled"}
    ]
    refusals = [r for r in lived.records if r["kind"] == "refusal"]
    assert refusals
    assert {r["rule"] for r in refusals} == {"decide_succeeds"}
    last = [r for r in lived.records if r["kind"] == "memory" and r["round"] and 5 * S < r["at_ns"] < 8 * S]
    assert all(r["usage_bytes"] <= r["budget_bytes"] for r in last)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, "each mistake is reported once"
    assert lines[0].startswith("molt: policy 'erring' at ")
    assert f"({__file__}:" in lines[0]
    finished = [r for r in lived.records if r.get("type") == "TenantFinished"]
    assert bool(finished) == (end_s < 60), "a policy that recovers finishes the answer"


def test_a_closed_stderr_ends_no_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*words: object, **options: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("builtins.print", closed)
    on = small.scenario(BUDGETS, [small.tenant(max_tokens=200)], horizon_ns=60 * S)
    assert '"kind":"end"' in stage.play(Erring(0, 60 * S), on, LADDER, COSTS).text
