"""What facts and decisions do to the belief, and what the belief says about bytes and turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.core import decisions as d
from molt.core import events as e
from molt.core.budget import cache_bytes, floor_bytes, peak_bytes, reserved_bytes, usage_bytes
from molt.core.costs import StepCost
from molt.core.events import TenantKind
from molt.core.legality import RULES, first_refusal
from molt.core.plan import Plan, Rest, Run, Wait, requests
from molt.core.state import Phase, State, after_decision, after_event
from molt.core.turns import TURN_TOKENS, DecodeStep, LoadStep, ReadStep, SwitchStep, next_step
from tests.small import COSTS, LADDER, MIB

TOP, MIDDLE, BOTTOM = LADDER.rungs


def arrived(
    state: State, name: str = "chat", kind: TenantKind = TenantKind.FOREGROUND, prompt: int = 100
) -> State:
    event = e.TenantArrived(
        at_ns=state.now_ns, tenant=name, tenant_kind=kind, prompt_tokens=prompt, max_tokens=50
    )
    return after_event(state, event)


def running(rung: str = "tier0", prompt: int = 100, read: int = 99) -> State:
    """One tenant that has read ``read`` tokens on a resident rung, under a budget of 60 MiB."""
    state = after_event(State(), e.BudgetChanged(at_ns=0, budget_bytes=60 * MIB))
    state = arrived(state, prompt=prompt)
    state = after_decision(state, d.Admit(tenant="chat", rung=rung, capacity=prompt + 49))
    state = after_decision(state, d.Load(rung=rung))
    state = after_event(state, e.RungLoaded(at_ns=1, rung=rung))
    return after_event(state, e.PromptRead(at_ns=2, tenant="chat", rung=rung, tokens=read))


def decide(state: State, plan: Plan) -> State:
    for decision in requests(state, plan, LADDER, COSTS):
        state = after_decision(state, decision)
    return state


def test_usage_is_the_sum_of_rungs_and_caches() -> None:
    state = running()
    assert usage_bytes(state, LADDER) == TOP.resident_bytes + 149 * TOP.kv.bytes_per_token
    assert usage_bytes(arrived(state, "late"), LADDER) == usage_bytes(state, LADDER)


def test_a_demotion_trims_reserves_and_lands() -> None:
    """Release first: after the decisions only the small rung, the trimmed cache and the reservation count."""
    state = decide(running(), Plan({"chat": Run("tier1")}))
    chat = state.tenants["chat"]
    assert state.occupied == {"tier1"}
    assert (chat.cache_rung, chat.target, chat.capacity) == ("tier0", "tier1", 99)
    assert usage_bytes(state, LADDER) == MIDDLE.resident_bytes + 99 * TOP.kv.bytes_per_token
    assert reserved_bytes(state, LADDER) == 149 * MIDDLE.kv.bytes_per_token + MIB  # new cache and map
    state = after_event(state, e.RungLoaded(at_ns=3, rung="tier1"))
    assert next_step(state, COSTS) == SwitchStep("chat", "tier0", "tier1", 99)
    state = after_event(
        state,
        e.Switched(
            at_ns=4, tenant="chat", source="tier0", dest="tier1", route="project", cells=99, duration_ns=1
        ),
    )
    assert state.tenants["chat"].capacity == 149
    assert peak_bytes(state, LADDER) == usage_bytes(state, LADDER) == MIDDLE.resident_bytes + 149 * 2048
    assert next_step(state, COSTS) == DecodeStep("chat", "tier1", 50, 99, settled=99, heal=0)


def test_the_order_of_decisions_is_release_first() -> None:
    kinds = [type(x).__name__ for x in requests(running(), Plan({"chat": Run("tier1")}), LADDER, COSTS)]
    assert kinds == ["Demote", "Release", "Load"]


def test_a_shared_rung_is_released_only_when_nobody_is_left_on_it() -> None:
    state = arrived(running(), "late", TenantKind.BATCH)
    state = after_decision(state, d.Admit(tenant="late", rung="tier0", capacity=149))
    one = requests(state, Plan({"chat": Run("tier1")}), LADDER, COSTS)
    both = requests(state, Plan({"chat": Run("tier1"), "late": Run("tier1")}), LADDER, COSTS)
    assert not any(isinstance(decision, d.Release) for decision in one)
    assert [x.rung for x in both if isinstance(x, d.Release)] == ["tier0"]


def test_going_back_before_the_switch_needs_no_route() -> None:
    """A demotion that is taken back before it landed finds the cache where it was."""
    state = decide(running(), Plan({"chat": Run("tier1")}))
    (_, promote, _) = requests(state, Plan({"chat": Run("tier0")}), LADDER, COSTS)
    assert isinstance(promote, d.Promote)
    assert promote.route is None
    assert decide(state, Plan({"chat": Run("tier0")})).tenants["chat"].capacity == 149


def test_rereading_drops_the_cache_at_once() -> None:
    state = decide(running(), Plan({"chat": Run("tier1", carry=False)}))
    chat = state.tenants["chat"]
    assert (chat.cache_rung, chat.read, chat.capacity) == ("tier1", 0, 149)
    assert reserved_bytes(state, LADDER) == 0
    assert next_step(state, COSTS) == LoadStep("tier1")


def test_parking_keeps_the_cells_and_shedding_the_newest() -> None:
    parked = decide(running(), Plan({"chat": Rest()}))
    assert parked.tenants["chat"].phase is Phase.PARKED
    assert usage_bytes(parked, LADDER) == 99 * TOP.kv.bytes_per_token
    shed = decide(parked, Plan({"chat": Rest(keep_cells=40)}))
    assert (shed.tenants["chat"].cells, shed.tenants["chat"].read) == (40, 99)
    back = decide(shed, Plan({"chat": Run("tier0")}))
    assert back.tenants["chat"].capacity == 149 - 59
    assert floor_bytes(parked, LADDER, 40) == usage_bytes(shed, LADDER)
    assert next_step(parked, COSTS) is None


def test_dropping_a_whole_cache_leaves_the_tokens_to_be_read_again() -> None:
    state = decide(decide(running(), Plan({"chat": Rest(keep_cells=0)})), Plan({"chat": Run("tier2")}))
    chat = state.tenants["chat"]
    assert (chat.cache_rung, chat.cells, chat.backlog, chat.capacity) == ("tier2", 0, 99, 149)


def test_a_kill_takes_everything() -> None:
    state = after_event(running(), e.ProcessKilled(at_ns=9))
    assert usage_bytes(state, LADDER) == 0
    assert not state.alive
    assert next_step(State(alive=False), COSTS) is None


def test_a_failed_switch_reads_again() -> None:
    state = decide(running(), Plan({"chat": Run("tier1")}))
    state = after_event(
        state, e.SwitchFailed(at_ns=3, tenant="chat", source="tier0", dest="tier1", reason="NaN in layer 3")
    )
    assert (state.tenants["chat"].cache_rung, state.tenants["chat"].backlog) == ("tier1", 99)


def test_facts_about_strangers_change_nothing() -> None:
    state = running()
    later = after_event(state, e.TokensProduced(at_ns=5, tenant="nobody", rung="tier0", count=3))
    assert replace(later, now_ns=state.now_ns) == state


# --- turns ---


def test_foreground_goes_first_and_batch_takes_turns() -> None:
    state = running()
    for name in ("b1", "b2"):
        state = arrived(state, name, TenantKind.BATCH, prompt=1)
        state = after_decision(state, d.Admit(tenant=name, rung="tier0", capacity=50))
    assert next_step(state, COSTS) == DecodeStep("chat", "tier0", 50, 99, settled=99, heal=0)
    state = after_event(state, e.TenantFinished(at_ns=3, tenant="chat", reason="stop"))
    served = []
    for _ in range(4):
        step = next_step(state, COSTS)
        assert isinstance(step, DecodeStep)
        served.append((step.tenant, step.tokens))
        state = after_event(
            state, e.TokensProduced(at_ns=4, tenant=step.tenant, rung="tier0", count=step.tokens)
        )
    assert served == [("b1", TURN_TOKENS), ("b2", TURN_TOKENS)] * 2


@given(cut=st.integers(1, TURN_TOKENS - 1))
def test_turns_do_not_depend_on_how_runs_are_cut(cut: int) -> None:
    """A turn that was interrupted goes on with the same tenant for what is left of it."""
    state = running(prompt=1, read=0)
    state = arrived(state, "other", prompt=1)
    state = after_decision(state, d.Admit(tenant="other", rung="tier0", capacity=50))
    state = after_event(state, e.TokensProduced(at_ns=4, tenant="chat", rung="tier0", count=cut))
    step = next_step(state, COSTS)
    assert isinstance(step, DecodeStep)
    assert (step.tenant, step.tokens) == ("chat", TURN_TOKENS - cut)


def test_a_long_prompt_is_read_in_chunks_short_enough_to_react() -> None:
    step = next_step(running(prompt=500, read=0), COSTS)
    assert isinstance(step, ReadStep)
    assert step.tokens == 499
    assert COSTS.rungs["tier0"].read.ns(step.chunk, 0) <= 250_000_000


def test_step_cost_is_affine() -> None:
    assert StepCost(10, 2, 0.5).ns(4, 6) == 10 + 8 + 12
    assert StepCost(0, 0).ns(1, 0) == 1


# --- legality: each rule refuses what it is there for ---


@pytest.mark.parametrize(
    ("plan", "rule", "word"),
    [
        (Plan({"nobody": Wait()}), "names_are_known", "nobody"),
        (Plan({"chat": Run("tier9")}), "names_are_known", "tier9"),
        (Plan({}, keep=frozenset({"tier9"})), "names_are_known", "tier9"),
        (Plan({"chat": Wait()}), "admitted_stay_admitted", "chat"),
        (Plan({"chat": Rest(keep_cells=-1)}), "shedding_is_sane", "-1"),
        (Plan({"long": Run("tier0")}), "answer_fits_rung", "3050"),
    ],
)
def test_illegal_plans_are_refused(plan: Plan, rule: str, word: str) -> None:
    state = arrived(running(), "long", prompt=3000)
    refusal = first_refusal(state, plan, LADDER)
    assert refusal is not None
    assert refusal.rule == rule
    assert word in refusal.reason


def test_growth_beyond_the_budget_is_refused() -> None:
    state = after_event(running("tier2"), e.BudgetChanged(at_ns=3, budget_bytes=20 * MIB))
    refusal = first_refusal(state, Plan({"chat": Run("tier0")}), LADDER)
    assert refusal is not None
    assert refusal.rule == "growth_fits"
    assert first_refusal(state, Plan({"chat": Run("tier1")}), LADDER) is None


def test_every_rule_says_in_a_sentence_what_it_is_for() -> None:
    assert all(rule.__doc__ and rule.__doc__.strip().endswith(".") for rule in RULES)


def test_cache_bytes_of_a_waiting_tenant_are_none() -> None:
    assert cache_bytes(arrived(State()).tenants["chat"], LADDER) == 0
