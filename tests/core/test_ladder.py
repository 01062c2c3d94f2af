"""Exact bytes of rungs and caches, and the ways between rungs."""

from __future__ import annotations

import pytest

from molt.core.ladder import KVLayout, Ladder, Route, RouteKind, Rung

LAYOUT = KVLayout(layers=3, kv_heads=5, head_dim=7, dtype_bytes=11)
RUNGS = tuple(Rung(name, name, "fp32", 1000, 17, LAYOUT, 64) for name in ("large", "medium", "small"))
LADDER = Ladder("three", RUNGS, (Route("large", "small", RouteKind.PROJECT, 13),))


def test_bytes_are_exact() -> None:
    assert LAYOUT.bytes_per_token == 2 * 3 * 5 * 7 * 11
    assert LADDER.top.resident_bytes == 1017
    assert [LADDER.top.kv_bytes(cells) for cells in (0, 1, 19)] == [0, 2310, 19 * 2310]


def test_rungs_have_positions_from_the_top() -> None:
    assert (LADDER.top, LADDER.bottom) == (RUNGS[0], RUNGS[2])
    assert [LADDER.index(rung.name) for rung in RUNGS] == [0, 1, 2]
    assert [LADDER.rung(rung.name) for rung in RUNGS] == list(RUNGS)
    for ask in (LADDER.rung, LADDER.index):
        with pytest.raises(KeyError):
            ask("tiny")


def test_where_no_route_is_known_the_tokens_are_read_again() -> None:
    assert LADDER.route("large", "small").map_bytes == 13
    assert LADDER.route("small", "large") == Route("small", "large", RouteKind.REREAD, 0)
    assert LADDER.route("large", "medium").kind is RouteKind.REREAD


def test_a_ladder_has_rungs_and_each_a_name_of_its_own() -> None:
    with pytest.raises(AssertionError, match="at least one"):
        Ladder("none", (), ())
    with pytest.raises(AssertionError, match="repeat"):
        Ladder("twice", (RUNGS[0], RUNGS[0]), ())
