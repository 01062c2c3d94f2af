"""What molt decides, to the byte, the cell and the nanosecond; ``tests/core/test_policies.py`` has it live."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from molt.core.events import TenantKind
from molt.core.plan import Plan, Rest, Run, Wait
from molt.core.state import Failure
from molt.policies.molt import Molt
from tests.core.views import BOTTOM, CELLS, NOW, ROOM, parked, peak, rungs, tenant, view
from tests.small import COSTS, LADDER, MIB, S

HALF = Molt(margin=0.5, heal_tokens=0)
"""A recovery needs twice the bytes: to the byte, since halves are exact."""
COOL = HALF.cooldown_ns
PERSON = TenantKind.FOREGROUND


# --- up again ---


def test_up_takes_the_margin_and_both_rungs_are_held_where_they_fit() -> None:
    one = tenant("a", "tier1")
    alone = 2 * peak(Plan({"a": Run("tier0")}), one, resident="tier1")
    both = 2 * peak(Plan({"a": Run("tier1")}, keep=frozenset({"tier0"})), one, resident="tier1")
    assert alone < both
    for budget, rung, keep in (
        (alone - 1, "tier1", set()),
        (alone, "tier0", set()),
        (both - 1, "tier0", set()),
        (both, "tier1", {"tier0"}),
    ):
        plan = HALF.decide(view(budget, one, resident="tier1"))
        assert (rungs(plan), plan.keep, plan.revisit_ns) == ({"a": rung}, keep, None), budget
    assert rungs(HALF.decide(view(both, one, resident="tier1 tier0"))) == {"a": "tier0"}


@pytest.mark.parametrize("change", ["last_down_ns", "last_up_ns"])
def test_up_takes_the_cool_down(change: str) -> None:
    """Counted from the last change, down or up, to the nanosecond; until then molt asks to be asked again."""
    one, plenty = tenant("a", "tier1"), 400 * MIB
    cooling = HALF.decide(view(plenty, one, resident="tier1", **{change: NOW - COOL + 1}))
    assert (rungs(cooling), cooling.keep, cooling.revisit_ns) == ({"a": "tier1"}, set(), NOW + 1)
    cool = HALF.decide(view(plenty, one, resident="tier1", **{change: NOW - COOL}))
    assert (cool.keep, cool.revisit_ns) == ({"tier0"}, None)
    both = {"last_down_ns": NOW - 9 * COOL, "last_up_ns": NOW - 9 * COOL, change: NOW}
    assert HALF.decide(view(plenty, one, resident="tier1", **both)).revisit_ns == NOW + COOL


def test_staying_takes_neither() -> None:
    one = tenant("a", "tier1")
    enough = peak(Plan({}), one, resident="tier1")
    for budget, rung in ((enough, "tier1"), (enough - 1, "tier2")):
        assert rungs(HALF.decide(view(budget, one, resident="tier1", last_down_ns=NOW))) == {"a": rung}


def test_who_stands_still_comes_back_sooner() -> None:
    """While it cools, on the smallest rung and with the margin; afterwards on any, and without."""
    one = parked("a", "tier2")
    enough = {rung.name: peak(Plan({"a": Run(rung.name)}), one) for rung in LADDER.rungs}
    for budget, cooling, cool in (
        (enough["tier2"] - 1, "Rest", "Rest"),
        (enough["tier2"], "Rest", "tier2"),
        (2 * enough["tier2"] - 1, "Rest", "tier2"),
        (2 * enough["tier2"], "tier2", "tier2"),
        (enough["tier1"], "tier2", "tier1"),
        (enough["tier0"] - 1, "tier2", "tier1"),
        (enough["tier0"], "tier2", "tier0"),
        (400 * MIB, "tier2", "tier0"),
    ):
        assert rungs(HALF.decide(view(budget, one, last_down_ns=NOW))) == {"a": cooling}, budget
        assert rungs(HALF.decide(view(budget, one, last_down_ns=NOW - COOL))) == {"a": cool}, budget


def test_one_after_the_other_comes_back() -> None:
    """Of three, one runs; while it cools a second may join it, with the margin, and the third if that suffices."""
    three = [tenant("a", "tier2"), parked("b", "tier2"), parked("c", "tier2")]
    runs = {name: Run("tier2") for name in "abc"}
    two = peak(Plan({**runs, "c": Rest()}), *three, resident="tier2")
    for budget, running in (
        (two, "a"),
        (2 * two - 1, "a"),
        (2 * two, "ab"),
        (2 * peak(Plan(runs), *three, resident="tier2") - 1, "ab"),
        (2 * peak(Plan(runs), *three, resident="tier2"), "abc"),
        (400 * MIB, "abc"),
    ):
        plan = HALF.decide(view(budget, *three, resident="tier2", last_down_ns=NOW))
        assert rungs(plan) == {name: "tier2" if name in running else "Rest" for name in "abc"}, budget
    cool = HALF.decide(view(two, *three, resident="tier2"))
    assert rungs(cool) == {"a": "tier2", "b": "tier2", "c": "Rest"}


def test_who_is_to_run_on_a_rung_that_cannot_be_had_goes_to_a_larger_one() -> None:
    """Regression: the smallest rung failed to load just after a change; its tenant was parked for the cool-down,
    although a larger rung fitted."""
    one = tenant("a", "tier2")
    failed = {"failures": {"tier2": Failure(1, NOW)}, "last_down_ns": NOW}
    read_again = peak(Plan({"a": Run("tier1", carry=False)}), one)
    for budget, rung in ((read_again - 1, "Rest"), (read_again, "tier1"), (400 * MIB, "tier0")):
        plan = HALF.decide(view(budget, one, **failed))
        assert rungs(plan) == {"a": rung}, budget
    assert plan.revisit_ns == NOW + S, "when the rung may be tried again"


# --- who is let in, and who makes room ---


def test_a_person_is_let_in_beside_whom_there_is_room_for() -> None:
    """Batch jobs go aside for a person, the latest first, and only where the person then runs."""
    admitted = [tenant("a", "tier2"), tenant("b", "tier2")]
    person = tenant("c", kind=PERSON)
    stays = Plan({"c": Wait()})
    all_run = Plan({name: Run("tier2") for name in "abc"})
    one_aside = Plan({**all_run.placements, "b": Rest()})
    two_aside = Plan({**one_aside.placements, "a": Rest()})
    peaks = [peak(plan, *admitted, person, resident="tier2") for plan in (two_aside, one_aside, all_run)]
    assert peaks == sorted(peaks)
    policy = replace(HALF, spill_within_ns=0)
    for budget, expected in (
        (peaks[0], two_aside),
        (peaks[1] - 1, two_aside),
        (peaks[1], one_aside),
        (peaks[2] - 1, one_aside),
        (peaks[2], all_run),
    ):
        plan = policy.decide(view(budget, *admitted, person, resident="tier2"))
        assert rungs(plan) == rungs(expected), budget
    less = policy.decide(view(peaks[0] - 1, *admitted, person, resident="tier2"))
    assert rungs(less)["c"] == "Wait"
    other = policy.decide(view(peaks[2] - 1, *admitted, tenant("c"), resident="tier2"))
    assert other.placements["c"] == stays.placements["c"], "a batch job waits for room"
    assert rungs(other) == {"a": "tier2", "b": "tier2", "c": "Wait"}


def test_the_first_who_can_run_at_all_begins() -> None:
    """No tenant has begun: the first that fits on the smallest rung begins, and on the largest that fits."""
    newcomers = [tenant("a", prompt_tokens=2000), tenant("b"), tenant("c")]
    enough = BOTTOM.resident_bytes + BOTTOM.kv_bytes(ROOM)
    for budget, rung in (
        (enough - 1, "Wait"),
        (enough, "tier2"),
        (enough + BOTTOM.kv_bytes(ROOM) - 1, "tier2"),
    ):
        assert rungs(HALF.decide(view(budget, *newcomers))) == {"a": "Wait", "b": rung, "c": "Wait"}
    largest = LADDER.top.resident_bytes + LADDER.top.kv_bytes(ROOM)
    for budget, rung in ((largest - 1, "tier1"), (largest, "tier0")):
        assert rungs(HALF.decide(view(budget, newcomers[1]))) == {"b": rung}


def test_further_newcomers_take_the_margin() -> None:
    newcomers = [tenant("a"), tenant("b")]
    both = LADDER.top.resident_bytes + LADDER.top.kv_bytes(2 * ROOM)
    for budget, second in ((2 * both - 1, "Wait"), (2 * both, "tier0")):
        assert rungs(HALF.decide(view(budget, *newcomers))) == {"a": "tier0", "b": second}


def test_nobody_there_keeps_what_is_there_while_it_fits() -> None:
    for budget, keep in ((BOTTOM.resident_bytes, {"tier2"}), (BOTTOM.resident_bytes - 1, set())):
        assert HALF.decide(view(budget, resident="tier2")).keep == keep


# --- what is put aside, and what is given up ---


def test_all_are_parked_where_nobody_can_run() -> None:
    two = [tenant("a", "tier2"), tenant("b", "tier2")]
    parking = sum(BOTTOM.kv_bytes(CELLS) for _ in two)
    plan = Molt().decide(view(parking, *two, resident="tier2"))
    assert plan.placements == {"a": Rest(), "b": Rest()}


def test_who_goes_on_beside_the_parked_takes_its_cache_along_where_that_fits() -> None:
    short = {"prompt_tokens": 11, "read": 10, "settled": 10, "capacity": 109}
    two = [tenant("a", "tier1", **short), tenant("b", "tier1")]
    carrying = peak(Plan({"a": Run("tier2"), "b": Rest()}), *two, resident="tier1")
    for budget, carry in ((carrying, True), (carrying - 1, False)):
        plan = Molt().decide(view(budget, *two, resident="tier1"))
        assert plan.placements == {"a": Run("tier2", carry=carry), "b": Rest()}


def test_as_much_is_written_to_disk_as_is_needed_and_can_be_in_time() -> None:
    """The least protected first, one byte a nanosecond; what is on disk, or empty, is not written."""
    size = BOTTOM.kv_bytes(CELLS)
    three = [parked("a", "tier2", kind=PERSON), parked("b", "tier2"), parked("c", "tier2")]
    gone = [parked("d", "tier2", cells=0), parked("e", "tier2", capacity=0, spilled=True)]
    kept, spilled = Rest(), Rest(spill=True)
    for budget, within, expected in (
        (2 * size, size, (kept, kept, spilled)),
        (2 * size - 1, 2 * size, (kept, spilled, spilled)),
        (size, 2 * size, (kept, spilled, spilled)),
        (size - 1, 3 * size, (spilled, spilled, spilled)),
    ):
        plan = Molt(spill_within_ns=within).decide(view(budget, *three, *gone))
        assert [plan.placements[name] for name in "abc"] == list(expected), budget
        assert [plan.placements[name] for name in "de"] == [kept, kept]
    for budget, within, expected in (
        (2 * size, size - 1, (kept, Rest(keep_cells=CELLS - 32), Rest(keep_cells=32))),
        (2 * size - 1, 2 * size - 1, (kept, Rest(keep_cells=CELLS - 1), spilled)),
    ):
        plan = Molt(spill_within_ns=within).decide(view(budget, *three))
        assert [plan.placements[name] for name in "abc"] == list(expected), "what is too slow is shed"


begun = st.tuples(st.sampled_from(TenantKind), st.sampled_from(("tier0", "tier1")), st.integers(0, 300))


@given(st.lists(begun, min_size=1, max_size=4), st.integers(0, BOTTOM.resident_bytes - 1))
def test_no_more_context_is_lost_than_must_be(those: list[tuple[TenantKind, str, int]], budget: int) -> None:
    """All to the least, the least protected first and the last of them to the cell; only then whole caches."""
    policy = Molt(spill_within_ns=0)
    tenants = [
        parked("abcd"[n], rung, cells, kind=kind, prompt_tokens=301)
        for n, (kind, rung, cells) in enumerate(those)
    ]
    plan = policy.decide(view(budget, *tenants, last_down_ns=NOW))
    if view(0, *tenants).usage_bytes <= budget:
        assert set(plan.placements.values()) == {Rest()}
        return
    kept, size = {}, {t.name: LADDER.rung(t.cache_rung or "").kv.bytes_per_token for t in tenants}
    for t in tenants:
        placement = plan.placements[t.name]
        assert isinstance(placement, Rest)
        kept[t.name] = t.cells if placement.keep_cells is None else placement.keep_cells
    free = budget - sum(kept[name] * size[name] for name in kept)
    assert free >= 0
    order = sorted(tenants, key=lambda t: (t.kind is PERSON, -t.order))
    least = {t.name: min(t.cells, policy.min_cells) for t in tenants}
    if all(kept[name] >= least[name] for name in kept):
        lost = [t.name for t in order if kept[t.name] < t.cells]
        assert lost == [t.name for t in order if t.cells > least[t.name]][: len(lost)]
        assert all(kept[name] == least[name] for name in lost[:-1])
        assert free < size[lost[-1]]
    else:
        assert sum(least[name] * size[name] for name in least) > budget
        whole = [t.name for t in order if least[t.name] and not kept[t.name]]
        assert whole == [t.name for t in order if least[t.name]][: len(whole)]
        assert all(kept[t.name] == least[t.name] for t in tenants if t.name not in whole)
        assert free < least[whole[-1]] * size[whole[-1]]


# --- the dial, and healing ---


@given(st.integers(1, 1500), st.integers(0, 16), st.integers(0, 8 * S))
@example(CELLS, 16, COSTS.switch_ns("tier0", "tier1", CELLS, 64))
@example(CELLS, 16, COSTS.switch_ns("tier0", "tier1", CELLS, 64) - 1)
@example(CELLS, 16, COSTS.switch_ns("tier0", "tier1", CELLS, CELLS))
@example(1500, 16, COSTS.switch_ns("tier0", "tier1", 1500, 1024))
def test_as_much_is_read_natively_as_the_stall_allows(cells: int, least: int, stall_ns: int) -> None:
    """All of the cache, or a power of two of its last tokens from 32 to 1,024; else what is always read so."""
    one = tenant("a", "tier0", prompt_tokens=cells + 1, read=cells, settled=cells, capacity=cells + 99)
    plan = Molt(native_tokens=least, stall_ns=stall_ns).decide(view(26 * MIB, one, resident="tier0"))
    within = [
        tokens
        for tokens in (cells, *(1 << n for n in range(5, 11)))
        if tokens > least and COSTS.switch_ns("tier0", "tier1", cells, tokens) <= stall_ns
    ]
    expected = cells if cells in within else max(within, default=least)
    assert plan.placements["a"] == Run("tier1", native=expected)


def test_a_route_without_times_is_read_natively_as_little_as_may_be() -> None:
    one = tenant("a", "tier0")
    unmeasured = replace(view(20 * MIB, one, resident="tier0"), costs=replace(COSTS, routes={}))
    assert Molt(stall_ns=9 * S).decide(unmeasured).placements["a"] == Run("tier1", native=16)


def test_what_is_carried_is_healed_where_it_is_to_stay() -> None:
    one = tenant("a", "tier1", settled=4)
    healed, exact = Run("tier1", heal=8), Run("tier1")
    small_budget = peak(Plan({}), one, resident="tier1")
    for changes, expected in (({}, healed), ({"settled": CELLS - 1}, healed), ({"settled": CELLS}, exact)):
        plan = Molt().decide(view(small_budget, replace(one, **changes), resident="tier1"))
        assert plan.placements["a"] == expected
    bringing = Molt().decide(view(400 * MIB, one, resident="tier1"))
    assert (bringing.placements["a"], bringing.keep) == (exact, {"tier0"}), "a larger rung is on its way"
    for changes, tokens in (({"heal_tokens": 4}, 4), ({"heal_tokens": 0}, 0), ({"heal_stretch": 1.3}, 2)):
        plan = Molt(**changes).decide(view(small_budget, one, resident="tier1"))
        assert plan.placements["a"] == Run("tier1", heal=tokens)
