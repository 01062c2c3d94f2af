"""The same worlds run by others: another event engine, no collapsing, and a world written a second time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import simpy
from hypothesis import given, settings

import sim.world
from molt.jobs.plugins import make_policy
from molt.jobs.scenario import ResolvedScenario
from tests import heap_engine, small
from tests.bare import bare_run, reported_by, reported_by_simulator, story
from tests.small import COSTS, LADDER, MIB, MS, S
from tests.strategies import untied, worlds

POLICIES = ("molt", "restart", "hold")


class _AnyMoment(simpy.Environment):
    """Something may happen at any moment, so every run of tokens, chunks or readings ends at its first boundary."""

    def peek(self) -> float:
        return self.now


class _Expanded:
    Environment, Interrupt, Event = _AnyMoment, simpy.Interrupt, simpy.Event


def _with(engine: object, name: str, on: ResolvedScenario) -> small.Ran:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim.world, "simpy", engine)
        return small.simulate(make_policy(name, {}), on)


def _rounds(ran: small.Ran) -> list[tuple[int, int, int]]:
    return [(r["at_ns"], r["usage_bytes"], r["budget_bytes"]) for r in ran.of("memory") if r["round"]]


def _whole(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return lines[:-1] if lines and lines[-1]["type"] == "PromptRead" else lines


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12)
@given(on=worlds())
def test_another_event_engine_writes_the_same_log(name: str, on: ResolvedScenario) -> None:
    """simpy and eighty lines over a heap agree to the byte."""
    assert _with(heap_engine, name, on).text == _with(simpy, name, on).text


def test_the_engines_agree_on_a_prefill_that_the_horizon_cuts_off() -> None:
    """The end of the run is an event that both see coming: the chunks done by then are in the log."""
    on = small.scenario([(0, 64 << 20)], [small.tenant(prompt_tokens=600)], horizon_ns=4 * S)
    ran = _with(simpy, "hold", on)
    assert [record["tokens"] for record in ran.of("PromptRead")] == [384]
    assert _with(heap_engine, "hold", on).text == ran.text


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=8)
@given(on=worlds())
def test_collapsing_is_exact(name: str, on: ResolvedScenario) -> None:
    """A run of tokens as one event is reported with the same times as token by token; so are chunks.

    Except that a prefill which a kill or the horizon cuts off is not reported up to its last chunk.
    """
    on = dataclasses.replace(on, kill_after_ns=on.horizon_ns)
    collapsed, expanded = _with(simpy, name, on), _with(_Expanded, name, on)
    assert _whole(reported_by_simulator(collapsed.records)) == _whole(reported_by_simulator(expanded.records))
    assert _rounds(collapsed) == _rounds(expanded)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=8)
@given(on=worlds().map(untied))
def test_the_bare_world_tells_the_same(name: str, on: ResolvedScenario) -> None:
    """Facts, decisions, predictions and memory after every round agree with a world that was written apart."""
    on = dataclasses.replace(on, kill_after_ns=on.horizon_ns)
    ran = small.simulate(make_policy(name, {}), on)
    bare = bare_run(make_policy(name, {}), on, LADDER, COSTS)
    assert _whole(reported_by_simulator(ran.records)) == _whole(reported_by(bare, on.horizon_ns))
    assert _rounds(ran) == [sample for sample in bare.samples if sample[0] <= on.horizon_ns]


def test_a_timer_on_the_boundary_of_a_chunk_is_seen_there() -> None:
    """Regression: a load went on for one more chunk when something happened exactly at the end of one."""
    budgets = [(0, 60 * MIB), (200 * MS, 1), (400 * MS, 60 * MIB)]
    on = small.scenario(budgets, [small.tenant(prompt_tokens=1, max_tokens=5)], horizon_ns=9 * S)
    collapsed, expanded = (_with(engine, "molt", on) for engine in (simpy, _Expanded))
    assert _rounds(collapsed) == _rounds(expanded)
    assert [r["at_ns"] for r in collapsed.of("RungReleased")] == [200 * MS]


def test_stories_add_up_neighbours_only() -> None:
    """The comparison itself: two runs of one tenant are one, with something between them they are two."""
    token = {"type": "TokensProduced", "tenant": "a", "rung": "r", "heal": 0, "count": 1, "healed": 0}
    tokens = [{**token, "at_ns": n, "stamps_ns": [n], "pieces": []} for n in (1, 2, 3)]
    between = {"type": "TimerFired", "at_ns": 2}
    assert [line["at_ns"] for line in story(tokens)] == [3]
    assert story(tokens)[0]["stamps_ns"] == [1, 2, 3]
    assert [line["at_ns"] for line in story([*tokens[:2], between, tokens[2]])] == [2, 2, 3]
