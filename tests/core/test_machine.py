"""One rule machine over two worlds: whatever happens, in whatever order, what must hold does.

``CalmMachine`` drives the bare world through everything a scheduler must expect, and in the end has the simulator live
through the same, which must write the same facts and decisions. ``FaultyMachine`` adds what goes wrong: loads and
switches that fail, slow loads, releases that keep a part, signals that are late, lost or doubled, a clock that jumps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from molt.core import events as e
from molt.core.bound import usage_bytes_max
from molt.core.budget import peak_bytes, usage_bytes
from molt.core.events import TenantKind
from molt.core.invariants import violations
from molt.core.state import RETRY_NS_MAX, Phase
from molt.core.turns import DecodeStep
from molt.core.view import Policy
from molt.policies.molt import Molt
from molt.policies.restart import Restart
from molt.worlds.checkers import disagreements
from tests import rules, small
from tests.bare import BareWorld, Faults, arrival, reported_by, reported_by_simulator
from tests.small import COSTS, LADDER, MIB, MS, S
from tests.strategies import BudgetChoice, Newcomer, budget_choices, molt_policies, newcomers

PLENTY = 400 * MIB
soon = st.sampled_from((0, 1, 5, 30, 70, 200, 900)).map(lambda ms: ms * MS)
first_budgets = st.sampled_from((6 * MIB, 14 * MIB, 60 * MIB))
first_newcomers = st.lists(newcomers, min_size=1, max_size=3)


class CalmMachine(RuleBasedStateMachine):
    """Nothing goes wrong, but anything may happen."""

    policy: Policy
    fired: ClassVar[Counter[str]] = Counter()
    """How often something happened, over all examples: what never does is not tested."""

    @initialize(policy=molt_policies, budget=first_budgets, newcomers=first_newcomers)
    def begin(self, policy: Molt, budget: int, newcomers: list[Newcomer]) -> None:
        self._begin(policy, budget, newcomers)

    def _begin(self, policy: Policy, budget: int, newcomers: list[Newcomer]) -> None:
        self.policy = policy
        self.budgets: list[tuple[int, int]] = []
        self.tenants: list[small.ResolvedTenant] = []
        self.facts = 0
        self.faulty = False
        self.watched = 0
        self.world = BareWorld(policy, LADDER, COSTS, watch=self._watch)
        self._post_budget(0, budget)
        for newcomer in newcomers:
            self._arrive(newcomer, self._at(0))
        self.world.run(S)

    # What happens.

    @precondition(lambda self: len(self.tenants) < 6 + len(self.world.finished) + len(self.world.cancelled))
    @rule(newcomer=newcomers, later=soon)
    def admit(self, newcomer: Newcomer, later: int) -> None:
        self._arrive(newcomer, self._at(later))

    @rule(choice=budget_choices, later=soon)
    def change_budget(self, choice: BudgetChoice, later: int) -> None:
        self._post_budget(self._at(later), self._bytes(choice))

    @rule(choices=st.lists(budget_choices, min_size=2, max_size=4), gap=st.sampled_from((1, 7, 50)))
    def change_budget_between_two_tokens(self, choices: list[BudgetChoice], gap: int) -> None:
        for n, choice in enumerate(choices):
            self._post_budget(self._at(MS + n * gap * MS), self._bytes(choice))

    @rule(budget=st.sampled_from((64 * MIB, 40 * MIB, 14 * MIB)), ns=st.sampled_from((S, 3 * S, 5 * S)))
    def relax(self, budget: int, ns: int) -> None:
        self._post_budget(self._at(0), budget)
        self.world.run(self.world.now_ns + ns)

    @rule(size=st.sampled_from((1, MIB // 2, 3 * MIB, 12 * MIB)), later=soon)
    def others_allocate(self, size: int, later: int) -> None:
        self._post_budget(self._at(later), max(1, self.world.budget_bytes - size))

    @rule(ns=soon)
    def go_on(self, ns: int) -> None:
        self.world.run(self.world.now_ns + max(1, ns))

    @rule()
    def token(self) -> None:
        for _ in range(40):
            decoding = isinstance(self.world.scheduler.next_step(), DecodeStep)
            if not self.world.live() or decoding:
                break
        self.world.settle()

    @rule(choice=budget_choices)
    def drop_during_a_switch(self, choice: BudgetChoice) -> None:
        self._squeeze()
        self._live_until(lambda: any(self.world.switch_done_ns.values()))
        self.fired["drop during a switch"] += any(self.world.switch_done_ns.values())
        self._post_budget(self._at(0), min(self._bytes(choice), self.world.budget_bytes))
        self.world.run(self.world.now_ns + 60 * MS)

    @rule(choice=budget_choices)
    def drop_during_healing(self, choice: BudgetChoice) -> None:
        self._squeeze()
        healing = lambda: any(t.heal and t.settled < t.cells for t in self.world.state.tenants.values())  # noqa: E731
        self._live_until(healing)
        self.fired["drop during healing"] += healing()
        self._post_budget(self._at(0), min(self._bytes(choice), self.world.budget_bytes))
        self.world.run(self.world.now_ns + 60 * MS)

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), later=soon)
    def cancel(self, data: st.DataObject, later: int) -> None:
        number = data.draw(
            st.sampled_from([n for n, t in enumerate(self.tenants) if t.name in self.world.requests])
        )
        tenant = self.tenants[number]
        if tenant.leaves_ns is None:
            at_ns = self._at(later)
            self.tenants[number] = replace(tenant, leaves_ns=at_ns)
            self.world.post(e.TenantCancelled(at_ns=at_ns, tenant=tenant.name))

    # What must hold.

    @invariant()
    def rules_hold(self) -> None:
        self.fired["steps"] += 1
        for check in rules.WORLD_RULES:
            assert check(self.world) is None, check(self.world)

    def _history_holds(self) -> None:
        """What once broke these rules breaks them for ever: they are looked at in the end."""
        for check in rules.HISTORY_RULES:
            assert check(self.world) is None, check(self.world)
        for check in () if self.faulty else rules.CALM_HISTORY_RULES:
            assert check(self.world) is None, check(self.world)

    def _watch(self, world: BareWorld) -> None:
        """At the end of a round belief and truth agree, and the bound holds."""
        state = world.state
        assert world.scheduler.refusal is None
        assert violations(state, LADDER, self.policy) == []
        assert disagreements(state, LADDER, self.policy, world.memory) == []
        assert world.memory.usage_bytes <= usage_bytes_max(state, LADDER, self.policy)
        if isinstance(self.policy, Molt):
            for asked in world.asked[self.watched :]:
                for check in rules.DECISION_RULES:
                    broken = check(asked, LADDER, self.policy)
                    assert broken is None, f"{check.__name__}: {broken}"
        self.watched = len(world.asked)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.fired.update(type(fact).__name__ for _, fact, _ in self.world.records)
            self.fired["release withheld"] += sum(
                isinstance(fact, e.RungReleased) and fact.withheld_bytes > 0
                for _, fact, _ in self.world.records
            )
            self._enough_is_enough()
            if not self.faulty:
                self._the_simulator_agrees()

    def _enough_is_enough(self) -> None:
        """Liveness: when there has been enough for long enough, all have their answers, the last from the top rung."""
        self.world.faults = Faults(withheld_share=self.world.faults.withheld_share)
        left_out_ns = RETRY_NS_MAX if self.world.state.barred else 0
        self.world.run(self.world.now_ns + 3 * S + left_out_ns)
        witness = self._arrive(Newcomer(TenantKind.BATCH, 5, 120), self._at(0))
        self._post_budget(self._at(0), PLENTY)
        self.world.run(self.world.now_ns + 150 * S)
        left = self.world.requests.keys()
        assert not left, f"{sorted(left)} unfinished: {self.world.state}"
        tokens = [
            f for _, f, _ in self.world.records if isinstance(f, e.TokensProduced) and f.tenant == witness
        ]
        assert not isinstance(self.policy, Molt) or tokens[-1].rung == LADDER.top.name, tokens[-1]
        assert len(tokens) == 120
        self.rules_hold()
        self._history_holds()

    def _the_simulator_agrees(self) -> None:
        horizon_ns = self.world.now_ns + 7
        on = small.scenario(self.budgets, self.tenants, horizon_ns=horizon_ns, kill_after_ns=10**15)
        ran = small.simulate(self.policy, on)
        assert ran.violations == []
        both = reported_by_simulator(ran.records), reported_by(self.world, horizon_ns)
        for simulated, bare in zip(*both, strict=True):
            assert simulated == bare
        samples = [(r["at_ns"], r["usage_bytes"], r["budget_bytes"]) for r in ran.of("memory") if r["round"]]
        for simulated, bare in zip(samples, self.world.samples, strict=True):
            assert simulated == bare, f"(now, usage, budget): {simulated} and {bare}"

    # The script.

    def _at(self, later_ns: int) -> int:
        """A time from now on at which nothing else from outside happens, nor any step ends that began at another."""
        self.facts += 1
        ns = self.world.now_ns + later_ns
        return ns - ns % 10_000 + 10_000 + self.facts % 9_999 + 1

    def _post_budget(self, at_ns: int, budget: int) -> None:
        self.budgets.append((at_ns, budget))
        self.budgets.sort()
        self.world.post_budget(at_ns, budget)

    def _arrive(self, newcomer: Newcomer, at_ns: int) -> str:
        name = f"t{len(self.tenants)}"
        tenant = small.tenant(
            name,
            newcomer.kind,
            arrives_ns=at_ns,
            prompt_tokens=newcomer.prompt_tokens,
            max_tokens=newcomer.max_tokens,
        )
        self.tenants.append(tenant)
        self.world.post(arrival(tenant))
        return name

    def _bytes(self, choice: BudgetChoice) -> int:
        state = self.world.state
        admitted = [t for t in state.tenants.values() if t.phase is not Phase.WAITING]
        cells = [(LADDER.rung(t.cache_rung or "tier2"), t.cells) for t in admitted]
        anchors = {
            "nothing": 0,
            "now": self.world.budget_bytes,
            "usage": usage_bytes(state, LADDER),
            "peak": peak_bytes(state, LADDER),
            "caches": sum(rung.kv_bytes(n) for rung, n in cells),
            "bottom": LADDER.bottom.resident_bytes
            + sum(LADDER.bottom.kv_bytes(t.full_capacity) for t in state.tenants.values()),
        }
        return max(1, anchors[choice.anchor] + choice.offset_bytes)

    def _squeeze(self) -> None:
        """A tenant runs on the largest rung; then there is room for the next smaller one, and the switch to it."""
        if not self.world.caches:
            self._arrive(Newcomer(TenantKind.FOREGROUND, 300, 120), self._at(0))
        self._post_budget(self._at(0), PLENTY)
        self.world.run(self.world.now_ns + 5 * S)
        caches = sum(LADDER.top.kv_bytes(t.full_capacity) for t in self.world.state.tenants.values())
        self._post_budget(self._at(0), LADDER.rungs[1].resident_bytes + 2 * caches + 2 * MIB)

    def _live_until(self, reached: object) -> None:
        assert callable(reached)
        for _ in range(60):
            if reached() or not self.world.live():
                break
        self.world.settle()


class RestartMachine(CalmMachine):
    """The other policy that makes promises."""

    fired: ClassVar[Counter[str]] = Counter()

    @initialize(policy=st.just(Restart()), budget=first_budgets, newcomers=first_newcomers)
    def begin(self, policy: Policy, budget: int, newcomers: list[Newcomer]) -> None:  # type: ignore[override]
        self._begin(policy, budget, newcomers)


class FaultyMachine(CalmMachine):
    """Anything may happen, and it may go wrong."""

    fired: ClassVar[Counter[str]] = Counter()

    def _begin(self, policy: Policy, budget: int, newcomers: list[Newcomer]) -> None:
        super()._begin(policy, budget, newcomers)
        self.faulty = True

    @rule(times=st.integers(1, 2))
    def loads_fail(self, times: int) -> None:
        self.world.faults.failing_loads = times

    @rule(times=st.integers(1, 2))
    def switches_fail(self, times: int) -> None:
        self.world.faults.failing_switches = times

    @rule(spills=st.integers(0, 2), restores=st.integers(0, 2))
    def disk_fails(self, spills: int, restores: int) -> None:
        self.world.faults.failing_spills, self.world.faults.failing_restores = spills, restores

    @rule(choice=budget_choices)
    def loads_fail_as_the_budget_falls(self, choice: BudgetChoice) -> None:
        self._squeeze()
        self.world.faults.failing_loads = 2
        self._post_budget(self._at(0), min(self._bytes(choice), self.world.budget_bytes))
        self.world.run(self.world.now_ns + S)

    @rule(factor=st.sampled_from((1, 10)))
    def loads_are_slow(self, factor: int) -> None:
        self.world.faults.slowness = factor

    @rule(share=st.sampled_from((0.0, 0.1, 1.0)))
    def releases_keep(self, share: float) -> None:
        self.world.faults.withheld_share = share

    @rule(
        choice=budget_choices, delays_ns=st.sampled_from(((), (300 * MS,), (2 * S,), (0, 0), (0, 500 * MS)))
    )
    def signal_goes_wrong(self, choice: BudgetChoice, delays_ns: tuple[int, ...]) -> None:
        self.world.post_budget(self._at(0), self._bytes(choice), delays_ns)

    @rule(ns=st.sampled_from((S, 3600 * S)))
    def clock_jumps(self, ns: int) -> None:
        self.world.jump(ns)
        self.world.run(self.world.now_ns + 1)


LEVERS = {
    "Admit",
    "Defer",
    "Demote",
    "Promote",
    "Park",
    "Unpark",
    "Spill",
    "Shed",
    "Heal",
    "Release",
    "Load",
    "Switched",
}
EVERY_TIME = {
    CalmMachine: LEVERS | {"drop during a switch", "drop during healing", "TimerFired", "TenantCancelled"},
    RestartMachine: LEVERS - {"Heal", "Spill", "Switched", "Promote"},
    FaultyMachine: LEVERS | {"release withheld", "LoadFailed", "SwitchFailed"},
}
"""What must have happened by the end; otherwise the rules were kept by doing nothing."""

EXAMPLES = {CalmMachine: 25, RestartMachine: 10, FaultyMachine: 40}
"""By default; at night as many as the profile says."""


@pytest.mark.parametrize("machine", EXAMPLES, ids=lambda machine: machine.__name__)
def test_machine(machine: type[CalmMachine]) -> None:
    """Every named rule after every step; see the machine."""
    from hypothesis.stateful import run_state_machine_as_test

    night = settings.default.max_examples > 100
    examples = settings.default.max_examples if night else EXAMPLES[machine]
    machine.fired.clear()
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
    assert EVERY_TIME[machine] - (+machine.fired).keys() == set()
