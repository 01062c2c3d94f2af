"""What must not change, or change in a known way, when a world is changed; where no oracle says what is right."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import molt.core.turns
import sim.world
from molt.core.costs import CostModel, DiskCosts, StepCost
from molt.jobs.plugins import make_policy
from molt.jobs.scenario import ResolvedScenario
from molt.policies.molt import Molt
from tests import small
from tests.bare import reported_by_simulator
from tests.small import COSTS, MIB, S
from tests.strategies import worlds

MOLT, HOLD = make_policy("molt", {}), make_policy("hold", {})
PLENTY = 400 * MIB
LAYERS = 7 * 4
"""Of both geometries of the small ladder, multiplied."""


@settings(max_examples=15)
@given(on=worlds())
def test_without_pressure_molt_is_hold(on: ResolvedScenario) -> None:
    """With room for all, the two write the same facts and ask for the same, to the nanosecond."""
    on = dataclasses.replace(on, budgets=tuple((at_ns, budget + PLENTY) for at_ns, budget in on.budgets))
    assert reported_by_simulator(small.simulate(MOLT, on).records) == reported_by_simulator(
        small.simulate(HOLD, on).records
    )


@pytest.mark.parametrize("name", ["molt", "restart", "hold"])
@settings(max_examples=10)
@given(on=worlds(), more=st.integers(1, 40 * MIB))
def test_more_memory_kills_nobody_who_lived(name: str, on: ResolvedScenario, more: int) -> None:
    """A process that began with plenty and is not killed is not killed with more either."""
    tenants = tuple(dataclasses.replace(tenant, arrives_ns=0) for tenant in on.tenants)
    on = dataclasses.replace(on, tenants=tenants, budgets=((0, PLENTY), *((t + S, b) for t, b in on.budgets)))
    richer = dataclasses.replace(on, budgets=tuple((at_ns, budget + more) for at_ns, budget in on.budgets))
    poor, rich = (small.simulate(make_policy(name, {}), world) for world in (on, richer))
    first = [
        min((r["at_ns"] for r in ran.of("ProcessKilled")), default=on.horizon_ns) for ran in (poor, rich)
    ]
    assert first[1] >= first[0]


def test_more_memory_can_kill_who_would_not_have_begun() -> None:
    """The anomaly, as it is: hold does not begin on 20 MiB, begins on 40 and dies of the same fall."""
    fall = [(0, 20 * MIB), (5 * S, 10 * MIB)]
    raised = [(0, 40 * MIB), (5 * S, 10 * MIB)]
    poor, rich = (small.simulate(HOLD, small.scenario(budgets)) for budgets in (fall, raised))
    assert len(poor.of("ProcessKilled")) == 0
    assert len(rich.of("ProcessKilled")) == 1


@pytest.mark.parametrize("name", ["molt", "restart", "hold"])
@settings(max_examples=10)
@given(on=worlds())
def test_a_step_to_the_same_budget_changes_nothing(name: str, on: ResolvedScenario) -> None:
    """A step said twice at the same instant is one step: the scheduler may want to be woken once less, no more."""
    twice = tuple(step for step in on.budgets for _ in range(2))
    once, doubled = (
        small.simulate(make_policy(name, {}), dataclasses.replace(on, budgets=budgets))
        for budgets in (on.budgets, twice)
    )
    assert _without_budgets(doubled) == _without_budgets(once)


@pytest.mark.parametrize("name", ["molt", "restart", "hold"])
@settings(max_examples=15)
@given(on=worlds())
def test_two_half_steps_down_are_one(name: str, on: ResolvedScenario) -> None:
    """A fall through the midpoint, at the same instant, serves the same tokens at the same times as the whole fall.

    Except where molt, asked about the midpoint, goes somewhere that costs reading: then what that costs is the
    difference, and the answers are complete all the same.
    """
    falls = [0] + [min(0, b - a) for (_, a), (_, b) in pairwise(on.budgets)]
    halved = [
        step
        for (at_ns, budget), fall in zip(on.budgets, falls, strict=True)
        for step in ([(at_ns, budget - fall // 2), (at_ns, budget)] if fall else [(at_ns, budget)])
    ]
    whole, halves = (
        small.simulate(make_policy(name, {}), dataclasses.replace(on, budgets=tuple(budgets)))
        for budgets in (on.budgets, halved)
    )
    assert halves.violations == []
    if not _detours(halves):
        assert _served(halves) == _served(whole)
    assert {r["tenant"] for r in halves.of("TenantFinished")} == {
        r["tenant"] for r in whole.of("TenantFinished")
    }


def _detours(ran: small.Ran) -> list[dict[str, Any]]:
    """What was asked for at a midpoint and costs a prefill, or a disk, or cannot be undone at once."""
    changes = ran.of("BudgetChanged")
    midpoints = {one["seq"] for one, other in pairwise(changes) if one["at_ns"] == other["at_ns"]}
    decisions = [r for r in ran.of("decision") if r["cause"] in midpoints]
    return [r for r in decisions if r.get("route") == "reread" or r["type"] in {"Spill", "Shed"}]


def _served(ran: small.Ran) -> list[dict[str, Any]]:
    kinds = ("PromptRead", "TokensProduced", "TenantFinished", "ProcessKilled")
    return reported_by_simulator(ran.of(*kinds))


def _without_budgets(ran: small.Ran) -> list[dict[str, Any]]:
    left_out = {"BudgetChanged", "TimerFired"}
    return reported_by_simulator(record for record in ran.records if record.get("type") not in left_out)


@settings(max_examples=10)
@given(on=worlds())
def test_names_mean_nothing(on: ResolvedScenario) -> None:
    """With the tenants' names turned round nothing but the names changes in the log."""
    other = {tenant.name: f"renamed{9 - index}" for index, tenant in enumerate(on.tenants)}
    renamed = tuple(dataclasses.replace(tenant, name=other[tenant.name]) for tenant in on.tenants)
    text = "\n".join(
        json.dumps(r) for r in small.simulate(MOLT, dataclasses.replace(on, tenants=renamed)).records
    )
    for old, new in other.items():
        text = text.replace(new, old)
    assert [json.loads(line) for line in text.split("\n")] == small.simulate(MOLT, on).records


@settings(max_examples=10)
@given(on=worlds(), k=st.sampled_from((2, 3, 7)))
def test_a_slower_world_is_the_same_world(on: ResolvedScenario, k: int) -> None:
    """All times and all costs ``k`` times as long: the same log, its times ``k`` times as late."""
    slow = dataclasses.replace(
        on,
        budgets=tuple((at_ns * k, budget) for at_ns, budget in on.budgets),
        tenants=tuple(dataclasses.replace(t, arrives_ns=t.arrives_ns * k) for t in on.tenants),
        horizon_ns=on.horizon_ns * k,
        kill_after_ns=on.kill_after_ns * k,
    )
    costs = _divisible(COSTS)
    plain = small.simulate(MOLT, on, costs=costs)
    with pytest.MonkeyPatch.context() as patch:
        for module in (sim.world, molt.core.turns):
            patch.setattr(module, "SLICE_NS_MAX", module.SLICE_NS_MAX * k)
        patient = Molt(cooldown_ns=Molt().cooldown_ns * k, spill_within_ns=Molt().spill_within_ns * k)
        slowed = small.simulate(patient, slow, costs=_scaled(costs, k))
    assert slowed.records == [_later(record, k) for record in plain.records]


def _divisible(costs: CostModel) -> CostModel:
    """Chunks of prefill that take a whole number of nanoseconds a layer, so that no rounding tells the worlds apart."""

    def rounded(ns: float) -> int:
        return int(ns) // LAYERS * LAYERS

    rungs = {
        name: dataclasses.replace(
            rung,
            read=StepCost(
                rounded(rung.read.fixed_ns), rounded(rung.read.token_ns), rounded(rung.read.pair_ns)
            ),
        )
        for name, rung in costs.rungs.items()
    }
    return dataclasses.replace(costs, rungs=rungs)


def _scaled(costs: CostModel, k: int) -> CostModel:
    def step(cost: StepCost) -> StepCost:
        return StepCost(cost.fixed_ns * k, cost.token_ns * k, cost.pair_ns * k)

    rungs = {
        name: dataclasses.replace(
            rung,
            load_ns=rung.load_ns * k,
            release_ns=rung.release_ns * k,
            read=step(rung.read),
            decode=step(rung.decode),
        )
        for name, rung in costs.rungs.items()
    }
    routes = {
        name: dataclasses.replace(route, switch=step(route.switch)) for name, route in costs.routes.items()
    }
    disk = DiskCosts(costs.disk.write_byte_ns * k, costs.disk.read_byte_ns * k)
    start_ns = costs.process_start_ns * k
    return dataclasses.replace(costs, process_start_ns=start_ns, disk=disk, rungs=rungs, routes=routes)


def _later(value: Any, k: int, *, ns: bool = False) -> Any:
    match value:
        case dict():
            return {key: _later(item, k, ns=key.endswith("_ns")) for key, item in value.items()}
        case list():
            return [_later(item, k, ns=ns) for item in value]
        case int() if ns:
            return value * k
        case _:
            return value
