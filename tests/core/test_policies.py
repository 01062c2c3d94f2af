"""One contract over every policy that is installed, and what sets each of them apart."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings

from molt.core.events import TenantKind
from molt.core.view import Policy
from molt.plugins import known_policies, make_policy
from tests import small
from tests.small import MIB, S
from tests.strategies import worlds

POLICIES = [make_policy(name, {}) for name in known_policies()]
BATCH, FOREGROUND = TenantKind.BATCH, TenantKind.FOREGROUND


def test_all_five_are_installed() -> None:
    assert {"hold", "always_small", "per_request", "restart", "molt"} <= set(known_policies())


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


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=15)
@given(on=worlds())
def test_same_world_same_log(policy: Policy, on) -> None:  # type: ignore[no-untyped-def]
    """Two runs of one world are byte-identical."""
    assert small.simulate(policy, on).text == small.simulate(policy, on).text


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_without_pressure_every_answer_is_complete(policy: Policy) -> None:
    """With room for everybody, nobody is deferred, moved or parked, and all get their tokens."""
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


def test_molt_pulls_every_lever_in_order_and_climbs_back() -> None:
    """Down: demote, demote, park, shed; then up again to the top rung, and everybody gets an answer."""
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
    ran = small.simulate(make_policy("molt", {}), small.scenario(budgets, tenants, horizon_ns=120 * S))
    levers = [r["type"] for r in ran.of("Defer", "Demote", "Park", "Shed", "Unpark", "Promote")]
    assert list(dict.fromkeys(levers)) == ["Demote", "Defer", "Park", "Shed", "Unpark"]
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
