"""What a map leaves unexplained, and what sharpening it does: nothing but move its outputs away from their means."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.fitting.holdout import Holdout
from molt.kv.project import Code, KVMap, LayerMap, map_rows, sharpened, whole_numbers

SOURCE = KVLayout(layers=2, kv_heads=2, head_dim=4, dtype_bytes=4)
DEST = KVLayout(layers=3, kv_heads=1, head_dim=6, dtype_bytes=4)
HIDDEN, ROWS = 5, 400
WIDTH = 2 * SOURCE.kv_heads * SOURCE.head_dim
OUT = 2 * DEST.kv_heads * DEST.head_dim


def float_map(generator: torch.Generator) -> KVMap:
    layers = tuple(
        LayerMap(
            sources,
            torch.randn(WIDTH * len(sources) + HIDDEN, OUT, generator=generator),
            torch.randn(OUT, generator=generator),
        )
        for sources in ((), (0, 1), (1,))
    )
    return KVMap(SOURCE, DEST, HIDDEN, 0, layers)


def shared_map(generator: torch.Generator) -> KVMap:
    features, rank = SOURCE.layers * WIDTH + HIDDEN, 7
    encoder, decoders = torch.randn(features, rank, generator=generator), range(DEST.layers - 1)
    shared = tuple(
        LayerMap((0, 1), weight, torch.randn(OUT, generator=generator), scale)
        for weight, scale in (whole_numbers(torch.randn(rank, OUT, generator=generator)) for _ in decoders)
    )
    code = Code(torch.zeros(features), torch.ones(features), *whole_numbers(encoder))
    return replace(float_map(generator), layers=(float_map(generator).layers[0], *shared), code=code)


@pytest.fixture(params=[float_map, shared_map])
def kv_map(request: pytest.FixtureRequest) -> KVMap:
    made = request.param(torch.Generator().manual_seed(3))
    assert isinstance(made, KVMap)
    made.check()
    return made


def blocks_for(kv_map: KVMap) -> list[Tensor]:
    """Source layers, destination layers and the input of some tokens; the map explains most of the destination."""
    generator = torch.Generator().manual_seed(5)
    source = [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(SOURCE.layers)]
    inputs = torch.randn(ROWS, HIDDEN, generator=generator)
    mapped = map_rows(kv_map, torch.cat(source, dim=1), inputs)
    noise = (
        torch.randn(mapped.shape, generator=generator) * mapped.std() * torch.tensor([0.0, 0.5, 1.0])[:, None]
    )
    return [*source, *(mapped + noise).unbind(1), inputs]


def measured(kv_map: KVMap, blocks: list[Tensor]) -> Holdout:
    held = Holdout(kv_map, source=0, dest=SOURCE.layers, inputs=SOURCE.layers + DEST.layers)
    held.add(blocks)
    held.add([block.flip(0) for block in blocks])
    return held


def test_what_is_unexplained_is_the_share_of_the_variance_that_was_added(kv_map: KVMap) -> None:
    keys, values = measured(kv_map, blocks_for(kv_map)).unexplained()
    assert max(keys[0], values[0]) < 1e-9
    assert 0.05 < keys[1] < keys[2] < 0.75
    assert 0.05 < values[1] < values[2] < 0.75


def test_a_sharpened_map_goes_further_from_its_means_where_less_is_explained(kv_map: KVMap) -> None:
    blocks = blocks_for(kv_map)
    held = measured(kv_map, blocks)
    before = torch.tensor(held.unexplained()).T  # (L, 2)
    held.sharpen(0.5)
    known, inputs = torch.cat(blocks[: SOURCE.layers], dim=1), blocks[-1]
    old, new = (map_rows(one, known, inputs) for one in (kv_map, held.kv_map))
    gains = (1 + 0.5 * before).repeat_interleave(OUT // 2, dim=1)
    expected = old.mean(0) + gains * (old - old.mean(0))
    torch.testing.assert_close(new, expected.float(), rtol=1e-3, atol=1e-3)


def test_what_a_sharpened_map_leaves_unexplained_is_what_is_measured_of_it(kv_map: KVMap) -> None:
    blocks = blocks_for(kv_map)
    held = measured(kv_map, blocks)
    calm = held.unexplained()
    held.sharpen(0.5)
    sharp, again = held.unexplained(), measured(held.kv_map, blocks).unexplained()
    for one, other in zip(sharp, again, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-6)
    assert sharp[0][2] > calm[0][2]


def test_without_strength_nothing_changes(kv_map: KVMap) -> None:
    held = measured(kv_map, blocks_for(kv_map))
    before = held.unexplained()
    held.sharpen(0.0)
    assert held.unexplained() == before
    for old, new in zip(kv_map.layers, held.kv_map.layers, strict=True):
        assert torch.equal(old.bias, new.bias)


def test_gains_of_one_leave_a_map_as_it_is(kv_map: KVMap) -> None:
    ones = torch.ones(DEST.layers, OUT)
    for old, new in zip(kv_map.layers, sharpened(kv_map, ones, 3 * ones).layers, strict=True):
        assert torch.equal(old.weight, new.weight)
        assert torch.equal(old.bias, new.bias)
