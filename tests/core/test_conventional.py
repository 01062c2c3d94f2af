"""What the conventional policies decide, to the byte; ``tests/core/test_policies.py`` has them live."""

from __future__ import annotations

import pytest

from molt.core.events import TenantKind
from molt.core.plan import Plan, Rest, Run
from molt.core.state import Failure
from molt.core.view import Policy
from molt.policies.always_small import AlwaysSmall
from molt.policies.hold import Hold
from molt.policies.per_request import PerRequest
from molt.policies.restart import Restart
from tests.core.views import BOTTOM, NOW, ROOM, parked, peak, rungs, tenant, view
from tests.small import LADDER, MIB, S

ALONE = {rung.name: rung.resident_bytes + rung.kv_bytes(ROOM) for rung in LADDER.rungs}


@pytest.mark.parametrize(("policy", "rung"), [(Hold(), "tier0"), (AlwaysSmall(), "tier2")])
def test_two_know_one_rung(policy: Policy, rung: str) -> None:
    """Newcomers on it while they fit; tenants that are there stay, and so does what is loaded."""
    for budget, expected in ((ALONE[rung], rung), (ALONE[rung] - 1, "Wait")):
        assert rungs(policy.decide(view(budget, tenant("a")))) == {"a": expected}
    pressed = policy.decide(view(1, tenant("a", rung), resident=f"{rung} tier1"))
    assert (pressed.placements, pressed.keep, pressed.revisit_ns) == ({}, {rung, "tier1"}, None)


def test_per_request_begins_on_the_largest_that_fits_beside_the_others() -> None:
    policy = PerRequest()
    for budget, expected in (
        (ALONE["tier0"], "tier0"),
        (ALONE["tier0"] - 1, "tier1"),
        (ALONE["tier1"] - 1, "tier2"),
        (ALONE["tier2"] - 1, "Wait"),
    ):
        assert rungs(policy.decide(view(budget, tenant("a")))) == {"a": expected}
    beside = [tenant("a", "tier1"), tenant("b"), tenant("c")]
    enough = peak(Plan({"b": Run("tier1")}), *beside, resident="tier1")
    assert rungs(policy.decide(view(enough, *beside, resident="tier1"))) == {"b": "tier1", "c": "Wait"}
    assert rungs(policy.decide(view(enough - 1, *beside, resident="tier1"))) == {"b": "Wait", "c": "Wait"}


def test_per_request_moves_nobody_and_keeps_what_it_had_while_it_fits() -> None:
    policy = PerRequest()
    assert policy.decide(view(1, tenant("a", "tier0"), resident="tier0")) == Plan(
        {}, keep=frozenset({"tier0"})
    )
    for budget, keep in ((BOTTOM.resident_bytes, {"tier2"}), (BOTTOM.resident_bytes - 1, set())):
        assert policy.decide(view(budget, resident="tier2")).keep == keep


def test_restart_stays_or_goes_down_and_reads_again() -> None:
    one = tenant("a", "tier1")
    for rung, budget, expected in (
        ("tier1", 400 * MIB, "tier1"),
        ("tier1", ALONE["tier1"], "tier1"),
        ("tier1", ALONE["tier1"] - 1, "tier2"),
        ("tier1", ALONE["tier2"], "tier2"),
        ("tier1", ALONE["tier2"] - 1, "Rest"),
    ):
        plan = Restart().decide(view(budget, one, resident=rung))
        assert rungs(plan) == {"a": expected}, budget
        assert plan.placements["a"] in (Run(expected, carry=False), Rest(keep_cells=0))
    top = tenant("a", "tier0")
    assert rungs(Restart().decide(view(ALONE["tier0"], top, resident="tier0"))) == {"a": "tier0"}
    assert rungs(Restart().decide(view(ALONE["tier0"] - 1, top, resident="tier0"))) == {"a": "tier1"}


def test_restart_lets_as_many_run_as_fit_the_best_protected_first() -> None:
    three = [tenant("a", "tier2"), tenant("b", "tier2", kind=TenantKind.FOREGROUND), tenant("c", "tier2")]
    room = [BOTTOM.resident_bytes + BOTTOM.kv_bytes(n * ROOM) for n in range(4)]
    for budget, running in (
        (room[3], "abc"),
        (room[3] - 1, "ab"),
        (room[2], "ab"),
        (room[2] - 1, "b"),
        (room[1], "b"),
        (room[1] - 1, ""),
        (0, ""),
    ):
        plan = Restart().decide(view(budget, *three, tenant("d"), resident="tier2"))
        here = {name: "tier2" if name in running else "Rest" for name in "abc"}
        assert rungs(plan) == {**here, "d": "Wait"}, budget


def test_restart_comes_back_and_begins_where_it_can() -> None:
    """A tenant that stands still may come back on any rung; newcomers may begin on any while there is room."""
    resting = parked("a", "tier2", cells=0)
    for budget, rung in ((400 * MIB, "tier0"), (ALONE["tier0"] - 1, "tier1"), (ALONE["tier2"], "tier2")):
        assert rungs(Restart().decide(view(budget, resting))) == {"a": rung}
        assert rungs(Restart().decide(view(budget, tenant("a")))) == {"a": rung}
    two = [tenant("a"), tenant("b")]
    both = LADDER.top.resident_bytes + LADDER.top.kv_bytes(2 * ROOM)
    assert rungs(Restart().decide(view(both, *two))) == {"a": "tier0", "b": "tier0"}
    assert rungs(Restart().decide(view(both - 1, *two))) == {"a": "tier0", "b": "Wait"}
    assert rungs(Restart().decide(view(ALONE["tier2"] - 1, *two))) == {"a": "Wait", "b": "Wait"}


def test_restart_keeps_what_is_there_while_it_fits_and_looks_again_at_what_failed() -> None:
    for budget, keep in ((BOTTOM.resident_bytes, {"tier2"}), (BOTTOM.resident_bytes - 1, set())):
        assert Restart().decide(view(budget, resident="tier2")).keep == keep
    failed = Restart().decide(view(400 * MIB, tenant("a"), failures={"tier0": Failure(1, NOW)}))
    assert (rungs(failed), failed.revisit_ns) == ({"a": "tier1"}, NOW + S)
