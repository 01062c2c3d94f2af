"""A rung that cannot be brought in: who serves meanwhile, and when it is tried again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from molt.core import events as e
from molt.core.engine_protocol import LoadError
from molt.core.scheduler import Scheduler
from molt.core.state import RETRY_NS, RETRY_NS_MAX, Failure, State, after_event
from molt.core.turns import LoadStep
from molt.core.view import View
from molt.engine.modelled import ModelledEngine
from molt.jobs.plugins import make_policy
from tests import small
from tests.small import COSTS, LADDER, MIB, MS, S


class Torn(ModelledEngine):
    """An engine in which the middle rung cannot be read."""

    broken = frozenset({"tier1"})

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        if rung in self.broken:
            raise LoadError("a torn file")
        return super().load(rung, within_ns)


class AllTorn(Torn):
    """An engine in which no rung can be read."""

    broken = frozenset({"tier0", "tier1", "tier2"})


@pytest.mark.parametrize("name", ["molt", "restart"])
def test_a_smaller_rung_serves_where_one_cannot_be_brought_in(name: str) -> None:
    budgets = [(0, 60 * MIB), (8 * S, 24 * MIB)]
    ran = small.simulate(make_policy(name, {}), small.scenario(budgets, horizon_ns=40 * S), engine=Torn)
    assert ran.violations == []
    assert ran.tokens("chat") == 100
    failed = [r["at_ns"] for r in ran.of("LoadFailed")]
    assert failed
    after = [r for r in ran.of("TokensProduced") if r["at_ns"] > failed[0]]
    assert {r["rung"] for r in after} == {"tier2"}
    load_ns = COSTS.rungs["tier2"].load_ns
    assert after[0]["stamps_ns"][0] - failed[0] < load_ns + 2 * S


def test_the_smaller_goes_on_while_a_larger_cannot_be_brought_in() -> None:
    """On the way up the old rung serves, and the larger is tried ever more rarely."""
    budgets = [(0, 12 * MIB), (2 * S, 5 * MIB), (4 * S, 24 * MIB)]
    on = small.scenario(budgets, [small.tenant(max_tokens=1500)], horizon_ns=90 * S)
    ran = small.simulate(make_policy("molt", {}), on, engine=Torn)
    assert ran.violations == []
    assert ran.tokens("chat") == 1500
    failed = [r["at_ns"] for r in ran.of("LoadFailed")]
    gaps = [later - sooner for sooner, later in pairwise(failed)]
    assert len(gaps) >= 3
    assert all(gap >= min(RETRY_NS << n, RETRY_NS_MAX) for n, gap in enumerate(gaps))
    stamps = [s for r in ran.of("TokensProduced") for s in r["stamps_ns"]]
    assert max(later - sooner for sooner, later in pairwise(stamps[60:])) < S


@pytest.mark.parametrize("name", ["molt", "restart", "hold", "always_small", "per_request"])
def test_where_nothing_can_be_brought_in_everybody_waits_and_nothing_is_hammered(name: str) -> None:
    ran = small.simulate(
        make_policy(name, {}), small.scenario([(0, 60 * MIB)], horizon_ns=120 * S), engine=AllTorn
    )
    assert ran.violations == []
    assert ran.tokens("chat") == 0
    tries: dict[str, list[int]] = {}
    for record in ran.of("LoadFailed"):
        tries.setdefault(record["rung"], []).append(record["at_ns"])
    assert tries
    for failed in tries.values():
        assert 3 <= len(failed) <= 10
        assert all(b - a >= RETRY_NS << min(n, 5) for n, (a, b) in enumerate(pairwise(failed)))


def test_a_good_load_ends_the_memory_of_bad_ones() -> None:
    state = State()
    for at_ns in (0, 5 * S):
        state = after_event(state, e.LoadFailed(at_ns=at_ns, rung="tier0", reason=""))
    assert state.failures == {"tier0": Failure(2, 5 * S)}
    assert state.barred == {"tier0"}
    assert after_event(state, e.TimerFired(at_ns=7 * S)).barred == set()
    scheduler = Scheduler(LADDER, COSTS, make_policy("hold", {}))
    scheduler.state = state
    arrival = e.TenantArrived(
        at_ns=5 * S, tenant="a", tenant_kind=e.TenantKind.BATCH, prompt_tokens=4, max_tokens=4
    )
    scheduler.handle(e.BudgetChanged(at_ns=5 * S, budget_bytes=60 * MIB))
    scheduler.handle(arrival)
    assert scheduler.next_step() is None
    assert scheduler.next_deadline_ns() == 7 * S
    scheduler.handle(e.TimerFired(at_ns=7 * S))
    assert scheduler.next_step() == LoadStep("tier0", aside=False)
    assert scheduler.next_deadline_ns() is None
    scheduler.handle(e.RungLoaded(at_ns=7 * S, rung="tier0"))
    assert scheduler.state.failures == {}


def test_the_wait_doubles_up_to_a_limit() -> None:
    assert (RETRY_NS, RETRY_NS_MAX) == (S, 32 * S)
    waits = [Failure(count, 0).again_ns for count in (1, 2, 3, 6, 7, 1000)]
    assert waits == [RETRY_NS, 2 * RETRY_NS, 4 * RETRY_NS, RETRY_NS_MAX, RETRY_NS_MAX, RETRY_NS_MAX]


def test_a_view_leaves_out_what_just_failed() -> None:
    failed = {"tier1": Failure(1, 0)}
    view = View(State(now_ns=MS, failures=failed), LADDER, COSTS)
    assert [rung.name for rung in view.rungs] == ["tier0", "tier2"]
    assert view.retry_ns == RETRY_NS
    all_failed = {rung.name: Failure(n + 1, 0) for n, rung in enumerate(LADDER.rungs)}
    view = View(State(now_ns=MS, failures=all_failed), LADDER, COSTS)
    assert view.rungs == LADDER.rungs
    assert view.retry_ns == RETRY_NS
    later = View(State(now_ns=RETRY_NS, failures=failed), LADDER, COSTS)
    assert later.rungs == LADDER.rungs
    assert later.retry_ns is None
