"""Every gate passes on rungs that are fine, and fails when what it guards is broken on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from molt.evals import gates
from molt.evals.result import Gate
from molt.kv.cache import PreallocatedCache
from molt.kv.key_rotation import rotate
from molt.kv.kv_state import KVState
from molt.kv.loaded_rung import LoadedRung
from molt.kv.project import KVMap, project
from molt.models.decoder import Decoder
from molt.models.rope import Rope
from tests.tiny_rungs import TinyRung

REINJECTED, ROUND_TRIP, CONTINUES, ORACLE, TOP_LAYERS, RELOCATED = range(6)


def failed(rung: LoadedRung, ids: list[int]) -> set[int]:
    """The numbers of the gates that do not pass."""
    found = gates.check_rung(rung, "tiny", "fp32", ids)
    return {number for number, gate in enumerate(found) if not gate.passed}


def test_all_pass_on_every_architecture(any_rung: TinyRung, ids: list[int]) -> None:
    assert failed(any_rung, ids) == set()


def test_a_cache_that_is_altered_on_the_way_in_fails(
    large: TinyRung, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(rung: LoadedRung, state: KVState) -> PreallocatedCache:
        cache = rung.empty_cache(state.cells)
        cache.append(replace(state, values=state.values * (1 + 1e-6)))
        return cache

    monkeypatch.setattr(gates, "filled", filled)
    assert REINJECTED in failed(large, ids)


def test_a_rotation_that_is_not_undone_fails(
    large: TinyRung, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "unrotate", lambda keys, positions, rope: rotate(keys, positions, rope))
    assert {ROUND_TRIP, RELOCATED} <= failed(large, ids)


def test_a_part_that_gets_lost_changes_what_is_said(
    large: TinyRung, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PreallocatedCache.export

    def part_lost(self: PreallocatedCache, first: int = 0, end: int | None = None) -> KVState:
        state = whole(self, first, end)
        return state if end is None or first < 14 else replace(state, values=-state.values.flip(2))

    monkeypatch.setattr(PreallocatedCache, "export", part_lost)
    assert failed(large, ids) == {CONTINUES}


def test_a_map_through_the_wrong_rotation_fails(
    large: TinyRung, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(kv_map: KVMap, state: KVState, inputs: torch.Tensor, source: Rope, dest: Rope) -> KVState:
        return project(kv_map, state, inputs, source, Rope(dest.inv_freq * 1.001))

    monkeypatch.setattr(gates, "project", wrong)
    assert failed(large, ids) == {ORACLE}


def test_layers_that_compute_something_else_the_second_time_fail(
    large: TinyRung, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = Decoder.run

    def run(self: Decoder, x: torch.Tensor, *rest: Any, first: int = 0, **more: Any) -> torch.Tensor:
        return once(self, x + 1e-6 if first else x, *rest, first=first, **more)

    monkeypatch.setattr(Decoder, "run", run)
    assert failed(large, ids) == {TOP_LAYERS}


def test_a_shift_that_stretches_distances_fails(
    large: TinyRung, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stretched(keys: torch.Tensor, positions: torch.Tensor, rope: Rope) -> torch.Tensor:
        return rotate(keys, positions + (positions >= gates.SHIFT + 10) * 3, rope)

    monkeypatch.setattr(gates, "rotate", stretched)
    assert failed(large, ids) == {RELOCATED}


def test_a_value_that_is_no_number_fails() -> None:
    assert not Gate(name="", rung="", value=float("nan"), limit=1.0, detail="").passed
