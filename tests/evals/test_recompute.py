"""Recomputing the last layers: bit-exact when what enters them is, and confined to them."""

from __future__ import annotations

import pytest
import torch

from molt.evals.recompute import recompute, streams
from tests.tiny_rungs import TinyRung


def spoil(rung: TinyRung, ids: list[int], layer: int, first: int = 0):  # type: ignore[no-untyped-def]
    """A cache whose layers from ``layer`` on are noise from cell ``first`` on."""
    cache = rung.prefill_afresh(ids, spare=1)
    for tensors in (cache._keys, cache._values):
        for tensor in tensors[layer:]:
            tensor[:, first : cache.cells].normal_()
    return cache


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_an_exact_boundary_gives_the_very_bits_of_a_full_pass(
    any_rung: TinyRung, ids: list[int], layer: int
) -> None:
    own = any_rung.prefill_afresh(ids).export()
    cache = spoil(any_rung, ids, layer)
    recompute(any_rung, cache, streams(any_rung, ids, layer), layer)
    assert torch.equal(cache.export().keys, own.keys)
    assert torch.equal(cache.export().values, own.values)


def test_only_the_cells_asked_for_are_touched(large: TinyRung, ids: list[int]) -> None:
    own = large.prefill_afresh(ids).export()
    cache = spoil(large, ids, layer=1, first=10)
    recompute(large, cache, streams(large, ids, 1)[10:], 1, first=10, chunk=7)
    torch.testing.assert_close(cache.export().keys, own.keys, rtol=0, atol=2e-5)
    assert torch.equal(cache.export().keys[:, :, :10], own.keys[:, :, :10])


def test_a_wrong_boundary_gives_wrong_cells_in_those_layers_alone(large: TinyRung, ids: list[int]) -> None:
    """The control."""
    own = large.prefill_afresh(ids)
    cache = own.fork(spare=0)
    recompute(large, cache, torch.randn(len(ids), large.hidden), 2)
    assert torch.equal(cache.export().keys[:2], own.export().keys[:2])
    assert (cache.export().keys[2] - own.export().keys[2]).abs().max() > 0.1
