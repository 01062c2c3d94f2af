"""The gates that every transplant must pass before any of its numbers is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from molt.core.engine_protocol import SwitchError
from molt.kv.cache import PreallocatedCache
from molt.kv.features import columns_per_layer, to_rows
from molt.kv.handoff_quality import own_cache
from molt.kv.loaded_rung import LoadedRung
from molt.kv.project import Code, KVMap, LayerMap, project, whole_numbers
from molt.kv.transplant import Islands, carry, leading_cells, trailing_cells, transplant
from tests.tiny_rungs import LLAMA3, VOCABULARY, tiny


def oracle(rung: LoadedRung, native_layers: int = 0) -> KVMap:
    """The map from a rung to itself that changes nothing."""
    width = columns_per_layer(rung.layout)
    weight = torch.cat((torch.eye(width), torch.zeros(rung.hidden, width)))
    layers = tuple(
        LayerMap((layer,), weight, torch.zeros(width)) for layer in range(native_layers, rung.layout.layers)
    )
    return KVMap(rung.layout, rung.layout, rung.hidden, native_layers, layers)


def random_map(source: LoadedRung, dest: LoadedRung) -> KVMap:
    """A map of the right shapes that means nothing."""
    generator = torch.Generator().manual_seed(0)
    width = columns_per_layer(dest.layout)
    shape = (source.layout.layers * columns_per_layer(source.layout) + dest.hidden, width)
    every = tuple(range(source.layout.layers))
    layers = (
        LayerMap(every, torch.randn(shape, generator=generator), torch.zeros(width))
        for _ in range(dest.layout.layers)
    )
    return KVMap(source.layout, dest.layout, dest.hidden, 0, tuple(layers))


NO_ISLANDS = Islands(first=0, last=0)


@pytest.mark.parametrize("native_layers", [0, 1, 2])
@pytest.mark.parametrize(
    "islands", [NO_ISLANDS, Islands(4, 0), Islands(0, 5), Islands(4, 16), Islands(30, 30)]
)
def test_the_oracle_map_between_equal_rungs_gives_identical_logits(
    large: LoadedRung, ids: list[int], islands: Islands, native_layers: int
) -> None:
    source = large.prefill_afresh(ids[:-1], spare=1)
    kv_map = oracle(large, native_layers)
    carried = transplant(source, large.rope, kv_map, large, ids, capacity=len(ids), islands=islands)
    assert_same_next_step(large, carried, source, ids)


def test_the_oracle_map_works_for_every_architecture_and_rope(any_rung: LoadedRung, ids: list[int]) -> None:
    source = any_rung.prefill_afresh(ids[:-1], spare=1)
    carried = transplant(source, any_rung.rope, oracle(any_rung), any_rung, ids, capacity=len(ids))
    assert_same_next_step(any_rung, carried, source, ids)


GEOMETRIES = {
    "GQA to MQA": ({"kv_heads": 2}, {"kv_heads": 1, "seed": 1}),
    "MQA to GQA": ({"kv_heads": 1}, {"kv_heads": 4, "seed": 1}),
    "head_dim 128 to 64": ({"head_dim": 128}, {"head_dim": 64, "seed": 1}),
    "head_dim 64 to 80": ({"head_dim": 64}, {"head_dim": 80, "seed": 1}),
    "another depth": ({"layers": 5}, {"layers": 2, "seed": 1}),
    "other RoPE bases": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "seed": 1},
    ),
    "scaled RoPE": ({"kind": "llama"}, {"kind": "llama", "rope_parameters": LLAMA3, "seed": 1}),
    "another family": ({"kind": "qwen3"}, {"kind": "llama", "seed": 1}),
}


@pytest.mark.parametrize(("one", "other"), GEOMETRIES.values(), ids=GEOMETRIES)
def test_what_the_destination_knows_of_a_token_is_exact_at_every_geometry(
    one: dict[str, Any], other: dict[str, Any], ids: list[int]
) -> None:
    """A map that is fitted on one text gives the first layer of another exactly: it is linear in the token's own
    embedding, and the sandwich puts it at the right positions, whatever the RoPE, the heads and the depth."""
    source, dest = tiny(**one), tiny(**other)
    generator = torch.Generator().manual_seed(9)
    fitted = torch.randint(0, VOCABULARY, (250,), generator=generator).tolist()
    rows = to_rows(dest.prefill_afresh(fitted).export(), dest.rope)[:, : columns_per_layer(dest.layout)]
    inputs = dest.prefill_below(dest.empty_cache(250), fitted, range(250), 0)
    design = torch.cat((inputs, torch.ones(250, 1)), dim=1).double()
    solution = torch.linalg.lstsq(design, rows.double()).solution.float()
    rest = random_map(source, dest).layers[1:]
    kv_map = KVMap(
        source.layout, dest.layout, dest.hidden, 0, (LayerMap((), solution[:-1], solution[-1]), *rest)
    )
    carried = transplant(
        source.prefill_afresh(ids), source.rope, kv_map, dest, ids, capacity=50, islands=NO_ISLANDS
    ).export()
    own = dest.prefill_afresh(ids).export()
    torch.testing.assert_close(carried.keys[0], own.keys[0], rtol=0, atol=2e-4)
    torch.testing.assert_close(carried.values[0], own.values[0], rtol=0, atol=2e-4)


def assert_same_next_step(
    rung: LoadedRung, one: PreallocatedCache, other: PreallocatedCache, ids: list[int]
) -> None:
    got, expected = (rung.step(cache, ids[-1:], len(ids) - 1) for cache in (one, other))
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


def test_islands_are_exactly_what_the_destination_reads(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    source = large.prefill_afresh(ids)
    kv_map = random_map(large, small)
    carried = transplant(source, large.rope, kv_map, small, ids, capacity=50, islands=Islands(4, 8))
    state, native = carried.export(), small.prefill_afresh(ids[:4]).export()
    assert torch.equal(state.keys[:, :, :4], native.keys)
    assert torch.equal(state.values[:, :, :4], native.values)
    without_tail = transplant(
        source, large.rope, kv_map, small, ids, capacity=50, islands=Islands(4, 0)
    ).export()
    head = PreallocatedCache(small.layout, 40)
    head.append(without_tail.select(slice(0, 32)))
    small.prefill(head, ids[32:], 32)
    torch.testing.assert_close(state.values, head.export().values, rtol=0, atol=1e-4)
    assert not torch.allclose(state.values[:, :, 32:], without_tail.values[:, :, 32:])


def test_native_layers_are_exact_whatever_the_map_says(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    source = small.prefill_afresh(ids)
    whole = random_map(small, large)
    kv_map = replace(whole, native_layers=2, layers=whole.layers[2:])
    carried = transplant(source, small.rope, kv_map, large, ids, capacity=40, islands=NO_ISLANDS).export()
    own = large.prefill_afresh(ids).export()
    torch.testing.assert_close(carried.keys[:2], own.keys[:2], rtol=0, atol=1e-4)
    torch.testing.assert_close(carried.values[:2], own.values[:2], rtol=0, atol=1e-4)
    assert not torch.allclose(carried.values[2], own.values[2], atol=0.1)


def test_the_next_layer_is_linear_in_what_it_reads(any_rung: LoadedRung, ids: list[int]) -> None:
    """So a fit that is given that input finds the first mapped layer exactly."""
    for layers in (0, 1):
        below = PreallocatedCache(any_rung.layout, len(ids))
        inputs = any_rung.prefill_below(below, ids, range(len(ids)), layers)
        assert below.cells == 0, "the cells are not complete yet"
        with torch.inference_mode():
            values = any_rung.model.base_model.layers[layers].self_attn.v_proj(inputs)  # (T, H * D)
        own = any_rung.prefill_afresh(ids).export().values[layers].transpose(0, 1).reshape(len(ids), -1)
        torch.testing.assert_close(values, own, rtol=0, atol=1e-4)


def test_a_transplant_keeps_positions_capacity_and_source(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    source = large.prefill_afresh(ids)
    source.shed(12, sinks=4)
    before = source.export()
    carried = transplant(source, large.rope, random_map(large, small), small, ids, capacity=50)
    assert carried.positions == source.positions == [0, 1, 2, 3, *range(32, 40)]
    assert carried.nbytes == 50 * small.layout.bytes_per_token
    assert torch.equal(source.export().keys, before.keys)


def test_without_sinks_nothing_is_native(large: LoadedRung, small: LoadedRung, ids: list[int]) -> None:
    """Where the first tokens are not held, the destination must not read them either."""
    whole = large.prefill_afresh(ids).export()
    source = PreallocatedCache(large.layout, 10)
    source.append(whole.select(slice(20, 30)))
    kv_map = random_map(large, small)
    carried = transplant(source, large.rope, kv_map, small, ids, capacity=10, islands=Islands(4, 0))
    inputs = small.prefill_below(PreallocatedCache(small.layout, 10), ids[20:30], range(20, 30), 0)
    expected = project(kv_map, source.export(), inputs, large.rope, small.rope)
    assert torch.equal(carried.export().values, expected.values)


def test_cells_beyond_one_chunk_arrive_alike(
    large: LoadedRung, small: LoadedRung, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kv_map = large.prefill_afresh(ids), random_map(large, small)
    at_once = transplant(source, large.rope, kv_map, small, ids, capacity=40).export()
    monkeypatch.setattr("molt.kv.transplant.CHUNK_CELLS", 7)
    in_chunks = transplant(source, large.rope, kv_map, small, ids, capacity=40).export()
    torch.testing.assert_close(in_chunks.keys, at_once.keys, rtol=0, atol=1e-4)
    torch.testing.assert_close(in_chunks.values, at_once.values, rtol=0, atol=1e-4)


def test_an_empty_cache_travels(large: LoadedRung, small: LoadedRung, ids: list[int]) -> None:
    source = PreallocatedCache(large.layout, 8)
    carried = transplant(source, large.rope, random_map(large, small), small, ids, capacity=8)
    assert carried.cells == 0
    assert carried.nbytes == 8 * small.layout.bytes_per_token


@pytest.mark.parametrize("spoiled", [0, 20, 39])
def test_a_cache_that_is_not_finite_is_refused(
    large: LoadedRung, small: LoadedRung, ids: list[int], spoiled: int
) -> None:
    state = large.prefill_afresh(ids).export()
    state = replace(state, values=state.values.clone())
    state.values[1, 0, spoiled, 3] = float("nan")
    source = PreallocatedCache(large.layout, 40)
    source.append(state)
    with pytest.raises(SwitchError, match="not finite"):
        transplant(source, large.rope, random_map(large, small), small, ids, capacity=40)
    with pytest.raises(SwitchError, match="not finite"):
        carry(source, large, ids, capacity=40)


def test_a_text_longer_than_the_destination_is_refused(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    source, short = large.prefill_afresh(ids), replace(small, max_positions=39)
    with pytest.raises(SwitchError, match="40 tokens, the destination 39"):
        transplant(source, large.rope, random_map(large, small), short, ids, capacity=40)


def test_a_map_of_other_geometries_is_refused(large: LoadedRung, small: LoadedRung, ids: list[int]) -> None:
    source = large.prefill_afresh(ids)
    with pytest.raises(SwitchError, match="the map takes"):
        transplant(source, large.rope, random_map(small, large), small, ids, capacity=40)
    with pytest.raises(SwitchError, match="cannot be carried"):
        carry(source, small, ids, capacity=40)


def test_a_map_that_overflows_is_refused(large: LoadedRung, small: LoadedRung, ids: list[int]) -> None:
    kv_map = random_map(large, small)
    kv_map.layers[0].weight.mul_(1e38)
    with pytest.raises(SwitchError, match="not finite"):
        transplant(large.prefill_afresh(ids), large.rope, kv_map, small, ids, capacity=40)


def test_the_own_cache_of_a_shed_text_holds_the_same_positions(large: LoadedRung, ids: list[int]) -> None:
    positions = [0, 1, 2, 3, 30, 31]
    own, whole = own_cache(large, ids, positions).export(), large.prefill_afresh(ids).export()
    assert own.positions.tolist() == positions
    assert torch.equal(own.keys, whole.keys[:, :, positions])


def test_carrying_moves_no_cell(large: LoadedRung, ids: list[int]) -> None:
    source = large.prefill_afresh(ids, spare=5)
    before = source.export()
    carried = carry(source, large, ids, capacity=60)
    assert carried is source
    assert carried.capacity == 60
    assert torch.equal(carried.export().keys, before.keys)


def test_carrying_to_another_storage_converts(large: LoadedRung, ids: list[int]) -> None:
    source = large.prefill_afresh(ids)
    half = replace(large, layout=replace(large.layout, dtype_bytes=2))
    carried = carry(source, half, ids, capacity=40)
    assert carried.nbytes * 2 == source.nbytes
    torch.testing.assert_close(carried.export().keys, source.export().keys, rtol=0.01, atol=0.01)


def test_runs_of_cells_at_either_end() -> None:
    assert leading_cells([]) == trailing_cells([]) == 0
    assert leading_cells([0, 1, 2, 7, 8]) == 3
    assert trailing_cells([0, 1, 2, 7, 8]) == 2
    assert leading_cells([5, 6]) == 0
    assert trailing_cells([5, 6]) == 2


def test_a_shared_map_projects_as_the_matrices_it_was_made_of(
    large: LoadedRung, small: LoadedRung, ids: list[int]
) -> None:
    state, generator = large.prefill_afresh(ids).export(), torch.Generator().manual_seed(3)
    rows = to_rows(state, large.rope)
    width, rank = columns_per_layer(small.layout), 10
    encoder = torch.randn(rows.shape[1] + small.hidden, rank, generator=generator)
    decoder, bias = torch.randn(rank, width, generator=generator), torch.randn(width, generator=generator)
    inputs = torch.randn(len(ids), small.hidden, generator=generator)
    features = torch.cat((rows, inputs), dim=1)
    code = Code(features.mean(0), features.std(0), *whole_numbers(encoder))
    first = LayerMap((), torch.randn(small.hidden, width, generator=generator), torch.zeros(width))
    weight, scale = whole_numbers(decoder)
    every = tuple(range(large.layout.layers))
    kv_map = KVMap(
        large.layout, small.layout, small.hidden, 0, (first, LayerMap(every, weight, bias, scale)), code
    )
    kv_map.check()
    got = to_rows(project(kv_map, state, inputs, large.rope, small.rope), small.rope)
    torch.testing.assert_close(got[:, :width], inputs @ first.weight, rtol=0, atol=1e-4)
    expected = (features - code.centre) / code.spread @ encoder @ decoder + bias
    error = (got[:, width:] - expected).square().mean() / expected.var()
    assert error < 1e-3
