"""A policy that errs: its mistake is a refusal that says where; what is held is kept or, above the budget, parked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from molt.core import decisions as d
from molt.core import events as e
from molt.core.events import TenantKind
from molt.core.plan import Plan, Rest, Run
from molt.core.scheduler import Scheduler
from molt.core.state import Phase
from molt.core.view import View
from tests.small import COSTS, LADDER, MIB, S


@dataclass(frozen=True, slots=True)
class Sound:
    """Runs all on the largest rung until its plan is replaced by a mistake."""

    mistake: list[Callable[[View], Any]]

    name: ClassVar[str] = "sound"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        if self.mistake:
            plan: Plan = self.mistake[-1](view)
            return plan
        return Plan({tenant: Run("tier0") for tenant in view.state.tenants})


def begun() -> tuple[Scheduler, Sound]:
    """One tenant runs on the largest rung under a budget of 60 MiB."""
    policy = Sound([])
    made = Scheduler(LADDER, COSTS, policy)
    made.handle(e.BudgetChanged(at_ns=1 * S, budget_bytes=60 * MIB))
    arrival = {"tenant": "a", "tenant_kind": TenantKind.BATCH, "prompt_tokens": 20, "max_tokens": 10}
    made.handle(e.TenantArrived(at_ns=1 * S, **arrival))
    made.handle(e.RungLoaded(at_ns=2 * S, rung="tier0", decision=1))
    assert made.state.tenants["a"].target == "tier0"
    return made, policy


def _raise(error: Exception) -> Any:
    raise error


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


PLANLESS = {
    "raises": (lambda view: _raise(ValueError("no idea")), "decide_succeeds", "ValueError: no idea"),
    "many lines": (lambda view: _raise(KeyError("a\nb\x1b[31m")), "decide_succeeds", "KeyError: "),
    "long": (lambda view: _raise(ValueError("x" * 9999)), "decide_succeeds", "ValueError: xxx"),
    "says nothing": (lambda view: _raise(Unprintable()), "decide_succeeds", "Unprintable"),
    "recursion": (lambda view: PLANLESS["recursion"][0](view), "decide_succeeds", "RecursionError"),
    "in the view": (lambda view: view.fits(Plan({"a": Run("tier9")})), "decide_succeeds", "KeyError"),
    "dict": (lambda view: {"a": Run("tier0")}, "plan_is_well_formed", "dict, not a Plan"),
    "None": (lambda view: None, "plan_is_well_formed", "NoneType, not a Plan"),
    "list": (lambda view: Plan([("a", Run("tier0"))]), "plan_is_well_formed", "placements"),
    "name": (lambda view: Plan({"a": "tier0"}), "plan_is_well_formed", "'a'"),
    "number": (lambda view: Plan({1: Run("tier0")}), "plan_is_well_formed", "1"),
    "rung": (lambda view: Plan({"a": Run(view.rungs[0])}), "plan_is_well_formed", "rung"),
    "carry": (lambda view: Plan({"a": Run("tier0", carry="no")}), "plan_is_well_formed", "carry"),
    "heal": (lambda view: Plan({"a": Run("tier0", heal=-1)}), "plan_is_well_formed", "heal"),
    "native": (lambda view: Plan({"a": Run("tier0", native=1.5)}), "plan_is_well_formed", "native"),
    "cells": (lambda view: Plan({"a": Rest(keep_cells=0.5)}), "plan_is_well_formed", "keep_cells"),
    "spill": (lambda view: Plan({"a": Rest(spill=1)}), "plan_is_well_formed", "spill"),
    "keep": (lambda view: Plan({}, keep=["tier0"]), "plan_is_well_formed", "keep"),
    "kept": (lambda view: Plan({}, keep=frozenset({1})), "plan_is_well_formed", "keep"),
    "later": (lambda view: Plan({}, revisit_ns="soon"), "plan_is_well_formed", "revisit_ns"),
    "half a nanosecond": (lambda view: Plan({}, revisit_ns=9e9), "plan_is_well_formed", "revisit_ns"),
    "another ladder": (lambda view: Plan({"a": Run("tier9")}), "names_are_known", "tier9"),
}


@pytest.mark.parametrize("name", PLANLESS)
def test_a_mistake_is_a_refusal_in_one_line(name: str) -> None:
    """With its rule, its reason, and the user's file and line."""
    mistake, rule, word = PLANLESS[name]
    made, policy = begun()
    before = made.state
    policy.mistake.append(mistake)
    assert made.handle(e.BudgetChanged(at_ns=3 * S, budget_bytes=50 * MIB)) == ()
    assert made.refusal is not None
    assert made.refusal.rule == rule
    assert word in made.refusal.reason
    assert made.refusal.reason.isprintable()
    assert len(made.refusal.reason) < 500
    assert made.refusal.place is not None
    file, _, line = made.refusal.place.rpartition(":")
    assert Path(file) == Path(__file__)
    assert int(line) > 0
    assert made.state.tenants == before.tenants, "nothing was asked"
    assert (made.asked, made.refused) == (4, 1)


def test_the_line_is_the_last_one_that_is_the_policys_own() -> None:
    """Where the mistake shows inside of the core, the line that called it; the mistake of a helper, the helper's."""
    made, policy = begun()
    policy.mistake.append(PLANLESS["in the view"][0])
    made.handle(e.BudgetChanged(at_ns=3 * S, budget_bytes=50 * MIB))
    assert made.refusal is not None
    assert made.refusal.place is not None
    line = int(made.refusal.place.rpartition(":")[2])
    assert "view.fits" in Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1]


@pytest.mark.parametrize("name", PLANLESS)
def test_above_the_budget_a_mistake_parks_all_and_keeps_their_caches(name: str) -> None:
    """Weights are released; no cache is dropped or shortened, and no answer is ended."""
    made, policy = begun()
    policy.mistake.append(PLANLESS[name][0])
    asked = made.handle(e.BudgetChanged(at_ns=3 * S, budget_bytes=5 * MIB))
    assert [type(one) for one in asked] == [d.Park, d.Release]
    assert made.state.tenants["a"].phase is Phase.PARKED
    assert made.handle(e.BudgetChanged(at_ns=4 * S, budget_bytes=4 * MIB)) == (), "there is no more to park"
    policy.mistake.clear()
    asked = made.handle(e.BudgetChanged(at_ns=5 * S, budget_bytes=60 * MIB))
    assert [type(one) for one in asked] == [d.Unpark, d.Load], "a policy that recovers is followed again"
    assert made.refusal is None


def test_what_ends_the_process_is_not_caught() -> None:
    made, policy = begun()

    def interrupted(view: View) -> Plan:
        raise KeyboardInterrupt

    policy.mistake.append(interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.handle(e.BudgetChanged(at_ns=3 * S, budget_bytes=50 * MIB))
