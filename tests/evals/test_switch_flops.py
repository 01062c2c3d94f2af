"""FLOPs are those of a hand count, and those that torch counts when the same work is done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from molt.evals.switch_flops import map_flops, transplant_flops
from molt.kv import map_file
from molt.kv.features import columns_per_layer
from molt.kv.map_file import MapCard
from molt.kv.project import Code, KVMap, LayerMap, whole_numbers
from molt.kv.transplant import Islands, transplant
from molt.models import matrix
from molt.models.flops import PER_MULTIPLY_ADD, prefill_flops
from molt.models.model_config import ModelShape, RopeShape
from molt.server.flops_saved import _map_size
from tests.tiny_rungs import TinyRung

HAND = ModelShape(
    family="qwen2",
    layers=1,
    hidden=4,
    heads=2,
    kv_heads=1,
    head_dim=2,
    ff=3,
    vocab=10,
    positions=16,
    tied=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    norm_eps=1e-6,
    activation="silu",
    rope=RopeShape("default", 1e4),
)


@pytest.fixture(autouse=True)
def countable(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts the products of its own kernels only."""
    monkeypatch.setattr(matrix, "PREFERS_ONEDNN", False)


def test_a_read_of_two_tokens_counted_by_hand() -> None:
    projections = 4 * (2 * 2) + 2 * (4 * (1 * 2)) + (2 * 2) * 4  # queries; keys and values; output
    mlp = 3 * 4 * 3
    attention = 2 * (2 * 5 * (2 * 2))  # scores and values: 2 tokens, 3 + 2 cells, 2 heads of 2
    assert prefill_flops(HAND, tokens=2, cells=3) == 2 * (2 * (projections + mlp) + attention)


def test_chunks_do_not_compute_what_comes_after_them() -> None:
    assert prefill_flops(HAND, 4, chunk=2) == prefill_flops(HAND, 2) + prefill_flops(HAND, 2, cells=2)
    assert prefill_flops(HAND, 0, cells=7) == 0


def counted(work: object) -> int:
    """What torch counts; attention as the matrix products it consists of."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()  # type: ignore[operator]
    return int(counter.get_total_flops())


def test_a_read_is_what_torch_counts(any_rung: TinyRung, ids: list[int]) -> None:
    shape = any_rung.decoder.shape
    assert counted(lambda: any_rung.prefill_afresh(ids)) == prefill_flops(shape, len(ids))


def some_map(source: TinyRung, dest: TinyRung, native_layers: int) -> KVMap:
    """A map of the right shapes."""
    width = columns_per_layer(dest.layout)
    layers = tuple(
        LayerMap(
            sources,
            torch.full((len(sources) * columns_per_layer(source.layout) + dest.hidden, width), 1e-3),
            torch.zeros(width),
        )
        for sources in [(0,), (0, 2)][native_layers:]
    )
    return KVMap(source.layout, dest.layout, dest.hidden, native_layers, layers)


@pytest.mark.parametrize("native_layers", [0, 1])
@pytest.mark.parametrize(("first", "last"), [(4, 16), (0, 0), (3, 0), (30, 30)])
def test_a_transplant_is_what_torch_counts(
    large: TinyRung, small: TinyRung, ids: list[int], native_layers: int, first: int, last: int
) -> None:
    kv_map = some_map(large, small, native_layers)
    cache = large.prefill_afresh(ids[:-1])
    islands = Islands(first, last)
    found = counted(lambda: transplant(cache, large.rope, kv_map, small, ids, len(ids), islands))
    cells = max(0, len(ids) - 1 - first - last)
    in_place = sum(
        layer.weight[: -small.hidden].numel() for layer in kv_map.layers
    )  # torch counts none of these
    counted_by_hand = transplant_flops(kv_map, small.decoder.shape, len(ids) - 1, first, last)
    assert found + 2 * cells * in_place == counted_by_hand


def test_a_map_counts_every_weight_once_a_cell(large: TinyRung, small: TinyRung) -> None:
    width = 2 * 1 * 6
    per_cell = (1 * 2 * 2 * 8 + 32) * width + (2 * 2 * 2 * 8 + 32) * width
    assert map_flops(some_map(large, small, 0), 5) == 2 * 5 * per_cell


@pytest.mark.parametrize("native_layers", [0, 1])
def test_the_header_of_a_shared_map_says_how_many_weights_it_has(
    large: TinyRung, small: TinyRung, native_layers: int, tmp_path: Path
) -> None:
    kv_map = shared_map(large, small, native_layers)
    kv_map.check()
    path = tmp_path / "map"
    sources = tuple(layer.sources for layer in kv_map.layers)
    card = MapCard("a", "b", "", "", "", small.hidden, native_layers, sources, 0.0, 1, 1.0, (), (), 0, ())
    map_file.save(path, kv_map, card)
    assert _map_size(path).native_layers == native_layers
    assert map_flops(kv_map, 3) == PER_MULTIPLY_ADD * 3 * _map_size(path).weights


def test_a_shared_map_counts_its_code_too(large: TinyRung, small: TinyRung) -> None:
    features, width = 3 * 2 * 2 * 8 + 32, 2 * 1 * 6
    per_cell = 32 * width + features * 5 + 5 * width
    assert map_flops(shared_map(large, small, 0), 7) == 2 * 7 * per_cell


def shared_map(source: TinyRung, dest: TinyRung, native_layers: int) -> KVMap:
    """A shared map of rank 5 of the right shapes."""
    width = columns_per_layer(dest.layout)
    features = source.layout.layers * columns_per_layer(source.layout) + dest.hidden
    code = Code(torch.zeros(features), torch.ones(features), *whole_numbers(torch.ones(features, 5)))
    every = tuple(range(source.layout.layers))
    weight, scale = whole_numbers(torch.ones(5, width))
    later = [
        LayerMap(every, weight, torch.zeros(width), scale)
        for _ in range(native_layers + 1, dest.layout.layers)
    ]
    first = LayerMap((), torch.full((dest.hidden, width), 1e-3), torch.zeros(width))
    return KVMap(source.layout, dest.layout, dest.hidden, native_layers, (first, *later), code)
