"""Releases that give back only a part: what is believed, what is done about it, and what the bound becomes."""

from __future__ import annotations

import pytest

from molt.core import events as e
from molt.core.bound import overshoot_bytes_max
from molt.core.budget import floor_bytes, usage_bytes
from molt.core.decisions import Load
from molt.core.state import State, after_decision, after_event
from molt.engine.modelled import ModelledEngine
from molt.jobs.plugins import make_policy
from tests import small
from tests.small import LADDER, MIB, S

HALF = LADDER.top.weight_bytes // 2


class Keeping(ModelledEngine):
    """An engine that gives back one half of its largest rung."""

    def release(self, rung: str) -> int:
        freed = super().release(rung)
        return freed - HALF if rung == "tier0" else freed


def test_what_does_not_come_back_is_usage_and_floor_until_the_rung_is_loaded_again() -> None:
    kept = e.RungReleased(at_ns=0, rung="tier0", freed_bytes=1, withheld_bytes=HALF)
    state = after_event(State(budget_bytes=HALF - 7), kept)
    assert usage_bytes(state, LADDER) == floor_bytes(state, LADDER, 0) == HALF
    assert overshoot_bytes_max(state, LADDER, make_policy("molt", {})) == 7
    again = after_decision(state, Load(rung="tier0"))
    assert usage_bytes(again, LADDER) == LADDER.top.resident_bytes
    assert after_event(again, kept) == again, "the load that was asked for meanwhile takes it over"
    whole = e.RungReleased(at_ns=1, rung="tier0", freed_bytes=1)
    assert after_event(state, whole).withheld == {}, "given up while it was loading, it gave everything back"
    assert after_event(state, e.ProcessKilled(at_ns=1)).withheld == {}


@pytest.mark.parametrize("name", ["molt", "restart"])
def test_less_is_used_where_less_came_back(name: str) -> None:
    """Without it 14 MiB are enough for the middle rung; with 13 MiB withheld only the smallest will do, if that."""
    on = small.scenario([(0, 60 * MIB), (8 * S, 14 * MIB), (20 * S, 60 * MIB)], horizon_ns=60 * S)
    ran = small.simulate(make_policy(name, {}), on, engine=Keeping)
    assert ran.violations == []
    assert ran.overshoot_max() <= 0
    assert ran.tokens("chat") == 100
    (first, *_) = ran.of("RungReleased")
    assert (first["withheld_bytes"], first["freed_bytes"]) == (HALF, LADDER.top.resident_bytes - HALF)
    rungs = {r["rung"] for r in ran.of("TokensProduced") if 9 * S < r["at_ns"] < 20 * S}
    assert rungs <= {"tier2"}


def test_below_what_is_withheld_the_overshoot_is_the_bound() -> None:
    """Nothing can be done about it, and the checkers know how much that is."""
    on = small.scenario([(0, 60 * MIB), (8 * S, MIB)], kill_after_ns=100 * S)
    ran = small.simulate(make_policy("molt", {}), on, engine=Keeping)
    assert ran.violations == []
    assert ran.overshoot_max() == HALF - MIB
