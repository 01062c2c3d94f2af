"""The simulator as a queue whose answers are known: one server, Poisson arrivals, exponential work."""

from __future__ import annotations

import dataclasses
import random

import pytest

from molt.core.costs import StepCost
from molt.core.events import TenantKind
from molt.jobs.plugins import make_policy
from tests import small
from tests.small import COSTS, LADDER, MIB, S

TOKEN_NS = 10_000_000
MEAN_TOKENS = 50
_DECODE = StepCost(0, TOKEN_NS)
COSTS_FLAT = dataclasses.replace(
    COSTS, rungs={name: dataclasses.replace(rung, decode=_DECODE) for name, rung in COSTS.rungs.items()}
)


def poisson(count: int, load: float, seed: int) -> list[small.ResolvedTenant]:
    """Tenants at the times of a Poisson process, with geometric numbers of tokens: M/M/1 with that load."""
    dice = random.Random(seed)
    gap_ns = MEAN_TOKENS * TOKEN_NS / load
    at_ns, tenants = 2.0 * S, []
    for index in range(count):
        at_ns += dice.expovariate(1 / gap_ns)
        tokens = max(1, round(dice.expovariate(1 / MEAN_TOKENS)))
        tenants.append(
            small.tenant(
                f"q{index}", TenantKind.BATCH, arrives_ns=int(at_ns), prompt_tokens=1, max_tokens=tokens
            )
        )
    return tenants


def _in_order(tenants: list[small.ResolvedTenant]) -> list[int]:
    """Lindley's recursion: when each is finished if they are served one after the other in order of arrival."""
    free_ns, finished = 0, []
    for tenant in tenants:
        free_ns = max(free_ns, tenant.arrives_ns) + tenant.request.max_tokens * TOKEN_NS
        finished.append(free_ns)
    return finished


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_served_in_turns_the_server_is_never_idle_with_work(load: float) -> None:
    """Work is conserved: however turns are taken, the last answer of every busy period ends when Lindley says."""
    tenants = poisson(250, load, seed=1)
    first = small.tenant("warm", arrives_ns=0, prompt_tokens=1, max_tokens=1)
    horizon_ns = tenants[-1].arrives_ns + 400 * S
    on = small.scenario([(0, 400 * MIB)], [first, *tenants], horizon_ns=horizon_ns)
    ran = small.simulate(make_policy("hold", {}), on, costs=COSTS_FLAT)
    done = {r["tenant"]: r["at_ns"] for r in ran.of("TenantFinished")}
    assert len(done) == len(tenants) + 1
    fifo = _in_order(tenants)
    ends = [
        end
        for end, following in zip(fifo, [*(t.arrives_ns for t in tenants[1:]), horizon_ns], strict=True)
        if end < following
    ]
    assert len(ends) > 20
    assert set(ends) <= set(done.values())


def test_the_mean_time_is_that_of_processor_sharing() -> None:
    """M/M/1 with turns: a request of mean work S stays S / (1 - load), within what 1,200 of them can tell."""
    load = 0.5
    tenants = poisson(1200, load, seed=3)
    on = small.scenario([(0, 400 * MIB)], tenants, horizon_ns=tenants[-1].arrives_ns + 400 * S)
    ran = small.simulate(make_policy("hold", {}), on, costs=COSTS_FLAT)
    came = {tenant.name: tenant.arrives_ns for tenant in tenants}
    stays = [r["at_ns"] - came[r["tenant"]] for r in ran.of("TenantFinished")]
    mean_work_ns = sum(t.request.max_tokens for t in tenants) / len(tenants) * TOKEN_NS
    assert len(stays) == len(tenants)
    assert sum(stays) / len(stays) == pytest.approx(mean_work_ns / (1 - load), rel=0.15)


def test_littles_law() -> None:
    """Requests present, over time, are the rate of arrival times the mean stay: counted in two ways, to the last ns."""
    tenants = poisson(200, 0.7, seed=5)
    on = small.scenario([(0, 400 * MIB)], tenants, horizon_ns=tenants[-1].arrives_ns + 400 * S)
    ran = small.simulate(make_policy("molt", {}), on, costs=COSTS_FLAT)
    present = area = last_ns = 0
    for record in ran.of("TenantArrived", "TenantFinished"):
        area += present * (record["at_ns"] - last_ns)
        present, last_ns = present + (1 if record["type"] == "TenantArrived" else -1), record["at_ns"]
    came = {tenant.name: tenant.arrives_ns for tenant in tenants}
    assert present == 0
    assert area == sum(r["at_ns"] - came[r["tenant"]] for r in ran.of("TenantFinished"))


@pytest.mark.parametrize("name", ["molt", "restart", "hold"])
def test_bytes_are_conserved(name: str) -> None:
    """What was allocated is freed or still there, part by part; when all are gone only weights remain."""
    tenants = [dataclasses.replace(t, arrives_ns=t.arrives_ns // 8) for t in poisson(40, 0.7, seed=7)]
    budgets = [(0, 60 * MIB), (4 * S, 24 * MIB), (8 * S, 6 * MIB), (12 * S, 400 * MIB)]
    ran = small.simulate(make_policy(name, {}), small.scenario(budgets, tenants, horizon_ns=400 * S))
    taken = given_back = 0
    before: dict[str, int] = {}
    for record in ran.of("memory"):
        parts = {f"{k}/{o}": size for k, owners in record["parts"].items() for o, size in owners.items()}
        changes = [parts.get(key, 0) - before.get(key, 0) for key in parts.keys() | before.keys()]
        taken += sum(change for change in changes if change > 0)
        given_back -= sum(change for change in changes if change < 0)
        before = parts
    last = ran.of("memory")[-1]
    assert len(ran.of("TenantFinished")) == len(tenants)
    assert taken - given_back == last["usage_bytes"]
    assert not last["parts"]["kv"]
    assert not last["parts"]["transient"]
    assert last["usage_bytes"] == sum(LADDER.rung(rung).resident_bytes for rung in last["parts"]["weights"])
