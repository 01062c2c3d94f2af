"""Every state of a small world, to a depth that the suite can afford; ``python -m tests.exhaustive`` goes deeper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from molt.core.plan import Plan
from molt.core.view import View
from molt.jobs.plugins import make_policy
from molt.policies.molt import Molt
from tests.exhaustive import LEVELS, PLENTY, Broken, Search


def test_three_tenants_to_a_small_depth() -> None:
    """Whatever happens, in whatever order: no kill, no starvation, no rule broken, no lever too early."""
    found = Search(make_policy("molt", {})).run(4)
    assert found.depth == 4
    assert found.states > 500
    assert {"Park", "Shed", "Demote", "Promote", "Defer", "Unpark"} <= found.decisions.keys()
    assert found.withheld > 50


def test_one_tenant_to_the_end() -> None:
    """One tenant under two budgets, everything given back: all states there are, not only those to a depth."""
    found = Search(make_policy("molt", {}), (LEVELS[0], PLENTY), (1, 0), withholding=False).run(60)
    assert found.complete
    assert found.states > 100


def test_the_search_finds_what_is_wrong() -> None:
    """The control: a policy that does not react breaks a rule, and the trace that shows it is a shortest one."""
    hold = make_policy("hold", {})
    reckless = type(
        "Reckless", (type(hold),), {"promises": frozenset({"bounded_overshoot"}), "__slots__": ()}
    )()
    with pytest.raises(Broken, match="overshoot_is_bounded") as broken:
        Search(reckless).run(3, liveness=False)
    assert str(broken.value).count("\n") == 3  # start, a tenant comes, the budget falls


def test_the_search_finds_who_does_not_count_what_is_withheld() -> None:
    """The control: a policy that believes that everything came back takes what is not there."""

    class Trusting(Molt):
        __slots__ = ()

        def decide(self, view: View) -> Plan:
            return Molt.decide(self, replace(view, state=replace(view.state, withheld={})))

    with pytest.raises(Broken, match="overshoot_is_bounded") as broken:
        Search(Trusting()).run(4, liveness=False)
    assert str(broken.value).endswith("large keeps 120")
