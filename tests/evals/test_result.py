"""Files of tables are strict: what was written is read, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from molt.errors import InputError
from molt.evals import text_tables
from molt.evals.result import (
    HealingPace,
    LengthCost,
    Origin,
    RouteCost,
    SwitchCost,
    Times,
    joined,
    read,
    write,
)


def table() -> SwitchCost:
    """A small one, made up."""
    step = LengthCost(
        context=64,
        n=3,
        carry_ms=1 / 3,
        map_ms=0.125,
        map_load_ms=0.5,
        reread_ms=2.0,
        carry_flops=10,
        map_flops=5,
        reread_flops=100,
    )
    bare = Times(median_ms=0.5, p95_ms=0.6, longest_ms=0.75)
    healing = Times(median_ms=0.8, p95_ms=1.0, longest_ms=1.5)
    origin = Origin(
        command="molt eval switch-cost made-up",
        ladder="made-up",
        seed=0,
        commit="0" * 40,
        machine={"processor": "one", "cores": 2, "memory_bytes": 2**30, "system": "some"},
        threads=2,
        versions={"python": "3.11"},
    )
    route = RouteCost(
        source="a",
        dest="b",
        route="project",
        map_bytes=1024,
        steps=[step],
        crossover=64,
        crossover_with_load=None,
        healing=[HealingPace(context=64, tokens=8, n=32, bare=bare, healing=healing)],
    )
    return SwitchCost(table="switch-cost", origin=origin, islands=[4, 16], routes=[route])


def test_what_was_written_is_read_to_six_digits(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.json"
    write(path, table())
    found = read(path)
    assert isinstance(found, SwitchCost)
    assert found.routes[0].steps[0].carry_ms == 0.333333
    assert found.origin == table().origin


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("routes", 0, "steps", 0, "n"), "3"),
        (("routes", 0, "steps", 0, "carry_ms"), None),
        (("routes", 0, "unknown"), 1),
        (("routes", 0, "route"), "teleport"),
        (("table",), "other"),
    ],
)
def test_anything_else_is_refused_in_one_line(
    tmp_path: Path, place: tuple[str | int, ...], value: object
) -> None:
    path = tmp_path / "table.json"
    write(path, table())
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match=r"table\.json: not a table of molt eval") as refusal:
        read(path)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_and_a_missing_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.json")
    path = tmp_path / "table.json"
    content = table().model_dump()
    del content["origin"]["seed"]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match="seed"):
        read(path)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("molt eval handoff pico --text /home/me/texts", "molt eval handoff pico --text texts"),
        ("molt eval drift --text=/texts /a/b.yaml", "molt eval drift --text=texts b.yaml"),
        ("molt eval drift mine/pico.yaml --text texts", "molt eval drift mine/pico.yaml --text texts"),
    ],
)
def test_an_origin_says_nothing_of_a_machines_folders(given: str, kept: str) -> None:
    origin = Origin(command=given, ladder="", seed=0, commit="", machine={}, threads=1, versions={})
    assert origin.command == kept


def test_the_crossover_is_named_and_the_origin_is_told() -> None:
    grid, alone, healing = text_tables.grids(table())
    assert alone.rows == (("64", "0.125", "2", "16", "0", "95 %"),)
    assert healing.rows[0][:3] == ("8", "64", "32")
    assert healing.rows[0][-3:] == ("1.60", "2.00", "3.00")
    assert "with the map in memory from 64 tokens on" in grid.note
    assert "read from its file from no measured context on" in grid.note
    assert "| 64" in text_tables.markdown(grid).replace("|      64", "| 64")
    assert "molt eval switch-cost made-up" in text_tables.note(table())
    assert "seed 0" in text_tables.note(table())


def test_tables_made_one_route_at_a_time_become_one() -> None:
    one = table()
    other = one.model_copy(update={"routes": [one.routes[0].model_copy(update={"dest": "c"})]})
    made = joined([one, other])
    assert isinstance(made, SwitchCost)
    assert [route.dest for route in made.routes] == ["b", "c"]
    assert made.origin.command == f"{one.origin.command}; {one.origin.command}"


def test_tables_of_different_machines_or_seeds_stay_apart() -> None:
    other = table().model_copy(update={"origin": table().origin.model_copy(update={"seed": 1})})
    with pytest.raises(InputError, match="differ in origin"):
        joined([table(), other])
