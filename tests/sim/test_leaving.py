"""A client may go away: what its answer held is free, and no other tenant is disturbed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from molt.policies.molt import Molt
from tests.small import MIB, S, scenario, simulate, tenant

BUDGETS = ((0, 60 * MIB), (10 * S, 14 * MIB), (14 * S, MIB // 4), (18 * S, 60 * MIB))


@pytest.mark.parametrize("leaves_ns", [1, 2 * S, 10 * S + 1, 11 * S, 15 * S, 18 * S + 1, 20 * S])
def test_a_tenant_can_leave_at_any_moment(leaves_ns: int) -> None:
    """While its rung is loading, while it answers, switches, is on disk, or comes back."""
    staying = tenant("stays", prompt_tokens=100, max_tokens=50)
    leaving = replace(tenant("leaves", prompt_tokens=400, max_tokens=500), leaves_ns=leaves_ns)
    run = simulate(Molt(), scenario(BUDGETS, [leaving, staying], horizon_ns=90 * S))
    assert not run.violations
    cancelled = run.of("TenantCancelled")
    assert [r["tenant"] for r in cancelled] == ["leaves"]
    after = [r for r in run.records if r["seq"] > cancelled[0]["seq"]]
    assert all(r.get("tenant") != "leaves" for r in after)
    assert all("leaves" not in r["parts"]["kv"] for r in after if r["kind"] == "memory" and r["round"])
    assert run.tokens("stays") == 50


def test_leaving_after_the_answer_changes_nothing() -> None:
    done = tenant(max_tokens=5)
    quiet = simulate(Molt(), scenario(BUDGETS, [done]))
    left = simulate(Molt(), scenario(BUDGETS, [replace(done, leaves_ns=9 * S)]))
    assert left.text == quiet.text
