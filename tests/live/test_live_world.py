"""The live world over a clock that only work moves: it decides as the simulator does, whatever goes wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.engine_protocol import (
    Decoded,
    Destination,
    EngineDied,
    LoadError,
    Request,
    SpillError,
    SwitchError,
)
from molt.core.ladder import Ladder
from molt.jobs.plugins import make_policy
from molt.jobs.replay import replay
from molt.jobs.scenario import ResolvedScenario
from molt.live.live_world import Decided, MemorySample
from molt.live.paced import Paced
from tests import small
from tests.bare import reported_by_simulator
from tests.live import stage
from tests.small import LADDER, MIB, MS, S
from tests.strategies import untied, worlds

POLICIES = {"molt": {"native_tokens": 0}, "restart": {}, "hold": {}, "always_small": {}, "per_request": {}}


def _rounds(records: list[dict[str, object]]) -> list[tuple[object, ...]]:
    kept = ("at_ns", "usage_bytes", "budget_bytes", "parts")
    return [tuple(r[key] for key in kept) for r in records if r["kind"] == "memory" and r["round"]]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12)
@given(on=worlds().map(untied))
def test_facts_and_decisions_are_the_simulators(name: str, on: ResolvedScenario) -> None:
    """Facts, decisions, their times, and memory after every round are the simulator's, if work takes what it costs."""
    on = dataclasses.replace(on, kill_after_ns=on.horizon_ns)
    policy = make_policy(name, POLICIES[name])
    ran = small.simulate(policy, on)
    lived = stage.play(policy, on, LADDER, small.COSTS)
    simulated, live = reported_by_simulator(ran.records), reported_by_simulator(lived.records)
    if (
        simulated and simulated[-1]["type"] == "PromptRead"
    ):  # reported by the simulator when all of it is done
        simulated = simulated[:-1]
    assert live[: len(simulated)] == simulated
    assert {line["type"] for line in live[len(simulated) :]} <= {"PromptRead"}
    assert _rounds(lived.records) == _rounds(ran.records)
    assert lived.violations == ran.violations


@settings(max_examples=20)
@given(on=worlds())
def test_its_log_decides_again_as_it_did(
    on: ResolvedScenario, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``molt replay`` finds every decision again."""
    lived = stage.play(make_policy("molt", {}), on, LADDER, small.COSTS)
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    path.write_text(lived.text, encoding="utf-8")
    again = replay(path)
    assert again.difference is None
    assert again.complete


def test_a_change_of_the_budget_counts_from_when_it_was_made() -> None:
    """Its record of memory is in between those before and after, although it was read at the next boundary."""
    on = small.scenario(
        [(0, 60 * MIB), (4 * S + 1, 20 * MIB)], [small.tenant(max_tokens=300)], horizon_ns=20 * S
    )
    lived = stage.play(make_policy("molt", {}), on, LADDER, small.COSTS)
    memory = [r for r in lived.records if r["kind"] == "memory"]
    assert [r["at_ns"] for r in memory] == sorted(r["at_ns"] for r in memory)
    first = next(r for r in memory if r["budget_bytes"] == 20 * MIB)
    assert first["at_ns"] == 4 * S + 1
    assert first["usage_bytes"] > 20 * MIB
    assert not first["round"]


# --- what goes wrong ---


class Faulty(Paced):
    """Fails as the class says: how many calls, of each kind, go wrong first."""

    loads = switches = spills = restores = 0
    dies_at: tuple[str, int] | None = None
    """The call in which the process dies, and the how manieth of its kind that is."""
    poison = ""
    """A tenant for whom it cannot decode."""

    def __init__(self, ladder: Ladder, costs: CostModel, elapse: Callable[[int], None]) -> None:
        super().__init__(ladder, costs, elapse)
        self.calls: dict[str, int] = {}

    def _may_die(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        if self.dies_at == (call, self.calls[call]):
            raise EngineDied(f"it ended during {call}: killed by SIGKILL", -9)

    def _fails(self, kind: str) -> bool:
        left = getattr(self, kind)
        setattr(self, kind, max(0, left - 1))
        return bool(left)

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        self._may_die("load")
        if self._fails("loads"):
            raise LoadError("no memory")
        return super().load(rung, within_ns)

    def release(self, rung: str) -> int:
        self._may_die("release")
        return super().release(rung)

    def admit(self, tenant: str, request: Request, rung: str, capacity: int) -> None:
        self._may_die("admit")
        super().admit(tenant, request, rung, capacity)

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        self._may_die("prefill")
        super().prefill(tenant, tokens, chunk, within_ns)

    def decode(self, tenant: str, count: int, heal: int = 0) -> Decoded:
        self._may_die("decode")
        if tenant == self.poison:
            raise EngineDied("it ended during decode: exit status 1", 1, tenant)
        return super().decode(tenant, count, heal)

    def switch(self, tenant: str, way: Destination, within_ns: int | None = None) -> e.Handoff | None:
        self._may_die("switch")
        if self._fails("switches"):
            raise SwitchError("it cannot be carried")
        return super().switch(tenant, way, within_ns)

    def park(self, tenant: str) -> int:
        self._may_die("park")
        return super().park(tenant)

    def spill(self, tenant: str) -> int:
        self._may_die("spill")
        if self._fails("spills"):
            raise SpillError("the disk is full")
        return super().spill(tenant)

    def restore(self, tenant: str) -> None:
        self._may_die("restore")
        super().restore(tenant)
        if self._fails("restores"):
            raise SpillError("not what was written")


ROUGH = small.scenario(
    [
        (0, 60 * MIB),
        (5 * S, 14 * MIB),
        (9 * S, MIB // 4),
        (11 * S, 60 * MIB),
        (20 * S, 12 * MIB),
        (30 * S, 60 * MIB),
    ],
    [small.tenant(max_tokens=150), small.tenant("late", e.TenantKind.BATCH, arrives_ns=S, max_tokens=60)],
    horizon_ns=200 * S,
)
"""A day on which everything happens: loads, switches, parks, spills, restores, and two answers that end."""


def _rough(**faults: object) -> stage.Played:
    engine = type("Chosen", (Faulty,), faults)
    return stage.play(make_policy("molt", {}), ROUGH, LADDER, small.COSTS, engine)


def _types(lived: stage.Played) -> set[str]:
    return {r["type"] for r in lived.records if "type" in r}


def _tokens_of_last_attempts(lived: stage.Played) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in lived.records:
        if record.get("type") == "TenantArrived":
            counts[record["tenant"]] = 0
        if record.get("type") == "TokensProduced":
            counts[record["tenant"]] += record["count"]
    return counts


def test_everything_happens_on_a_rough_day() -> None:
    """The scenario of the tests below has what they want to fail."""
    calls: list[dict[str, int]] = []

    class Counting(Faulty):
        def __init__(self, ladder: Ladder, costs: CostModel, elapse: Callable[[int], None]) -> None:
            super().__init__(ladder, costs, elapse)
            calls.append(self.calls)

    lived = stage.play(make_policy("molt", {}), ROUGH, LADDER, small.COSTS, Counting)
    assert lived.violations == []
    assert _tokens_of_last_attempts(lived) == {"chat": 150, "late": 60}
    assert {"Switched", "TenantParked", "CacheSpilled", "CacheRestored", "TenantFinished"} <= _types(lived)
    assert calls[0].keys() == {
        "load",
        "release",
        "admit",
        "prefill",
        "decode",
        "switch",
        "park",
        "spill",
        "restore",
    }


@pytest.mark.parametrize(
    ("faults", "fact"),
    [
        ({"loads": 1}, "LoadFailed"),
        ({"switches": 1}, "SwitchFailed"),
        ({"spills": 1}, "SpillFailed"),
        ({"restores": 1}, "RestoreFailed"),
    ],
    ids=["load", "switch", "spill", "restore"],
)
def test_a_failure_costs_time_and_no_token(faults: dict[str, object], fact: str) -> None:
    """Loads, switches and disks fail; every answer is complete all the same, and belief stays truth."""
    lived = _rough(**faults)
    assert fact in _types(lived)
    assert lived.violations == []
    assert _tokens_of_last_attempts(lived) == {"chat": 150, "late": 60}


@pytest.mark.parametrize(
    "dies_at",
    [
        *(("load", n) for n in (1, 2, 20)),
        *(("release", n) for n in (1, 2)),
        *(("admit", n) for n in (1, 2)),
        *(("prefill", n) for n in (1, 2)),
        *(("decode", n) for n in (1, 7, 90, 200)),
        *((call, 1) for call in ("switch", "park", "spill", "restore")),
    ],
    ids=lambda at: f"{at[0]} {at[1]}",
)
def test_a_death_anywhere_is_a_fact_and_answers_begin_anew(dies_at: tuple[str, int]) -> None:
    """In whatever call the engine dies, it is reported once, everything begins again, and all answers are complete."""
    lived = _rough(dies_at=dies_at)
    deaths = [r for r in lived.records if r["kind"] == "engine"]
    assert [(r["what"], r["status"]) for r in deaths] == [("ended", -9)]
    killed = next(i for i, r in enumerate(lived.records) if r.get("type") == "ProcessKilled")
    assert [r.get("type") for r in lived.records[killed:]].count("ProcessStarted") == 1
    after = next(r for r in lived.records[killed:] if r["kind"] == "memory")
    assert (after["usage_bytes"], after["parts"]["weights"], after["parts"]["kv"]) == (0, {}, {})
    broken = {violation["invariant"] for violation in lived.violations}
    assert broken <= {"process_is_alive"}
    assert _tokens_of_last_attempts(lived) == {"chat": 150, "late": 60}
    begun = {r["tenant"] for r in lived.records[:killed] if r.get("type") == "Admit"}
    again = [r for r in lived.records[killed:] if r.get("type") == "TenantArrived"]
    assert again
    assert {r["tenant"]: r["attempt"] for r in again} == {
        r["tenant"]: 1 + (r["tenant"] in begun) for r in again
    }


def test_a_tenant_that_every_engine_fails_at_is_given_up() -> None:
    """After three of them; before that it begins anew like all others, and the others come through."""
    lived = _rough(poison="chat")
    engines = [r for r in lived.records if r["kind"] == "engine"]
    assert [r["what"] for r in engines] == ["ended", "ended", "ended", "gave up"]
    arrivals = [
        r["attempt"] for r in lived.records if r.get("type") == "TenantArrived" and r["tenant"] == "chat"
    ]
    assert arrivals == [1, 2, 3]
    assert [r["tenant"] for r in lived.records if r.get("type") == "TenantCancelled"] == ["chat"]
    assert [r["tenant"] for r in lived.records if r.get("type") == "TenantFinished"] == ["late"]
    assert _tokens_of_last_attempts(lived)["late"] == 60
    assert {violation["invariant"] for violation in lived.violations} == {"process_is_alive"}


def test_who_leaves_frees_its_memory_at_the_next_boundary() -> None:
    """While reading and while decoding: no token later, no byte left."""
    tenants = [
        dataclasses.replace(small.tenant("reads", prompt_tokens=900), leaves_ns=2500 * MS),
        dataclasses.replace(
            small.tenant("decodes", arrives_ns=6 * S, prompt_tokens=4, max_tokens=200), leaves_ns=9 * S
        ),
    ]
    on = small.scenario([(0, 60 * MIB)], tenants, horizon_ns=20 * S)
    lived = stage.play(make_policy("molt", {}), on, LADDER, small.COSTS)
    gone = {r["tenant"]: i for i, r in enumerate(lived.records) if r.get("type") == "TenantCancelled"}
    assert gone.keys() == {"reads", "decodes"}
    for tenant, index in gone.items():
        work = ("PromptRead", "TokensProduced")
        done = [i for i, r in enumerate(lived.records) if r.get("type") in work and r["tenant"] == tenant]
        assert done
        assert max(done) < index
    last = [r for r in lived.records if r["kind"] == "memory"][-1]
    assert last["parts"]["kv"] == {}
    assert lived.violations == []


# --- a thread of its own ---


def test_records_reported_and_logged_are_the_same(tmp_path: Path) -> None:
    """Every fact, every decision with its number, and every sample of memory is reported, with its readings."""
    ladder, costs = LADDER, small.COSTS
    engine = Paced(ladder, costs, lambda ns: None)
    with stage.living(
        make_policy("molt", {}),
        ladder,
        costs,
        engine,
        tmp_path / "log",
        budget_bytes=60 * MIB,
        measure=lambda: {"group_bytes": 7},
    ) as life:
        request = small.tenant(max_tokens=5).request
        life.world.ask("a", e.TenantKind.FOREGROUND, request)
        with pytest.raises(ValueError, match="'a' is here already"):
            life.world.ask("a", e.TenantKind.FOREGROUND, request)
        life.until(stage.finished("a"))
        life.world.ask("a", e.TenantKind.FOREGROUND, request)
        life.until(lambda now: len(now.of(e.TenantFinished)) == 2)
    decisions = life.records("decision")
    assert [(r["seq"], r["type"]) for r in decisions] == [
        (one.seq, type(one.decision).__name__) for one in life.of(Decided)
    ]
    facts = life.records("event", "outcome")
    assert [r["type"] for r in facts] == stage.names(life.of(e.Event))
    memory = life.records("memory")
    assert [r["usage_bytes"] for r in memory] == [one.usage_bytes for one in life.of(MemorySample)]
    assert all(r["measured"] == {"group_bytes": 7} for r in memory)
    assert life.records("end")[0]["reason"] == "the test is over"
    assert replay(life.path).difference is None
