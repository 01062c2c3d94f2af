"""The gates that every transplant must pass before any of its numbers is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from molt.engine.protocol import SwitchError
from molt.kv.evaluate import own_cache
from molt.kv.features import columns_per_layer
from molt.kv.hf_cache import PreallocatedCache
from molt.kv.project import KVMap, LayerMap, project
from molt.kv.resident import Resident
from molt.kv.transplant import carry, transplant


def oracle(rung: Resident) -> KVMap:
    """The map from a rung to itself that changes nothing."""
    width = columns_per_layer(rung.layout)
    layers = tuple(
        LayerMap((layer,), torch.eye(width), torch.zeros(width)) for layer in range(rung.layout.layers)
    )
    return KVMap(rung.layout, rung.layout, layers)


def random_map(source: Resident, dest: Resident) -> KVMap:
    """A map of the right shapes that means nothing."""
    generator = torch.Generator().manual_seed(0)
    shape = (source.layout.layers * columns_per_layer(source.layout), columns_per_layer(dest.layout))
    every = tuple(range(source.layout.layers))
    layers = (
        LayerMap(every, torch.randn(shape, generator=generator), torch.zeros(shape[1]))
        for _ in range(dest.layout.layers)
    )
    return KVMap(source.layout, dest.layout, tuple(layers))


def test_the_oracle_map_between_equal_rungs_gives_identical_logits(
    any_rung: Resident, ids: list[int]
) -> None:
    source = any_rung.read_afresh(ids[:-1], spare=1)
    carried = transplant(source, any_rung.rope, oracle(any_rung), any_rung, ids, capacity=len(ids))
    last = len(ids) - 1
    got, expected = any_rung.step(carried, ids[-1:], last), any_rung.step(source, ids[-1:], last)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


def test_the_first_tokens_are_exactly_the_destinations_own(
    large: Resident, small: Resident, ids: list[int]
) -> None:
    source = large.read_afresh(ids)
    carried = transplant(source, large.rope, random_map(large, small), small, ids, capacity=50).export()
    native = small.read_afresh(ids[:4]).export()
    assert torch.equal(carried.keys[:, :, :4], native.keys)
    assert torch.equal(carried.values[:, :, :4], native.values)
    assert not torch.equal(carried.values[:, :, 4:8], small.read_afresh(ids[:8]).export().values[:, :, 4:])


def test_a_transplant_keeps_positions_capacity_and_source(
    large: Resident, small: Resident, ids: list[int]
) -> None:
    source = large.read_afresh(ids)
    source.shed(12, sinks=4)
    before = source.export()
    carried = transplant(source, large.rope, random_map(large, small), small, ids, capacity=50)
    assert carried.positions == source.positions == [0, 1, 2, 3, *range(32, 40)]
    assert carried.nbytes == 50 * small.layout.bytes_per_token
    assert torch.equal(source.export().keys, before.keys)


def test_without_sinks_nothing_is_native(large: Resident, small: Resident, ids: list[int]) -> None:
    """A cache whose first cell is not the first token: the destination must not read tokens that are not
    held.
    """
    whole = large.read_afresh(ids).export()
    source = PreallocatedCache(large.layout, 10)
    source.append(whole.select(slice(20, 30)))
    kv_map = random_map(large, small)
    carried = transplant(source, large.rope, kv_map, small, ids, capacity=10)
    expected = project(kv_map, source.export(), large.rope, small.rope)
    assert torch.equal(carried.export().values, expected.values)


def test_cells_beyond_one_chunk_arrive_alike(
    large: Resident, small: Resident, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kv_map = large.read_afresh(ids), random_map(large, small)
    at_once = transplant(source, large.rope, kv_map, small, ids, capacity=40).export()
    monkeypatch.setattr("molt.kv.transplant.CHUNK_CELLS", 7)
    in_chunks = transplant(source, large.rope, kv_map, small, ids, capacity=40).export()
    torch.testing.assert_close(in_chunks.keys, at_once.keys, rtol=0, atol=1e-4)
    torch.testing.assert_close(in_chunks.values, at_once.values, rtol=0, atol=1e-4)


def test_an_empty_cache_travels(large: Resident, small: Resident, ids: list[int]) -> None:
    source = PreallocatedCache(large.layout, 8)
    carried = transplant(source, large.rope, random_map(large, small), small, ids, capacity=8)
    assert carried.cells == 0
    assert carried.nbytes == 8 * small.layout.bytes_per_token


@pytest.mark.parametrize("spoiled", [0, 20, 39])
def test_a_cache_that_is_not_finite_is_refused(
    large: Resident, small: Resident, ids: list[int], spoiled: int
) -> None:
    state = large.read_afresh(ids).export()
    state = replace(state, values=state.values.clone())
    state.values[1, 0, spoiled, 3] = float("nan")
    source = PreallocatedCache(large.layout, 40)
    source.append(state)
    with pytest.raises(SwitchError, match="not finite"):
        transplant(source, large.rope, random_map(large, small), small, ids, capacity=40)
    with pytest.raises(SwitchError, match="not finite"):
        carry(source, large, ids, capacity=40)


def test_a_text_longer_than_the_destination_is_refused(
    large: Resident, small: Resident, ids: list[int]
) -> None:
    source, short = large.read_afresh(ids), replace(small, max_positions=39)
    with pytest.raises(SwitchError, match="40 tokens, the destination 39"):
        transplant(source, large.rope, random_map(large, small), short, ids, capacity=40)


def test_a_map_of_other_geometries_is_refused(large: Resident, small: Resident, ids: list[int]) -> None:
    source = large.read_afresh(ids)
    with pytest.raises(SwitchError, match="the map takes"):
        transplant(source, large.rope, random_map(small, large), small, ids, capacity=40)
    with pytest.raises(SwitchError, match="cannot be carried"):
        carry(source, small, ids, capacity=40)


def test_a_map_that_overflows_is_refused(large: Resident, small: Resident, ids: list[int]) -> None:
    kv_map = random_map(large, small)
    kv_map.layers[0].weight.mul_(1e38)
    with pytest.raises(SwitchError, match="not finite"):
        transplant(large.read_afresh(ids), large.rope, kv_map, small, ids, capacity=40)


def test_the_own_cache_of_a_shed_text_holds_the_same_positions(large: Resident, ids: list[int]) -> None:
    positions = [0, 1, 2, 3, 30, 31]
    own, whole = own_cache(large, ids, positions).export(), large.read_afresh(ids).export()
    assert own.positions.tolist() == positions
    assert torch.equal(own.keys, whole.keys[:, :, positions])


def test_carrying_moves_no_cell(large: Resident, ids: list[int]) -> None:
    source = large.read_afresh(ids, spare=5)
    before = source.export()
    carried = carry(source, large, ids, capacity=60)
    assert carried is source
    assert carried.capacity == 60
    assert torch.equal(carried.export().keys, before.keys)


def test_carrying_to_another_storage_converts(large: Resident, ids: list[int]) -> None:
    source = large.read_afresh(ids)
    half = replace(large, layout=replace(large.layout, dtype_bytes=2))
    carried = carry(source, half, ids, capacity=40)
    assert carried.nbytes * 2 == source.nbytes
    torch.testing.assert_close(carried.export().keys, source.export().keys, rtol=0.01, atol=0.01)
