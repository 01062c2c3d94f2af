"""When a policy is asked, what comes of what it says, and when the scheduler wants to be woken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from molt.core import events as e
from molt.core.events import TenantKind
from molt.core.plan import Plan, Run
from molt.core.scheduler import Scheduler
from molt.core.turns import LoadStep
from molt.core.view import View
from tests.small import COSTS, LADDER, MIB, S


@dataclass(frozen=True, slots=True)
class Fixed:
    """Returns one plan, and counts how often it is asked."""

    plan: Plan
    asked: list[View] = field(default_factory=list)

    name: ClassVar[str] = "fixed"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        self.asked.append(view)
        return self.plan


def scheduler(plan: Plan) -> tuple[Scheduler, Fixed]:
    """One tenant has come under a budget of 60 MiB, ten seconds after the start."""
    policy = Fixed(plan)
    made = Scheduler(LADDER, COSTS, policy)
    made.handle(e.BudgetChanged(at_ns=10 * S, budget_bytes=60 * MIB))
    arrival = {"tenant": "a", "tenant_kind": TenantKind.BATCH, "prompt_tokens": 20, "max_tokens": 10}
    made.handle(e.TenantArrived(at_ns=10 * S, **arrival))
    policy.asked.clear()
    return made, policy


HERE = {"at_ns": 10 * S, "tenant": "a"}
QUIET = [
    e.LoadProgressed(at_ns=10 * S, rung="tier0"),
    e.PromptRead(**HERE, rung="tier0", tokens=1),
    e.TokensProduced(**HERE, rung="tier0", count=1),
    e.RungReleased(at_ns=10 * S, rung="tier1", freed_bytes=1),
    e.TenantParked(**HERE, freed_bytes=1),
    e.CacheSpilled(**HERE, cells=1, freed_bytes=1, duration_ns=1),
    e.CacheRestored(**HERE, cells=1, duration_ns=1),
    e.ContextShed(**HERE, kept_cells=1, dropped_cells=1, freed_bytes=1),
]
LOUD = [
    e.BudgetChanged(at_ns=10 * S, budget_bytes=1),
    e.TenantCancelled(**HERE),
    e.TenantFinished(**HERE, reason="stop"),
    e.TimerFired(at_ns=10 * S),
    e.ProcessStarted(at_ns=10 * S),
    e.RungLoaded(at_ns=10 * S, rung="tier0"),
    e.LoadFailed(at_ns=10 * S, rung="tier0", reason=""),
    e.RungReleased(at_ns=10 * S, rung="tier1", freed_bytes=1, withheld_bytes=1),
    e.SpillFailed(**HERE, freed_bytes=1, reason=""),
    e.RestoreFailed(**HERE, dest="tier0", reason=""),
    e.SwitchFailed(**HERE, source="tier1", dest="tier0", reason=""),
]


@pytest.mark.parametrize("fact", [*QUIET, *LOUD], ids=lambda fact: type(fact).__name__)
def test_the_policy_is_asked_where_it_could_change_its_mind(fact: e.AnyEvent) -> None:
    made, policy = scheduler(Plan({}, revisit_ns=11 * S))
    made.handle(fact)
    assert len(policy.asked) == (fact in LOUD)
    assert made.next_deadline_ns() == 11 * S


def test_nobody_is_asked_while_there_is_no_process() -> None:
    made, policy = scheduler(Plan({}, revisit_ns=11 * S))
    assert made.handle(e.ProcessKilled(at_ns=10 * S)) == ()
    assert policy.asked == []
    assert (made.next_step(), made.next_deadline_ns()) == (None, None)


@pytest.mark.parametrize(
    ("wish", "deadline"), [(None, None), (10 * S - 1, None), (10 * S, None), (10 * S + 1, 10 * S + 1)]
)
def test_a_wish_that_has_passed_is_none(wish: int | None, deadline: int | None) -> None:
    made, _ = scheduler(Plan({}, revisit_ns=wish))
    assert made.next_deadline_ns() == deadline


def test_the_sooner_of_a_wish_and_of_the_next_try_wakes() -> None:
    for wish, deadline in ((None, 11), (12, 11), (11, 11)):
        made, _ = scheduler(Plan({"a": Run("tier0")}, revisit_ns=wish and wish * S))
        assert made.next_step() == LoadStep("tier0")
        made.handle(e.LoadFailed(at_ns=10 * S, rung="tier0", reason=""))
        assert made.next_step() is None
        assert made.next_deadline_ns() == deadline * S


def test_what_is_asked_is_believed_and_what_breaks_a_rule_is_not_asked() -> None:
    made, _ = scheduler(Plan({"a": Run("tier0")}))
    assert made.refusal is None
    assert made.state.tenants["a"].target == "tier0"
    refused, _ = scheduler(Plan({"a": Run("tier9")}))
    assert refused.refusal is not None
    assert refused.refusal.rule == "names_are_known"
    assert refused.state.tenants["a"].target is None
    refused.handle(e.TokensProduced(**HERE, rung="tier0", count=1))
    assert refused.refusal is None
