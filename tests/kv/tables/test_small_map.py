"""Maps fitted for comparison: what can be explained is, and what a layer may not see has no weight."""

from __future__ import annotations

import torch

from molt.kv.project import project
from molt.kv.tables import small_map
from molt.kv.tables.small_map import Sums
from tests.kv.conftest import VOCABULARY, TinyRung


def sums(source: TinyRung, dest: TinyRung, *, rotated: bool = False) -> Sums:
    """Over random texts."""
    generator = torch.Generator().manual_seed(3)
    made: Sums | None = None
    for _ in range(12):
        ids = torch.randint(0, VOCABULARY, (60,), generator=generator).tolist()
        rows = small_map._rows(source, dest, ids, rotated)
        made = made or Sums(source, dest, rows.mean(0).double())
        made.add(rows)
    assert made is not None
    return made


def test_a_rung_is_mapped_to_itself(large: TinyRung, ids: list[int]) -> None:
    kv_map = sums(large, large).solve(ridge=1e-6)
    kv_map.check()
    state = large.read_afresh(ids).export()
    inputs = large.read_below(large.empty_cache(len(ids)), ids, range(len(ids)), 0)
    mapped = project(kv_map, state, inputs, large.rope, large.rope)
    torch.testing.assert_close(mapped.keys, state.keys, rtol=0, atol=0.02)
    torch.testing.assert_close(mapped.values, state.values, rtol=0, atol=0.02)


def test_one_source_layer_is_the_nearest(large: TinyRung, small: TinyRung) -> None:
    made = sums(large, small)
    assert [layer.sources for layer in made.solve(1).layers] == [(), (2,)]
    assert [layer.sources for layer in made.solve().layers] == [(), (0, 1, 2)]


def test_apart_k_sees_no_v_and_v_no_k(large: TinyRung, small: TinyRung) -> None:
    layer = sums(large, small).solve(joint=False).layers[1]
    width = 2 * 2 * 8
    from_source = layer.weight[: 3 * width].view(
        3, 2, width // 2, 2, -1
    )  # layer, K or V, column; K or V, column
    assert (from_source[:, 0, :, 1] == 0).all()
    assert (from_source[:, 1, :, 0] == 0).all()
    assert (from_source[:, 0, :, 0] != 0).any()
    assert (from_source[:, 1, :, 1] != 0).any()


def test_a_shared_map_of_full_rank_maps_a_rung_to_itself(large: TinyRung, ids: list[int]) -> None:
    made = sums(large, large)
    kv_map = made.solve_shared(rank=2 * 2 * 2 * 8)
    kv_map.check()
    state = large.read_afresh(ids).export()
    inputs = large.read_below(large.empty_cache(len(ids)), ids, range(len(ids)), 0)
    mapped = project(kv_map, state, inputs, large.rope, large.rope)
    for found, truth in ((mapped.keys, state.keys), (mapped.values, state.values)):
        assert (found - truth).square().mean() < 1e-3 * truth.var()


def test_rotated_space_is_another_space(large: TinyRung, small: TinyRung) -> None:
    content, rotated = sums(large, small), sums(large, small, rotated=True)
    assert not torch.allclose(content.gram, rotated.gram)
