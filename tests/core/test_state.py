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
from molt.core.ladder import RouteKind
from molt.core.legality import RULES, first_refusal
from molt.core.plan import Plan, Rest, Run, Wait, outcome, requests
from molt.core.state import Phase, State, after_decision, after_event
from molt.core.turns import (
    PREFILL_CHUNK,
    SLICE_NS_MAX,
    TURN_TOKENS,
    DecodeStep,
    LoadStep,
    PrefillStep,
    SwitchStep,
    next_step,
    prefill_slice_ns,
    step_ns_max,
)
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
    assert next_step(state) == SwitchStep("chat", "tier0", "tier1", 99)
    state = after_event(
        state,
        e.Switched(
            at_ns=4, tenant="chat", source="tier0", dest="tier1", route="project", cells=99, duration_ns=1
        ),
    )
    assert state.tenants["chat"].capacity == 149
    assert peak_bytes(state, LADDER) == usage_bytes(state, LADDER) == MIDDLE.resident_bytes + 149 * 2048
    assert next_step(state) == DecodeStep("chat", "tier1", 50, 99, settled=99, heal=0)


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


def test_a_switch_under_way_is_sent_elsewhere_before_anything_is_released() -> None:
    """The cache is trimmed already: sending it on takes no more memory, and so waits for nothing."""
    state = decide(running(), Plan({"chat": Run("tier1")}))
    demote, release, load = requests(state, Plan({"chat": Run("tier2")}), LADDER, COSTS)
    assert isinstance(demote, d.Demote)
    assert (demote.source, demote.dest, demote.native) == ("tier0", "tier2", 16)
    assert (release.rung, load.rung) == ("tier1", "tier2")  # type: ignore[union-attr]
    (again,) = requests(state, Plan({"chat": Run("tier1", carry=False)}), LADDER, COSTS)
    assert isinstance(again, d.Demote)
    assert again.route is RouteKind.REREAD


def test_what_is_so_already_is_not_asked_for() -> None:
    state = running()
    by_another_name = "".join(["tier", "0"])
    for rung in ("tier0", by_another_name):
        assert requests(state, Plan({"chat": Run(rung, carry=False, heal=9)}), LADDER, COSTS) == []
    parked = decide(state, Plan({"chat": Rest()}))
    for rest in (Rest(), Rest(keep_cells=99), Rest(keep_cells=100)):
        assert requests(parked, Plan({"chat": rest}), LADDER, COSTS) == []
    empty = decide(parked, Plan({"chat": Rest(keep_cells=0)}))
    assert requests(empty, Plan({"chat": Rest(spill=True)}), LADDER, COSTS) == []
    spilled = decide(parked, Plan({"chat": Rest(spill=True)}))
    assert requests(spilled, Plan({"chat": Rest(spill=True)}), LADDER, COSTS) == []
    waiting = decide(arrived(state, "late"), Plan({"late": Wait()}))
    assert waiting.tenants["late"].deferred
    assert requests(waiting, Plan({"late": Wait()}), LADDER, COSTS) == []


def predicted(state: State, plan: Plan) -> list[d.AnyDecision]:
    return requests(state, plan, LADDER, COSTS)


def test_every_request_says_what_it_will_do() -> None:
    """Bytes freed for good, the peak on the way, the time it takes, and the expected divergence."""
    state, cell0, cell1 = running(), TOP.kv.bytes_per_token, MIDDLE.kv.bytes_per_token
    usage = usage_bytes(state, LADDER)
    demote, release, load = predicted(state, Plan({"chat": Run("tier1")}))
    trimmed = usage - 50 * cell0
    assert demote.prediction == d.Prediction(
        freed_bytes=149 * cell0 - 149 * cell1,
        peak_bytes=trimmed + 149 * cell1 + MIB,
        duration_ns=COSTS.switch_ns("tier0", "tier1", 99, 16),
        kl=COSTS.routes["tier0->tier1"].expected_kl(99, 16),
    )
    peak = MIDDLE.resident_bytes + 99 * cell0 + 149 * cell1 + MIB
    release_ns, load_ns = COSTS.rungs["tier0"].release_ns, COSTS.rungs["tier1"].load_ns
    assert release.prediction == d.Prediction(TOP.resident_bytes, peak - MIDDLE.resident_bytes, release_ns)
    assert load.prediction == d.Prediction(-MIDDLE.resident_bytes, peak, load_ns)
    again, *_ = predicted(state, Plan({"chat": Run("tier1", carry=False)}))
    freed = 149 * (cell0 - cell1)
    assert again.prediction == d.Prediction(freed, usage - freed, COSTS.rungs["tier1"].read.ns(99, 49))
    (park, *_) = predicted(state, Plan({"chat": Rest()}))
    assert park.prediction == d.Prediction(freed_bytes=50 * cell0, peak_bytes=trimmed)
    parked = decide(state, Plan({"chat": Rest()}))
    (spill,) = predicted(parked, Plan({"chat": Rest(spill=True)}))
    assert spill.prediction == d.Prediction(freed_bytes=99 * cell0, duration_ns=COSTS.spill_ns(99 * cell0))
    spilled = decide(parked, Plan({"chat": Rest(spill=True)}))
    back_ns = COSTS.restore_ns(99 * cell0)
    (back, _) = predicted(spilled, Plan({"chat": Run("tier0")}))
    assert back.prediction == d.Prediction(-149 * cell0, 149 * cell0, back_ns)
    (away, _) = predicted(spilled, Plan({"chat": Run("tier1")}))
    assert away.prediction.duration_ns == back_ns + COSTS.switch_ns("tier0", "tier1", 99, 16)
    (shed,) = predicted(parked, Plan({"chat": Rest(keep_cells=40)}))
    assert shed.prediction == d.Prediction(freed_bytes=59 * cell0, peak_bytes=40 * cell0)
    (on, _) = predicted(parked, Plan({"chat": Run("tier0")}))
    assert on.prediction == d.Prediction(-50 * cell0, 149 * cell0)
    unmeasured = requests(state, Plan({"chat": Run("tier1")}), LADDER, replace(COSTS, routes={}))
    assert (unmeasured[0].prediction.duration_ns, unmeasured[0].prediction.kl) == (0, 0.0)


def test_what_was_shed_is_read_again_with_room_for_it() -> None:
    """A cache that lost its oldest context is carried as it is; where it is not carried, all tokens come back."""
    shed = decide(decide(running(), Plan({"chat": Rest()})), Plan({"chat": Rest(keep_cells=40)}))
    (carried, _), (again, _) = (
        requests(shed, Plan({"chat": Run("tier1", carry=carry)}), LADDER, COSTS) for carry in (True, False)
    )
    assert isinstance(carried, d.Unpark)
    assert isinstance(again, d.Unpark)
    assert (carried.capacity, carried.native, carried.route) == (90, 16, RouteKind.PROJECT)
    assert (again.capacity, again.native, again.route) == (149, 0, RouteKind.REREAD)


def test_a_short_cache_is_read_natively_as_a_whole() -> None:
    demote, *_ = requests(running(prompt=100, read=5), Plan({"chat": Run("tier1")}), LADDER, COSTS)
    assert isinstance(demote, d.Demote)
    assert demote.native == 5


def test_rereading_drops_the_cache_at_once() -> None:
    state = decide(running(), Plan({"chat": Run("tier1", carry=False)}))
    chat = state.tenants["chat"]
    assert (chat.cache_rung, chat.read, chat.capacity) == ("tier1", 0, 149)
    assert reserved_bytes(state, LADDER) == 0
    assert next_step(state) == LoadStep("tier1")


def test_parking_keeps_the_cells_and_shedding_the_newest() -> None:
    parked = decide(running(), Plan({"chat": Rest()}))
    assert parked.tenants["chat"].phase is Phase.PARKED
    assert usage_bytes(parked, LADDER) == 99 * TOP.kv.bytes_per_token
    shed = decide(parked, Plan({"chat": Rest(keep_cells=40)}))
    assert (shed.tenants["chat"].cells, shed.tenants["chat"].read) == (40, 99)
    back = decide(shed, Plan({"chat": Run("tier0")}))
    assert back.tenants["chat"].capacity == 149 - 59
    assert floor_bytes(parked, LADDER, 40) == usage_bytes(shed, LADDER)
    assert next_step(parked) is None


def test_dropping_a_whole_cache_leaves_the_tokens_to_be_read_again() -> None:
    state = decide(decide(running(), Plan({"chat": Rest(keep_cells=0)})), Plan({"chat": Run("tier2")}))
    chat = state.tenants["chat"]
    assert (chat.cache_rung, chat.cells, chat.backlog, chat.capacity) == ("tier2", 0, 99, 149)


def test_a_kill_takes_everything() -> None:
    state = after_event(running(), e.ProcessKilled(at_ns=9))
    assert usage_bytes(state, LADDER) == 0
    assert not state.alive
    assert next_step(State(alive=False)) is None


def test_a_failed_switch_reads_again() -> None:
    state = decide(running(), Plan({"chat": Run("tier1")}))
    state = after_event(
        state, e.SwitchFailed(at_ns=3, tenant="chat", source="tier0", dest="tier1", reason="NaN in layer 3")
    )
    assert (state.tenants["chat"].cache_rung, state.tenants["chat"].backlog) == ("tier1", 99)


def test_facts_about_strangers_change_nothing() -> None:
    state = running()
    later = after_event(state, e.TokensProduced(at_ns=5, tenant="unknown", rung="tier0", count=3))
    assert replace(later, now_ns=state.now_ns) == state


# --- turns ---


def test_foreground_goes_first_and_batch_takes_turns() -> None:
    state = running()
    for name in ("b1", "b2"):
        state = arrived(state, name, TenantKind.BATCH, prompt=1)
        state = after_decision(state, d.Admit(tenant=name, rung="tier0", capacity=50))
    assert next_step(state) == DecodeStep("chat", "tier0", 50, 99, settled=99, heal=0)
    state = after_event(state, e.TenantFinished(at_ns=3, tenant="chat", reason="stop"))
    served = []
    for _ in range(4):
        step = next_step(state)
        assert isinstance(step, DecodeStep)
        served.append((step.tenant, step.tokens))
        state = after_event(
            state, e.TokensProduced(at_ns=4, tenant=step.tenant, rung="tier0", count=step.tokens)
        )
    assert served == [("b1", TURN_TOKENS), ("b2", TURN_TOKENS)] * 2


def test_only_a_peer_that_runs_is_a_rival() -> None:
    """Not one of the other kind, nor one that is parked or waits."""
    state = running(prompt=1, read=0)
    alone = DecodeStep("chat", "tier0", 50, 0, settled=0, heal=0)
    for kind, parked, rival in (
        (TenantKind.BATCH, False, False),
        (TenantKind.FOREGROUND, True, False),
        (TenantKind.FOREGROUND, False, True),
    ):
        beside = arrived(state, "other", kind, prompt=1)
        assert next_step(beside) == alone
        beside = after_decision(beside, d.Admit(tenant="other", rung="tier0", capacity=50))
        beside = after_decision(beside, d.Park(tenant="other")) if parked else beside
        assert next_step(beside) == (replace(alone, tokens=TURN_TOKENS) if rival else alone)


def test_who_comes_begins_level_with_the_last_of_its_peers() -> None:
    state = running(prompt=1, read=0)
    assert state.tenants["chat"].served == 0
    for name, kind, count in (("a", TenantKind.FOREGROUND, 30), ("b", TenantKind.BATCH, 20)):
        state = arrived(state, name, kind, prompt=1)
        state = after_decision(state, d.Admit(tenant=name, rung="tier0", capacity=50))
        state = after_event(state, e.TokensProduced(at_ns=3, tenant=name, rung="tier0", count=count))
    state = after_event(state, e.TokensProduced(at_ns=3, tenant="chat", rung="tier0", count=10))
    late = after_decision(arrived(state, "late", prompt=1), d.Admit(tenant="late", rung="tier0", capacity=50))
    assert late.tenants["late"].served == 10
    back = d.Unpark(tenant="a", source="tier0", dest="tier0", route=None, capacity=50)
    parked = after_decision(late, d.Park(tenant="a"))
    assert after_decision(parked, back).tenants["a"].served == 30


@given(cut=st.integers(1, TURN_TOKENS - 1))
def test_turns_do_not_depend_on_how_runs_are_cut(cut: int) -> None:
    """A turn that was interrupted goes on with the same tenant for what is left of it."""
    state = running(prompt=1, read=0)
    state = arrived(state, "other", prompt=1)
    state = after_decision(state, d.Admit(tenant="other", rung="tier0", capacity=50))
    state = after_event(state, e.TokensProduced(at_ns=4, tenant="chat", rung="tier0", count=cut))
    step = next_step(state)
    assert isinstance(step, DecodeStep)
    assert (step.tenant, step.tokens) == ("chat", TURN_TOKENS - cut)


def test_a_long_prompt_is_read_in_chunks_that_are_fast() -> None:
    """As large as pays, however slow the rung: what stops in time is a slice of a chunk."""
    step = next_step(running(prompt=500, read=0))
    assert isinstance(step, PrefillStep)
    assert (step.tokens, step.chunk) == (499, PREFILL_CHUNK)


@pytest.mark.parametrize(
    ("chunk_ns", "layers", "slice_ns"),
    [
        (SLICE_NS_MAX, 7, SLICE_NS_MAX),
        (7 * SLICE_NS_MAX, 7, SLICE_NS_MAX),
        (7 * SLICE_NS_MAX + 1, 7, SLICE_NS_MAX + 1),  # a layer is not stopped
        (70 * SLICE_NS_MAX, 7, 10 * SLICE_NS_MAX),
        (70 * SLICE_NS_MAX, 1, 70 * SLICE_NS_MAX),
    ],
)
def test_a_slice_of_prefill_is_short_or_one_layer(chunk_ns: int, layers: int, slice_ns: int) -> None:
    rung = replace(COSTS.rungs["tier0"], read=StepCost(chunk_ns, 0))
    assert prefill_slice_ns(rung, layers, PREFILL_CHUNK, 300) == slice_ns


def test_the_longest_step_is_a_slice_of_prefill_or_a_token() -> None:
    """A whole chunk where that is shorter than a slice, a token where that is longer; only tokens heal."""
    rung = replace(COSTS.rungs["tier0"], read=StepCost(0, 1), decode=StepCost(0, 70))
    assert step_ns_max(rung, 7, 300) == PREFILL_CHUNK
    assert step_ns_max(rung, 7, 300, heal_stretch=2.0) == 140
    slow = replace(rung, read=StepCost(700 * SLICE_NS_MAX, 0))
    assert step_ns_max(slow, 7, 300, heal_stretch=2.0) == 100 * SLICE_NS_MAX


# --- legality: each rule refuses what it is there for ---


@pytest.mark.parametrize(
    ("plan", "rule", "word"),
    [
        (Plan({"unknown": Wait()}), "names_are_known", "unknown"),
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


def test_an_answer_may_be_as_long_as_there_are_positions() -> None:
    for prompt, refused in ((TOP.max_positions - 50, None), (TOP.max_positions - 49, "answer_fits_rung")):
        refusal = first_refusal(
            arrived(running(), "long", prompt=prompt), Plan({"long": Run("tier0")}), LADDER
        )
        assert (refusal and refusal.rule) == refused


def test_growth_is_refused_to_the_byte_and_what_does_not_grow_is_not() -> None:
    state, up = running("tier2"), Plan({"chat": Run("tier1")})
    peak = peak_bytes(outcome(state, up, LADDER), LADDER)
    for budget, refused in ((peak, None), (peak - 1, "growth_fits")):
        refusal = first_refusal(replace(state, budget_bytes=budget), up, LADDER)
        assert (refusal and refusal.rule) == refused
    loading = replace(decide(state, up), budget_bytes=1)
    assert loading.loading
    assert first_refusal(loading, up, LADDER) is None
    assert first_refusal(loading, Plan({"chat": Rest(keep_cells=0)}), LADDER) is None


def test_a_load_is_growth_and_so_is_a_cache() -> None:
    """Each by itself: a smaller rung in place of a larger, and a parked cache that gets its room back."""
    down, loads = Plan({"chat": Run("tier1")}), replace(running(), budget_bytes=MIDDLE.resident_bytes)
    parked = decide(running(), Plan({"chat": Rest()}, keep=frozenset({"tier0"})))
    on, room = Plan({"chat": Run("tier0")}), replace(parked, budget_bytes=TOP.resident_bytes)
    for state, plan in ((loads, down), (room, on)):
        refusal = first_refusal(state, plan, LADDER)
        assert refusal is not None
        assert refusal.rule == "growth_fits"
    after = [outcome(state, plan, LADDER) for state, plan in ((loads, down), (room, on))]
    assert usage_bytes(after[0], LADDER) < usage_bytes(loads, LADDER)
    assert after[1].loading == frozenset()


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
