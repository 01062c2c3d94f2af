"""Who is let in beside whom, and which parameters of molt make no sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from molt.core.plan import Plan, Rest, Run, Wait
from molt.core.state import Phase, State, Tenant
from molt.core.view import View
from molt.jobs.plugins import make_policy
from molt.policies.admission import admit_while_room
from molt.policies.molt import Molt
from tests import small
from tests.small import COSTS, LADDER, S

TIER1 = LADDER.rung("tier1")


def newcomer(name: str, order: int, tokens: int) -> Tenant:
    kind = small.TenantKind.BATCH
    return Tenant(name, kind, attempt=1, order=order, prompt_tokens=tokens - 10, max_tokens=11)


def let_in(budget: int, *sizes: int) -> list[str]:
    """Of newcomers with caches of these sizes, in cells, those that are let in on tier1."""
    newcomers = [newcomer(f"t{order}", order, cells) for order, cells in enumerate(sizes)]
    view = View(State(budget_bytes=budget, tenants={t.name: t for t in newcomers}), LADDER, COSTS)
    plan = admit_while_room(view, Plan({}), newcomers, "tier1")
    assert set(plan.placements.values()) <= {Run("tier1"), Wait()}
    return [name for name, placement in plan.placements.items() if placement == Run("tier1")]


def test_nobody_is_overtaken_by_who_came_later() -> None:
    """The second has to wait for the first to leave; the third would fit, and waits behind it."""
    room = TIER1.resident_bytes + TIER1.kv_bytes(1000)
    assert let_in(room, 600, 300, 100) == ["t0", "t1", "t2"]
    assert let_in(room, 600, 500, 100) == ["t0"]
    assert let_in(room - TIER1.kv_bytes(1), 600, 300, 100) == ["t0", "t1"]


def test_who_would_not_fit_even_alone_holds_nobody_up() -> None:
    room = TIER1.resident_bytes + TIER1.kv_bytes(1000)
    assert let_in(room, 1001, 300, 700) == ["t1", "t2"]
    assert let_in(room, 1000, 300) == ["t0"]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("cooldown_ns", 0),
        ("margin", 0.0),
        ("min_cells", 8),
        ("heal_tokens", 0),
        ("heal_stretch", 1.0),
        ("native_tokens", 0),
        ("stall_ns", 0),
        ("spill_within_ns", 0),
    ],
)
def test_parameters_have_a_least_value(name: str, least: float) -> None:
    assert getattr(Molt(**{name: least}), name) == least
    below = least - (1 if isinstance(least, int) else 2**-30)
    with pytest.raises(ValueError, match="must"):
        Molt(**{name: below})


def test_parameters_left_out() -> None:
    said = {"cooldown": "2s", "margin": 0.05, "min_cells": 32, "heal_tokens": 32, "heal_stretch": 2.0}
    assert (
        make_policy("molt", {**said, "native_tokens": 16, "stall": "0s", "spill_within": "100ms"}) == Molt()
    )


def test_a_plan_fits_to_the_byte() -> None:
    one, placed = newcomer("t0", 0, 1000), Plan({"t0": Run("tier1")})
    room = TIER1.resident_bytes + TIER1.kv_bytes(1000)
    for budget, margin, fits in (
        (room, 0.0, True),
        (room - 1, 0.0, False),
        (2 * room, 0.5, True),
        (2 * room - 1, 0.5, False),
    ):
        view = View(State(budget_bytes=budget, tenants={"t0": one}), LADDER, COSTS)
        assert view.fits(placed, margin) is fits
        assert margin or view.fits_alone(one, "tier1") is fits
        assert view.peak_of(placed) == room
        assert (view.usage_bytes, view.level()) == (0, None)


def test_a_margin_is_a_share() -> None:
    with pytest.raises(ValueError, match="margin"):
        Molt(margin=1.0)
    assert Molt(margin=0.99).margin == 0.99


def test_a_margin_is_waited_for_and_not_made_by_writing_to_disk() -> None:
    """Regression: one would fit on the smallest rung beside the parked cache of another, without the margin of a
    recovery; that cache was written to disk to have the margin at once."""
    parked = {
        name: Tenant(
            name,
            small.TenantKind.BATCH,
            attempt=1,
            order=order,
            prompt_tokens=cells + 1,
            max_tokens=50,
            phase=Phase.PARKED,
            cache_rung="tier2",
            capacity=cells,
            read=cells,
        )
        for order, (name, cells) in enumerate({"a": 200, "b": 900}.items())
    }
    one_runs = LADDER.bottom.resident_bytes + LADDER.bottom.kv_bytes(250 + 900)
    state = State(now_ns=9 * S, budget_bytes=one_runs, tenants=parked, last_down_ns=9 * S)
    cooling = Molt(margin=0.2).decide(View(state, LADDER, COSTS))
    assert dict(cooling.placements) == {"a": Rest(), "b": Rest()}
    assert cooling.revisit_ns == 11 * S
    cool = Molt(margin=0.2).decide(View(replace(state, now_ns=11 * S), LADDER, COSTS))
    assert isinstance(cool.placements["a"], Run)
    assert cool.placements["b"] == Rest()
    less = Molt(margin=0.2).decide(
        View(replace(state, budget_bytes=one_runs - 1, now_ns=11 * S), LADDER, COSTS)
    )
    assert isinstance(less.placements["a"], Run)
    assert less.placements["b"] == Rest(spill=True)
