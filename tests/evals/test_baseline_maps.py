"""Maps fitted for comparison: what can be explained is, and what a layer may not see has no weight."""

from __future__ import annotations

import torch

from molt.evals import baseline_maps
from molt.evals.baseline_maps import Sums
from molt.kv.features import columns_per_layer
from molt.kv.project import project
from tests.tiny_rungs import VOCABULARY, TinyRung


def sums(source: TinyRung, dest: TinyRung, *, rotated: bool = False, within: bool = False) -> Sums:
    """Over random texts."""
    generator = torch.Generator().manual_seed(3)
    made: Sums | None = None
    for _ in range(12):
        ids = torch.randint(0, VOCABULARY, (60,), generator=generator).tolist()
        rows = baseline_maps._rows(source, dest, ids, rotated)
        made = made or Sums(source, dest, rows.mean(0).double(), within)
        made.add(rows)
    assert made is not None
    return made


def test_a_rung_is_mapped_to_itself(large: TinyRung, ids: list[int]) -> None:
    kv_map = sums(large, large).solve(ridge=1e-6)
    kv_map.check()
    state = large.prefill_afresh(ids).export()
    inputs = large.prefill_below(large.empty_cache(len(ids)), ids, range(len(ids)), 0)
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
    state = large.prefill_afresh(ids).export()
    inputs = large.prefill_below(large.empty_cache(len(ids)), ids, range(len(ids)), 0)
    mapped = project(kv_map, state, inputs, large.rope, large.rope)
    for found, truth in ((mapped.keys, state.keys), (mapped.values, state.values)):
        assert (found - truth).square().mean() < 1e-3 * truth.var()


def test_rotated_space_is_another_space(large: TinyRung, small: TinyRung) -> None:
    content, rotated = sums(large, small), sums(large, small, rotated=True)
    assert not torch.allclose(content.gram, rotated.gram)


def test_slopes_within_a_text_do_not_notice_what_is_added_to_all_of_it(large: TinyRung) -> None:
    generator = torch.Generator().manual_seed(3)
    width = large.layout.layers * 2 * columns_per_layer(large.layout) + large.hidden
    windows = torch.randn(4, 40, width, generator=generator)
    offsets = 10 * torch.randn(4, 1, width, generator=generator)
    plain, moved, across = (
        Sums(large, large, torch.zeros(width, dtype=torch.float64), within=is_within)
        for is_within in (True, True, False)
    )
    for window, offset in zip(windows, offsets, strict=True):
        plain.add(window)
        moved.add(window + offset)
        across.add(window + offset)
    columns = torch.arange(width)
    expected = plain._covariance(columns, columns)
    torch.testing.assert_close(moved._covariance(columns, columns), expected, rtol=0, atol=1e-4)
    assert (across._covariance(columns, columns) - expected).abs().max() > 10  # the control


def test_only_keys_are_taken_from_other_sums(large: TinyRung, small: TinyRung) -> None:
    usual, within = sums(large, small), sums(large, small, within=True)
    alone, other, mixed = usual.solve(), within.solve(), usual.solve(keys_from=within)
    later = (
        kv_map.layers[1:] for kv_map in (alone, other, mixed)
    )  # the first is exact, whatever it is solved from
    for one, key_side, layer in zip(*later, strict=True):
        half = layer.weight.shape[1] // 2
        assert torch.equal(layer.weight[:, half:], one.weight[:, half:])
        assert torch.equal(layer.weight[:, :half], key_side.weight[:, :half])
        assert not torch.equal(layer.weight[:, :half], one.weight[:, :half])
