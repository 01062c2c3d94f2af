"""The simulated world: what the OS does, what is charged and when, and that the books balance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hypothesis import given, settings

from molt.core.events import TenantKind
from molt.core.plan import Plan
from molt.core.view import View
from molt.jobs.plugins import make_policy
from tests import small
from tests.small import MIB, MS, S
from tests.strategies import worlds

MOLT = make_policy("molt", {})
HOLD = make_policy("hold", {})


@dataclass(frozen=True, slots=True)
class Waking:
    """Holds, and wants to be woken at ``wake_ns`` when it is asked at ``asked_ns``."""

    asked_ns: int
    wake_ns: int

    name: ClassVar[str] = "waking"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        """As hold decides."""
        wanted = self.wake_ns if view.now_ns == self.asked_ns else None
        return replace(HOLD.decide(view), revisit_ns=wanted)


@settings(max_examples=60)
@given(on=worlds())
def test_parts_sum_to_usage(on) -> None:  # type: ignore[no-untyped-def]
    """In every record of memory the parts add up to the usage."""
    for record in small.simulate(MOLT, on).of("memory"):
        parts = sum(sum(owners.values()) for owners in record["parts"].values())
        assert parts == record["usage_bytes"]


@settings(max_examples=60)
@given(on=worlds())
def test_tokens_are_never_lost_or_repeated(on) -> None:  # type: ignore[no-untyped-def]
    """A finished answer has exactly the tokens asked for, in rising time, whatever it went through."""
    ran = small.simulate(MOLT, on)
    wanted = {tenant.name: tenant.request.max_tokens for tenant in on.tenants}
    for finished in ran.of("TenantFinished"):
        assert ran.tokens(finished["tenant"]) == wanted[finished["tenant"]]
    for name in wanted:
        stamps = [s for r in ran.of("TokensProduced") if r["tenant"] == name for s in r["stamps_ns"]]
        assert stamps == sorted(set(stamps))
        assert all(stamp <= on.horizon_ns for stamp in stamps)


@settings(max_examples=40)
@given(on=worlds())
def test_compute_is_serial(on) -> None:  # type: ignore[no-untyped-def]
    """No two tokens of any tenants are complete at the same instant."""
    stamps = [s for r in small.simulate(MOLT, on).of("TokensProduced") for s in r["stamps_ns"]]
    assert stamps == sorted(set(stamps))


def test_a_short_excursion_is_forgiven() -> None:
    """The OS kills only after usage has stayed above the budget for longer than the grace."""
    dips = [
        (0, 60 * MIB),
        (8 * S, 20 * MIB),
        (8 * S + 400 * MS, 60 * MIB),
        (12 * S, 20 * MIB),
        (12 * S + 600 * MS, 60 * MIB),
    ]
    ran = small.simulate(HOLD, small.scenario(dips, [small.tenant(max_tokens=300)]))
    assert [r["at_ns"] for r in ran.of("ProcessKilled")] == [12 * S + 500 * MS]


def test_a_killed_process_comes_back_when_there_is_room_for_what_it_was() -> None:
    dips = [(0, 60 * MIB), (8 * S, 20 * MIB), (10 * S, 22 * MIB), (15 * S, 60 * MIB)]
    ran = small.simulate(HOLD, small.scenario(dips, [small.tenant(max_tokens=300)]))
    assert [r["at_ns"] for r in ran.of("ProcessStarted")] == [15 * S + small.COSTS.process_start_ns]
    assert [r["attempt"] for r in ran.of("TenantArrived")] == [1, 2]


def test_who_arrives_while_nothing_is_alive_is_served_later() -> None:
    dips = [(0, 60 * MIB), (8 * S, 20 * MIB), (15 * S, 60 * MIB)]
    tenants = [
        small.tenant(max_tokens=300),
        small.tenant("late", TenantKind.BATCH, arrives_ns=12 * S, max_tokens=20),
    ]
    ran = small.simulate(HOLD, small.scenario(dips, tenants, horizon_ns=100 * S))
    assert {r["tenant"] for r in ran.of("TenantFinished")} == {"chat", "late"}


def test_the_horizon_cuts_a_run_of_tokens_without_losing_those_before_it() -> None:
    """Tokens complete before the horizon are reported although their run ends after it."""
    on = small.scenario([(0, 60 * MIB)], [small.tenant(prompt_tokens=1, max_tokens=2000)], horizon_ns=5 * S)
    ran = small.simulate(HOLD, on)
    (run,) = ran.of("TokensProduced")
    assert run["count"] == 52  # 800 ms to load, then 80 ms a token and 500 ns for each token before it
    assert ran.records[-1]["kind"] == "end"


def test_a_second_drop_during_a_load_abandons_it() -> None:
    """A load under way is given up when the budget falls below what it would need."""
    budgets = [(0, 60 * MIB), (8 * S, 24 * MIB), (8 * S + 200 * MS, 5 * MIB), (12 * S, 60 * MIB)]
    ran = small.simulate(MOLT, small.scenario(budgets, [small.tenant(max_tokens=300)]))
    assert [r["dest"] for r in ran.of("Demote")] == ["tier1", "tier2"]
    loaded = [r["rung"] for r in ran.of("RungLoaded")]
    assert loaded[:2] == ["tier0", "tier2"]
    assert ran.tokens("chat") == 300
    assert ran.overshoot_max() <= 0


def test_a_drop_during_a_switch_abandons_it() -> None:
    """A switch under way is given up; the cache it started from is still there."""
    switching = 8 * S + 40 * MS + 400 * MS + 80 * MS + 60 * MS
    budgets = [(0, 60 * MIB), (8 * S, 24 * MIB), (switching, 12 * MIB), (12 * S, 60 * MIB)]
    ran = small.simulate(MOLT, small.scenario(budgets, [small.tenant(prompt_tokens=700, max_tokens=300)]))
    assert ran.tokens("chat") == 300
    assert ran.overshoot_max() <= 0
    assert ran.violations == []
    assert ran.of("Switched")[0]["dest"] == "tier2"


def test_overshoot_is_bounded_by_the_time_it_takes_to_react() -> None:
    """Usage is above the budget only between a drop and the end of its enforcement."""
    budgets = [(0, 60 * MIB), (8 * S, 24 * MIB)]
    ran = small.simulate(MOLT, small.scenario(budgets, [small.tenant(max_tokens=300)]))
    over = [r["at_ns"] for r in ran.of("memory") if r["usage_bytes"] > r["budget_bytes"]]
    assert over
    token_ns = small.COSTS.rungs["tier0"].decode.ns(1, 600)
    assert max(over) - 8 * S <= token_ns + small.COSTS.rungs["tier0"].release_ns


def test_a_timer_due_within_a_stretch_of_a_load_is_reported_at_its_time() -> None:
    """Regression: the budget changed within a stretch of a load, and a timer was wanted that was due before its end; it
    was reported as due at the end, as in no other world."""
    falls_ns, due_ns = 410 * MS, 411 * MS
    ran = small.simulate(Waking(falls_ns, due_ns), small.scenario([(0, 60 * MIB), (falls_ns, 59 * MIB)]))
    assert [r["at_ns"] for r in ran.of("TimerFired")] == [due_ns]
