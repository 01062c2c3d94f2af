"""The tables on the shipped rungs: rows stand in the order they must, and controls fail."""

from __future__ import annotations

from functools import cache

import pytest

from molt.core.ladder import Route
from molt.evals import baseline_maps
from molt.evals.drift import drift, journeys, tokens_needed
from molt.evals.handoff import all_recipes, check_gates, route_tables
from molt.evals.residuals import residuals
from molt.evals.result import JudgedRow, LengthCost, RouteTable
from molt.evals.setup import (
    JudgedText,
    LoadedLadder,
    Settings,
    TableSetup,
    documents,
    open_ladder,
    routes,
    texts,
)
from molt.evals.switch_cost import contexts, crossover, switch_cost
from molt.kv.transplant import Islands

SETTINGS = Settings(documents=4, context=160, continuation=16)
CONTROLS = (
    "no history",
    "zero cache",
    "another document's cache",
    "noise of the same moments",
    "own cache, K shuffled",
    "own cache, V shuffled",
)


@cache
def loaded_pico() -> LoadedLadder:
    return open_ladder("pico")


@cache
def some_texts() -> tuple[JudgedText, ...]:
    return texts(loaded_pico().spec, documents(None)[0], SETTINGS)


@cache
def made_with() -> TableSetup:
    return TableSetup(loaded_pico(), some_texts(), SETTINGS)


def unfit(*_: object, **__: object) -> baseline_maps.Sums:
    raise baseline_maps.Unfit("not in a test")


@cache
def table(source: str, dest: str) -> RouteTable:
    """The table of one route, without maps fitted on the spot."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline_maps, "collect", unfit)
        found = routes(loaded_pico().spec, source, dest)
        (made,) = route_tables(made_with(), found, all_recipes)
    return made


def row(source: str, dest: str, name: str) -> JudgedRow:
    return next(one for one in table(source, dest).rows if one.name.startswith(name))


def kl(source: str, dest: str, name: str) -> float:
    return row(source, dest, name).columns["kl"].mean


PROJECTING = [("tier0", "tier1"), ("tier1", "tier0")]
PRECISIONS = [("tier1", "tier2"), ("tier2", "tier1")]


@pytest.mark.parametrize(("source", "dest"), PROJECTING)
@pytest.mark.parametrize("control", CONTROLS)
def test_every_control_is_clearly_worse_than_the_mechanism(source: str, dest: str, control: str) -> None:
    assert kl(source, dest, control) > 1.5 * kl(source, dest, "full mechanism")


@pytest.mark.parametrize(("source", "dest"), PRECISIONS)
@pytest.mark.parametrize("control", CONTROLS)
def test_every_control_is_far_worse_than_a_carried_cache(source: str, dest: str, control: str) -> None:
    assert kl(source, dest, control) > 20 * kl(source, dest, "full mechanism")


@pytest.mark.parametrize(("source", "dest"), PROJECTING)
def test_the_own_cache_is_the_floor_whatever_it_is_called(source: str, dest: str) -> None:
    own = row(source, dest, "own cache (floor)")
    assert own.columns["kl"].mean == 0.0
    assert own.columns["recovered"].mean == own.columns["top1"].mean == 1.0
    assert own.columns["jsd_to_floor"].mean == 1.0
    for name in ("restart: re-read", "always small from the start"):
        assert row(source, dest, name).columns == own.columns
    assert row(source, dest, "no history").columns["recovered"].mean == 0.0


@pytest.mark.parametrize(("source", "dest"), PROJECTING)
def test_taking_a_part_away_makes_it_worse(source: str, dest: str) -> None:
    full = kl(source, dest, "full mechanism")
    for part in ("no last island", "no islands: the map alone", "no map: islands alone"):
        assert kl(source, dest, part) > full
    assert kl(source, dest, "no RoPE sandwich, same map") > 5 * full
    assert kl(source, dest, "native K, mapped V") < full


@pytest.mark.parametrize(("source", "dest"), PROJECTING)
def test_a_healed_cache_is_at_the_floor_and_healing_leads_there(source: str, dest: str) -> None:
    full, healing, healed = (
        row(source, dest, name).columns for name in ("full mechanism", "healing, 32 tokens", "after healing")
    )
    assert healed["kl"].mean < 1e-9 < 1e-3 < full["kl"].mean
    assert healed["jsd_to_floor"].mean == pytest.approx(1.0, abs=1e-6)
    assert healed["recovered"].mean == pytest.approx(1.0, abs=1e-5)
    assert 1e-4 < healing["kl"].mean < full["kl"].mean / 3  # the first tokens come before all is exact
    assert healing["kl@16"].mean < full["kl@16"].mean / 3


def test_a_text_that_ends_before_all_is_healed_has_no_healed_row() -> None:
    short = Settings(documents=2, context=160, continuation=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baseline_maps, "collect", unfit)
        (route,) = routes(loaded_pico().spec, "tier0", "tier1")
        recipes, left_out = all_recipes(TableSetup(loaded_pico(), some_texts(), short), route)
    assert "after healing" not in [one.name for one in recipes]
    assert left_out[0].row == "after healing"
    assert left_out[0].why == "it takes 6 steps, the text goes on for 5 tokens"


def test_the_source_going_on_is_not_divergent_from_itself() -> None:
    source = row("tier0", "tier1", "source, no switch")
    assert source.columns["jsd"].mean == pytest.approx(0.0, abs=1e-9)
    assert source.columns["kl"].mean > 0.1


def test_precisions_are_judged_against_the_better_one() -> None:
    for source, dest in PRECISIONS:
        assert table(source, dest).judged_against == "tier1"
    assert kl("tier1", "tier2", "own cache (floor)") > 0.0  # what computing in int8 costs by itself
    assert kl("tier2", "tier1", "own cache (floor)") == 0.0
    assert 0.0 < kl("tier2", "tier1", "full mechanism") < 0.01
    assert kl("tier2", "tier1", "diagonal re-alignment") < 0.01


def test_every_document_counts_and_positions_are_told() -> None:
    for one in table("tier0", "tier1").rows:
        assert len(one.by_document) == one.columns["kl"].n == SETTINGS.documents
        assert {"kl@1", "kl@16", "nll@16", "recovered@16"} <= set(one.columns)
        assert "kl@64" not in one.columns
        assert one.columns["kl@1"] == one.columns["kl_first"]


def test_only_what_one_would_do_has_a_cost_and_the_mechanism_saves_flops() -> None:
    made = table("tier0", "tier1")
    full, reread = (row("tier0", "tier1", name) for name in ("full mechanism", "restart: re-read"))
    assert full.cost is not None
    assert reread.cost is not None
    assert full.cost.flops < reread.cost.flops == made.reread_flops
    assert made.map is not None
    assert full.cost.map_bytes == made.map.bytes > 0
    assert row("tier0", "tier1", "zero cache").cost is None


def test_what_cannot_be_fitted_is_left_out_and_said() -> None:
    left_out = table("tier0", "tier1").left_out
    assert [one.row for one in left_out] == ["one source layer", "no RoPE sandwich, fitted so"]
    assert {one.why for one in left_out} == {"not in a test"}
    assert table("tier1", "tier2").left_out == []


def test_the_same_seed_gives_the_same_figures() -> None:
    found = routes(loaded_pico().spec, "tier1", "tier2")
    (again,) = route_tables(made_with(), found, all_recipes)
    for one, other in zip(table("tier1", "tier2").rows, again.rows, strict=True):
        assert one.columns == other.columns


def test_gates_pass_on_the_shipped_rungs() -> None:
    found = routes(loaded_pico().spec, None, None)
    gates = check_gates(loaded_pico(), found, some_texts())
    assert len(gates) == 3 * 6
    assert [gate.name for gate in gates if not gate.passed] == []


def test_a_first_switch_of_a_journey_is_a_single_one_and_later_ones_are_no_better() -> None:
    settings = Settings(documents=3, context=96, continuation=8)
    paths = journeys(routes(loaded_pico().spec, None, None), "tier0", "tier1")
    assert paths == [("tier0", "tier1", "tier0", "tier1")]
    longer = texts(loaded_pico().spec, documents(None)[0], tokens_needed(settings))
    made = drift(TableSetup(loaded_pico(), longer, settings), paths)
    (journey,) = made.paths
    first, alone = journey.rows[:2]
    assert first.columns == alone.columns
    assert len(journey.rows) == 6
    assert journey.rows[4].columns["kl"].mean > 0.5 * journey.rows[5].columns["kl"].mean > 0.0


def test_every_pair_of_rungs_is_travelled_once() -> None:
    paths = journeys(routes(loaded_pico().spec, None, None))
    assert [path[:2] for path in paths] == [("tier0", "tier1"), ("tier0", "tier2"), ("tier1", "tier2")]


def test_residuals_are_those_of_the_map_and_attention_notices_them() -> None:
    found = routes(loaded_pico().spec, "tier0", "tier1")
    made = residuals(made_with(), found)
    layers = made.routes[0].layers
    assert layers[0].attention_cosine.mean == pytest.approx(1.0, abs=1e-4)  # the first layer is exact
    assert layers[0].routing_tv.mean == pytest.approx(0.0, abs=1e-3)
    for layer in layers[1:]:
        assert layer.card_k is not None
        assert layer.residual_k.mean == pytest.approx(layer.card_k, rel=0.3)
        assert layer.attention_cosine.mean < 1.0
        assert layer.routing_tv.mean > 0.0


def test_a_native_cache_leaves_no_residual() -> None:
    """The measure itself: a carried cache that is the own one but for its last cell."""
    everything = Settings(documents=2, context=160, continuation=8, islands=Islands(159, 0))
    found = routes(loaded_pico().spec, "tier0", "tier1")
    few = texts(loaded_pico().spec, documents(None)[0], everything)
    made = residuals(TableSetup(loaded_pico(), few, everything), found)
    for layer in made.routes[0].layers:
        assert layer.attention_cosine.mean > 0.98
        assert layer.routing_top1.mean > 0.9


# --------------------------------------------------------------------------------------------------- cost of a switch


def test_contexts_double_as_far_as_positions_go() -> None:
    assert contexts(2048) == [64, 128, 256, 512, 1024, 1984]
    assert contexts(32768) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert contexts(32768, 300) == [64, 128, 256, 300]
    assert contexts(100) == []


def step(context: int, carry_ms: float, load_ms: float, reread_ms: float) -> LengthCost:
    return LengthCost(
        context=context,
        n=1,
        carry_ms=carry_ms,
        map_ms=None,
        map_load_ms=load_ms,
        reread_ms=reread_ms,
        carry_flops=1,
        map_flops=None,
        reread_flops=2,
    )


def test_the_crossover_is_where_carrying_stays_faster() -> None:
    steps = [step(64, 5, 9, 6), step(128, 9, 9, 8), step(256, 9, 9, 16), step(512, 9, 9, 32)]
    assert crossover(steps) == 256
    assert crossover(steps, with_load=True) == 512
    assert crossover(steps[:2]) is None


@pytest.mark.parametrize(("source", "dest"), [("tier0", "tier1"), ("tier1", "tier2")])
def test_both_ways_are_timed_at_every_length(source: str, dest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molt.evals.switch_cost.HEALING_STEPS", 2)
    found: tuple[Route, ...] = routes(loaded_pico().spec, source, dest)
    ids = some_texts()[0].known
    made = switch_cost(loaded_pico(), found, SETTINGS, ids, command="", longest=300, repeats=2)
    steps = made.routes[0].steps
    assert [one.context for one in steps] == [64, 128, 256, 300]
    assert all(one.n == 2 and one.carry_ms > 0 and one.reread_ms > 0 for one in steps)
    assert all(one.carry_flops < one.reread_flops for one in steps)
    if source == "tier0":
        assert all(one.map_flops < one.carry_flops and one.map_ms > 0 for one in steps)  # type: ignore[operator]
        assert [one.tokens for one in made.routes[0].healing] == [32, 16, 8, 4, 2, 1]
        assert all(one.context == 300 and one.n == 2 for one in made.routes[0].healing)
    else:
        assert all(one.map_flops is one.map_ms is None for one in steps)
        assert made.routes[0].healing == []
