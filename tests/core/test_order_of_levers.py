"""Levers in order of harm: cases that broke it."""

from __future__ import annotations

from molt.core.events import TenantKind
from molt.jobs.plugins import make_policy
from tests import rules, small
from tests.bare import BareWorld, arrival
from tests.small import COSTS, LADDER, MIB, MS, S


def test_no_tenant_is_parked_for_a_person_who_waits_all_the_same() -> None:
    """Two run; a person comes who does not fit beside the first. Both go on, since parking the batch job helps no one
    until the first is done; then the person is let in, and the batch job waits."""
    budget = round((LADDER.bottom.resident_bytes + LADDER.bottom.kv_bytes(599 + 499)) / 0.94)
    tenants = [
        small.tenant("first", prompt_tokens=200, max_tokens=400),
        small.tenant("digest", TenantKind.BATCH, prompt_tokens=200, max_tokens=300, arrives_ns=1),
        small.tenant("second", prompt_tokens=500, max_tokens=300, arrives_ns=S // 2),
    ]
    ran = small.simulate(make_policy("molt", {}), small.scenario([(0, budget)], tenants, horizon_ns=200 * S))
    assert [r["tenant"] for r in ran.of("Defer")] == ["second"]
    done = next(r for r in ran.of("TenantFinished") if r["tenant"] == "first")
    let_in = next(r for r in ran.of("Admit") if r["tenant"] == "second")
    assert [(r["tenant"], r["at_ns"]) for r in ran.of("Park")] == [("digest", done["at_ns"])]
    assert let_in["at_ns"] == done["at_ns"]


def test_a_switch_at_work_is_given_up_before_any_cache_grows() -> None:
    """Regression: the budget fell during the switch of a person's cache, and all had to prefill again. Of two caches
    that need more room for that, the one that came first got it while the transient of the switch was still held."""
    world = BareWorld(make_policy("molt", {}), LADDER, COSTS)
    world.post_budget(0, 60 * MIB)
    for tenant in (
        small.tenant("long", TenantKind.BATCH, prompt_tokens=1500, max_tokens=20),
        small.tenant("short", TenantKind.BATCH, prompt_tokens=20, max_tokens=300),
        small.tenant("chat", prompt_tokens=40, max_tokens=800, arrives_ns=15 * S),
    ):
        world.post(arrival(tenant))
    world.run(18 * S)
    world.post_budget(world.now_ns + 1, 27 * MIB)
    while not any(world.switch_done_ns.values()):
        world.live()
    assert list(world.switch_done_ns) == ["chat"]
    together = sum(LADDER.rungs[1].kv_bytes(t.full_capacity) for t in world.state.tenants.values())
    world.post_budget(world.now_ns + 1, LADDER.rungs[1].resident_bytes + together)
    world.run(world.now_ns + 100 * MS)
    assert {t.target for t in world.state.tenants.values()} == {"tier1"}
    assert not any(t.switching for t in world.state.tenants.values())
    assert rules.nothing_grows_above_the_budget(world) is None
