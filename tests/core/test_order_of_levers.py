"""Levers in order of harm: cases that broke it."""

from __future__ import annotations

from molt.core.events import TenantKind
from molt.plugins import make_policy
from tests import small
from tests.small import LADDER, S


def test_nobody_is_parked_for_a_person_who_waits_all_the_same() -> None:
    """Two run; a person comes who does not fit beside the first. Both go on, since parking the batch job helps nobody
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
