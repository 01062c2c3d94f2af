"""One contract over every policy that is installed, and what sets each of them apart."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings

from molt.core.costs import RouteCosts, StepCost
from molt.core.events import TenantKind
from molt.core.view import PROMISES, Policy
from molt.jobs.plugins import known_policies, make_policy
from tests import small
from tests.small import MIB, MS, S
from tests.strategies import worlds

POLICIES = [make_policy(name, {}) for name in known_policies()]
BATCH, FOREGROUND = TenantKind.BATCH, TenantKind.FOREGROUND


def test_all_five_are_installed() -> None:
    assert {"hold", "always_small", "per_request", "restart", "molt"} <= set(known_policies())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_only_two_make_promises_and_all_may_drop_a_cache_whole(policy: Policy) -> None:
    assert policy.promises == (PROMISES if policy.name in {"molt", "restart"} else frozenset())
    assert policy.floor_cells == 0


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=40)
@given(on=worlds())
def test_contract(policy: Policy, on) -> None:  # type: ignore[no-untyped-def]
    """In any world a policy breaks no rule, keeps what it promises, and the books agree at every round."""
    ran = small.simulate(policy, on)
    assert ran.violations == []
    assert ran.of("refusal") == []
    if "never_killed" in policy.promises:
        assert ran.of("ProcessKilled") == []
        assert ran.overshoot_max() <= 0


@pytest.mark.parametrize("name", ["molt", "restart"])
@settings(max_examples=40)
@given(on=worlds())
def test_when_memory_returns_everybody_finishes(name: str, on) -> None:  # type: ignore[no-untyped-def]
    """Liveness: once the budget has been enough for long enough, every answer is complete, to the token."""
    plenty = (on.horizon_ns, small.LADDER.top.resident_bytes * 8)
    longer = dataclasses.replace(on, budgets=(*on.budgets, plenty), horizon_ns=on.horizon_ns + 600 * S)
    ran = small.simulate(make_policy(name, {}), longer)
    assert {t.name: ran.tokens(t.name) for t in on.tenants} == {
        t.name: t.request.max_tokens for t in on.tenants
    }
    assert len(ran.of("TenantFinished")) == len(on.tenants)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=15)
@given(on=worlds())
def test_same_world_same_log(policy: Policy, on) -> None:  # type: ignore[no-untyped-def]
    """Two runs of one world are byte-identical."""
    assert small.simulate(policy, on).text == small.simulate(policy, on).text


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_without_pressure_every_answer_is_complete(policy: Policy) -> None:
    """With room for all, no tenant is deferred, switched or parked, and all get their tokens."""
    tenants = [small.tenant("chat"), small.tenant("digest", BATCH, arrives_ns=S, max_tokens=60)]
    ran = small.simulate(policy, small.scenario([(0, 100 * MIB)], tenants))
    assert ran.tokens("chat") == 100
    assert ran.tokens("digest") == 60
    assert ran.of("Defer", "Demote", "Promote", "Park", "Shed", "ProcessKilled") == []


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_budget_that_is_too_small_from_the_start_kills_nobody(policy: Policy) -> None:
    """Nothing fits, so nothing runs and nothing dies."""
    ran = small.simulate(policy, small.scenario([(0, MIB)]))
    assert ran.of("ProcessKilled", "TokensProduced", "Load") == []
    assert len(ran.of("Defer")) == 1


SPIKE = [(0, 60 * MIB), (8 * S, 22 * MIB), (12 * S, 6 * MIB), (20 * S, 60 * MIB)]


def test_hold_dies_of_the_spike_and_comes_back_cold() -> None:
    """The control: the process that does not react is killed in the middle of its answer."""
    ran = small.simulate(make_policy("hold", {}), small.scenario(SPIKE, [small.tenant(max_tokens=300)]))
    (killed,) = ran.of("ProcessKilled")
    assert killed["at_ns"] == 8 * S + S // 2
    assert [r["attempt"] for r in ran.of("TenantArrived")] == [1, 2]
    (finished,) = ran.of("TenantFinished")
    assert finished["at_ns"] > 23 * S
    assert ran.overshoot_max() > 0


def test_per_request_dies_of_the_spike_too() -> None:
    """Choosing at the request boundary comes too late for a spike inside the answer."""
    ran = small.simulate(
        make_policy("per_request", {}), small.scenario(SPIKE, [small.tenant(max_tokens=300)])
    )
    assert len(ran.of("ProcessKilled")) == 1


def test_per_request_begins_on_what_fits_now() -> None:
    ran = small.simulate(make_policy("per_request", {}), small.scenario([(0, 14 * MIB)]))
    assert {r["rung"] for r in ran.of("TokensProduced")} == {"tier1"}


def test_always_small_survives_on_the_bottom_rung() -> None:
    ran = small.simulate(
        make_policy("always_small", {}), small.scenario(SPIKE, [small.tenant(max_tokens=300)])
    )
    assert ran.of("ProcessKilled") == []
    assert {r["rung"] for r in ran.of("TokensProduced")} == {"tier2"}


def test_restart_survives_and_reads_everything_again() -> None:
    ran = small.simulate(make_policy("restart", {}), small.scenario(SPIKE, [small.tenant(max_tokens=300)]))
    assert ran.of("ProcessKilled") == []
    assert {r["route"] for r in ran.of("Demote")} == {"reread"}
    assert ran.tokens("chat") == 300


def _gaps(ran: small.Ran) -> list[int]:
    stamps = [stamp for r in ran.of("TokensProduced") for stamp in r["stamps_ns"]]
    return [after - before for before, after in itertools.pairwise(stamps)]


def test_molt_survives_with_a_shorter_stall_than_restart() -> None:
    """The same spike, the same answer: carrying the cache stalls less than reading it again."""
    later = [(at_ns + 6 * S if at_ns else 0, budget) for at_ns, budget in SPIKE]
    on = small.scenario(later, [small.tenant(prompt_tokens=1200, max_tokens=300)])
    molt, restart = (small.simulate(make_policy(name, {}), on) for name in ("molt", "restart"))
    assert molt.tokens("chat") == restart.tokens("chat") == 300
    assert molt.overshoot_max() <= 0
    assert len(molt.of("Demote")) == 2
    assert max(_gaps(molt)) < 0.7 * max(_gaps(restart))


def test_molt_goes_on_answering_while_the_larger_rung_comes_in() -> None:
    """On the way up only the switch is a pause: no gap is as long as the load of the larger rung."""
    ran = small.simulate(make_policy("molt", {}), small.scenario(SPIKE, [small.tenant(max_tokens=700)]))
    (load,) = [r for r in ran.of("Load") if r["rung"] == "tier0" and r["at_ns"] > 0]
    (loaded,) = [r for r in ran.of("RungLoaded") if r["decision"] == load["seq"]]
    meanwhile = [r for r in ran.of("TokensProduced") if load["at_ns"] < r["at_ns"] < loaded["at_ns"]]
    assert {r["rung"] for r in meanwhile} == {"tier2"}
    assert len(meanwhile) > 5
    after = [stamp for r in ran.of("TokensProduced") for stamp in r["stamps_ns"] if stamp > load["at_ns"]]
    assert max(b - a for a, b in itertools.pairwise(after)) < small.COSTS.rungs["tier0"].load_ns


@pytest.mark.parametrize(("params", "last"), [({}, "Spill"), ({"spill_within": "0s"}, "Shed")])
def test_molt_pulls_every_lever_in_order_and_climbs_back(params: dict[str, str], last: str) -> None:
    """Down: demote, demote, park, then the disk or what is left without one; then up again to the top rung, and
    every tenant gets an answer."""
    budgets = [
        (0, 60 * MIB),
        (6 * S, 24 * MIB),
        (10 * S, 6 * MIB),
        (14 * S, 5 * MIB // 2),
        (16 * S, MIB // 4),
        (18 * S, 60 * MIB),
    ]
    tenants = [
        small.tenant("chat", max_tokens=300),
        small.tenant("digest", BATCH, max_tokens=200, arrives_ns=S),
        small.tenant("late", BATCH, prompt_tokens=800, max_tokens=20, arrives_ns=11 * S),
    ]
    ran = small.simulate(make_policy("molt", params), small.scenario(budgets, tenants, horizon_ns=120 * S))
    levers = [r["type"] for r in ran.of("Defer", "Demote", "Park", "Spill", "Shed", "Unpark", "Promote")]
    assert list(dict.fromkeys(levers)) == ["Demote", "Defer", "Park", last, "Unpark"]
    assert len(ran.of("CacheRestored")) == len(ran.of("CacheSpilled"))
    assert {r["tenant"] for r in ran.of("TenantFinished")} == {"chat", "digest", "late"}
    assert ran.of("TokensProduced")[-1]["rung"] == "tier0"
    assert ran.overshoot_max() <= 0
    assert ran.violations == []


def test_molt_does_not_oscillate_with_the_budget() -> None:
    """Recovery waits for the cool-down, so a budget that swings every 300 ms causes few switches."""
    swings = [(i * 300 * 1_000_000, (60 if i % 2 == 0 else 24) * MIB) for i in range(100)]
    ran = small.simulate(make_policy("molt", {}), small.scenario(swings, [small.tenant(max_tokens=400)]))
    assert len(ran.of("Promote")) <= 100 * 0.3 / 2 + 1


def test_a_person_does_not_wait_for_a_batch_job() -> None:
    """A foreground newcomer may push a batch tenant aside; a batch newcomer waits."""
    budget = small.LADDER.bottom.resident_bytes + small.LADDER.bottom.kv_bytes(600)
    tenants = [
        small.tenant("digest", BATCH, prompt_tokens=200, max_tokens=200),
        small.tenant("chat", FOREGROUND, prompt_tokens=200, max_tokens=100, arrives_ns=3 * S),
        small.tenant("late", BATCH, prompt_tokens=200, max_tokens=100, arrives_ns=4 * S),
    ]
    ran = small.simulate(make_policy("molt", {}), small.scenario([(0, budget)], tenants, horizon_ns=200 * S))
    assert [r["tenant"] for r in ran.of("TenantFinished")] == ["chat", "digest", "late"]
    assert [r["tenant"] for r in ran.of("Park")] == ["digest"]
    assert [r["tenant"] for r in ran.of("Defer")] == ["late"]


# --- regressions ---


def room_for(prompt: int, answer: int) -> int:
    """Bytes that suffice for one tenant on the bottom rung."""
    return small.LADDER.bottom.resident_bytes + small.LADDER.bottom.kv_bytes(prompt + answer - 1)


def test_two_switches_never_hold_their_transients_together() -> None:
    """A switch that is overtaken by another gives its transient up, however long a switch takes."""
    tenants = [
        small.tenant("a", prompt_tokens=20, max_tokens=100),
        small.tenant("b", arrives_ns=2100 * MS, prompt_tokens=1800, max_tokens=100),
    ]
    budgets = [(0, 60 * MIB), (2700 * MS, 11 * MIB // 2), (3010 * MS, 89 * MIB // 10), (3050 * MS, 9 * MIB)]
    for fixed_ns in (60 * MS, 600 * MS):
        routes = {key: RouteCosts(StepCost(fixed_ns, 0.4 * MS)) for key in small.COSTS.routes}
        costs = dataclasses.replace(small.COSTS, routes=routes)
        ran = small.simulate(make_policy("molt", {}), small.scenario(budgets, tenants), costs=costs)
        assert ran.violations == []
        assert ran.overshoot_max() <= 0


@pytest.mark.parametrize("name", ["molt", "restart"])
def test_a_budget_that_returns_to_just_enough_is_enough(name: str) -> None:
    """No tenant stays parked for want of a margin: what sufficed before the dip suffices after it."""
    enough = room_for(200, 300) * 102 // 100
    budgets = [(0, enough), (5 * S, MIB), (6 * S, enough)]
    ran = small.simulate(make_policy(name, {}), small.scenario(budgets, [small.tenant(max_tokens=300)]))
    assert ran.tokens("chat") == 300


@pytest.mark.parametrize("kind", TenantKind)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_who_cannot_fit_at_all_holds_nobody_up(policy: Policy, kind: TenantKind) -> None:
    """A request too large for the budget waits by itself; the one behind it is served."""
    top = policy.name == "hold"
    rung = small.LADDER.top if top else small.LADDER.bottom
    tenants = [
        small.tenant("big", kind, prompt_tokens=1500, max_tokens=400),
        small.tenant("small", kind, arrives_ns=S),
    ]
    budget = rung.resident_bytes + rung.kv_bytes(299) + MIB // 4
    ran = small.simulate(policy, small.scenario([(0, budget)], tenants))
    assert ran.tokens("small") == 100
    assert ran.tokens("big") == 0


@pytest.mark.parametrize("kind", TenantKind)
def test_who_comes_back_does_not_stop_its_peers(kind: TenantKind) -> None:
    """A tenant that was parked or deferred takes turns from where its peers are."""
    one = room_for(200, 600) + MIB // 2
    tenants = [small.tenant("a", kind, max_tokens=600), small.tenant("b", kind, max_tokens=600)]
    for budgets in ([(0, 60 * MIB), (2500 * MS, one), (12 * S, 60 * MIB)], [(0, one), (12 * S, 60 * MIB)]):
        ran = small.simulate(make_policy("molt", {}), small.scenario(budgets, tenants, horizon_ns=300 * S))
        stamps = [s for r in ran.of("TokensProduced") if r["tenant"] == "a" for s in r["stamps_ns"]]
        assert max(b - a for a, b in itertools.pairwise(stamps)) < 3 * S


def test_a_swinging_budget_does_not_make_the_loads_swing() -> None:
    """A load that was abandoned starts the cool-down: at most one is begun in every cool-down."""
    swing = [(i * 300 * MS, (24 if i % 2 == 0 else 60) * MIB) for i in range(200)]
    flat = [(0, 24 * MIB)]
    tenants = [small.tenant(max_tokens=1500)]
    swung, still = (
        small.simulate(make_policy("molt", {}), small.scenario(budgets, tenants)) for budgets in (swing, flat)
    )
    assert len(swung.of("Load")) <= 60 / 2 + 2
    assert swung.tokens("chat") > 0.85 * still.tokens("chat")


def test_short_dips_do_not_stop_everything() -> None:
    """Back from being parked it is the smallest rung first, which is there soonest."""
    dips = [(i * 400 * MS, (24 if i % 2 == 0 else 2) * MIB) for i in range(150)]
    ran = small.simulate(
        make_policy("molt", {}), small.scenario(dips, [small.tenant(prompt_tokens=20, max_tokens=1500)])
    )
    assert ran.tokens("chat") > 100


@pytest.mark.parametrize("name", ["molt", "restart"])
def test_where_one_fits_one_runs(name: str) -> None:
    """A budget that settles at room for one of two finishes both, one after the other."""
    tenants = [small.tenant("chat"), small.tenant("two", BATCH)]
    budgets = [(0, 60 * MIB), (4 * S, room_for(200, 100) + MIB // 2)]
    ran = small.simulate(make_policy(name, {}), small.scenario(budgets, tenants, horizon_ns=120 * S))
    assert {r["tenant"] for r in ran.of("TenantFinished")} == {"chat", "two"}
