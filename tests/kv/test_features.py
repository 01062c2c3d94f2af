"""Rows hold the content of a state, all of it, in the order that the columns promise."""

from __future__ import annotations

import torch

from molt.kv.features import columns_per_layer, from_rows, layer_columns, nearest_layers, to_rows
from molt.kv.key_rotation import unrotate
from molt.kv.loaded_rung import LoadedRung


def test_rows_and_back_is_a_round_trip(large: LoadedRung, ids: list[int]) -> None:
    state = large.prefill_afresh(ids).export()
    back = from_rows(to_rows(state, large.rope), state.positions, large.layout, large.rope)
    torch.testing.assert_close(back.keys, state.keys, rtol=0, atol=1e-5)
    assert torch.equal(back.values, state.values)


def test_columns_of_a_layer_are_its_unrotated_keys_then_its_values(large: LoadedRung, ids: list[int]) -> None:
    state = large.prefill_afresh(ids).export()
    rows = to_rows(state, large.rope)[:, layer_columns([2], large.layout)]
    keys, values = rows.split(columns_per_layer(large.layout) // 2, dim=1)
    expected = unrotate(state.keys, state.positions, large.rope)[2]
    assert torch.equal(keys, expected.transpose(0, 1).reshape(len(ids), -1))
    assert torch.equal(values, state.values[2].transpose(0, 1).reshape(len(ids), -1))


def test_nearest_layers_follow_relative_depth() -> None:
    assert nearest_layers(0, 4, 8, 3) == (0, 1, 2)
    assert nearest_layers(3, 4, 8, 3) == (5, 6, 7)
    assert nearest_layers(1, 4, 8, 2) == (2, 3)
    assert nearest_layers(1, 3, 4, 1) == (1,), "of two equally near layers the lower"
    assert nearest_layers(0, 1, 8, 1) == (0,), "a single layer has depth 0"
    assert nearest_layers(5, 8, 4, 99) == (0, 1, 2, 3)
