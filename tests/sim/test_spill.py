"""The lever spill in the simulated world: what the disk does to an answer, and what it cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from molt.core.engine_protocol import SpillError
from molt.engine.modelled import ModelledEngine
from molt.policies.molt import Molt
from tests.small import COSTS, MIB, S, scenario, simulate, tenant

BUDGETS = ((0, 60 * MIB), (10 * S, MIB // 4), (14 * S, 60 * MIB))
"""Nothing fits for four seconds in the middle of the answer, not even a parked cache."""


class NoDisk(ModelledEngine):
    """An engine whose disk is full."""

    def spill(self, tenant: str) -> int:
        raise SpillError("disk full")


class Forgetful(ModelledEngine):
    """An engine whose disk gives back something else."""

    def restore(self, tenant: str) -> None:
        super().restore(tenant)
        raise SpillError("not what was written")


def ran(engine: type[ModelledEngine] = ModelledEngine, **params: Any):  # type: ignore[no-untyped-def]
    on = scenario(BUDGETS, [tenant(prompt_tokens=400, max_tokens=200)], horizon_ns=90 * S)
    return simulate(Molt(**params), on, engine=engine)


def test_a_spilled_cache_comes_back_and_nothing_is_read_again() -> None:
    run = ran()
    assert not run.violations
    assert run.overshoot_max() <= 0
    spilled, restored = run.of("CacheSpilled")[0], run.of("CacheRestored")[0]
    assert restored["cells"] == spilled["cells"]
    assert spilled["duration_ns"] == COSTS.spill_ns(spilled["freed_bytes"])
    assert restored["duration_ns"] == COSTS.restore_ns(spilled["freed_bytes"])
    read = sum(r["tokens"] for r in run.of("PromptRead"))
    assert read == 399
    assert run.tokens("chat") == 200


@pytest.mark.parametrize("engine", [NoDisk, Forgetful])
def test_a_disk_that_fails_costs_reading_and_never_the_answer(engine: type[ModelledEngine]) -> None:
    run = ran(engine)
    assert not run.violations
    assert run.of("SpillFailed" if engine is NoDisk else "RestoreFailed")
    assert run.of("ProcessKilled") == []
    assert sum(r["tokens"] for r in run.of("PromptRead")) > 399
    assert run.tokens("chat") == 200


@pytest.mark.parametrize("before", [60 * MIB, 6 * MIB], ids=["to another rung", "to the same"])
def test_a_spill_that_fails_after_the_tenant_was_let_go_on_again_costs_reading(before: int) -> None:
    """Regression: a fall and a rise within one token. The spill is asked for, then its undoing, then the spill fails,
    and the tenant was believed to go on with a cache that has no room."""
    budgets = ((0, before), (5 * S + 1, MIB // 4), (5 * S + 2, 6 * MIB), (20 * S, 60 * MIB))
    on = scenario(budgets, [tenant(prompt_tokens=400, max_tokens=200)], horizon_ns=90 * S)
    run = simulate(Molt(), on, engine=NoDisk)
    assert not run.violations
    (failed, *_), (unpark, *_) = run.of("SpillFailed"), run.of("Unpark")
    assert unpark["seq"] < failed["seq"]
    assert run.tokens("chat") == 200


def test_a_disk_that_is_too_slow_is_not_used() -> None:
    run = ran(spill_within_ns=1)
    assert run.of("CacheSpilled") == []
    assert run.of("ContextShed")
    assert run.tokens("chat") == 200


def test_a_second_drop_before_the_cache_is_back_loses_nothing() -> None:
    """Unparked, then parked again while the rung was still loading: the cache stays on disk."""
    budgets = (*BUDGETS, (14 * S + S // 10, MIB // 4), (20 * S, 60 * MIB))
    on = scenario(budgets, [tenant(prompt_tokens=400, max_tokens=200)], horizon_ns=90 * S)
    run = simulate(Molt(), on)
    assert not run.violations
    assert len(run.of("CacheSpilled")) == len(run.of("CacheRestored")) == 1
    assert sum(r["tokens"] for r in run.of("PromptRead")) == 399
    assert run.tokens("chat") == 200
