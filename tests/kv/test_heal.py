"""A healed cache is the one that reading the whole text would have given."""

from __future__ import annotations

import pytest
import torch

from molt.core.healing import chunk, settled_after
from molt.kv import heal
from molt.kv.cache import PreallocatedCache
from molt.kv.loaded_rung import NotFinite
from tests.tiny_rungs import TinyRung

SETTLED = 4
HEAL = [1, 3, 8, 64]


def guessed(rung: TinyRung, ids: list[int], spare: int = 40) -> PreallocatedCache:
    """A cache of all but the last token whose cells after the first four are noise."""
    cache = rung.prefill_afresh(ids[:-1], spare=spare)
    torch.manual_seed(3)
    for tensors in (cache._keys, cache._values):
        for tensor in tensors:
            cells = tensor[:, SETTLED : cache.cells]
            cells.copy_(torch.randn_like(cells))
    return cache


def heal_along(rung: TinyRung, cache: PreallocatedCache, ids: list[int], tokens: int) -> list[int]:
    """Answer greedily, healing ``tokens`` a step, until all cells are exact; returns the whole text."""
    known, settled = list(ids), SETTLED
    while settled < cache.cells:
        healed = chunk(cache.cells, settled, tokens)
        settled, logits = (
            settled_after(cache.cells, settled, healed),
            heal.step(rung, cache, known, settled, healed),
        )
        known.append(int(logits.argmax()))
    return known


@pytest.mark.parametrize("tokens", [tokens for tokens in HEAL if tokens > 1])
def test_every_cell_becomes_what_a_reread_gives(any_rung: TinyRung, ids: list[int], tokens: int) -> None:
    cache = guessed(any_rung, ids)
    known = heal_along(any_rung, cache, ids, tokens)
    expected = any_rung.prefill_afresh(known[:-1]).export()
    healed = cache.export()
    assert torch.equal(healed.positions, expected.positions)
    torch.testing.assert_close(healed.keys, expected.keys, rtol=0, atol=2e-5)
    torch.testing.assert_close(healed.values, expected.values, rtol=0, atol=2e-5)


@pytest.mark.parametrize("tokens", HEAL)
def test_a_step_touches_only_the_cells_it_heals(large: TinyRung, ids: list[int], tokens: int) -> None:
    cache = guessed(large, ids)
    before, cells = cache.export(), cache.cells
    healed = chunk(cells, SETTLED, tokens)
    heal.step(large, cache, ids, SETTLED, healed)
    after = cache.export(0, cells)
    own = large.prefill_afresh(ids[: SETTLED + healed]).export()
    torch.testing.assert_close(after.keys[:, :, : SETTLED + healed], own.keys, rtol=0, atol=2e-5)
    assert torch.equal(after.keys[:, :, SETTLED + healed :], before.keys[:, :, SETTLED + healed :])
    assert torch.equal(after.values[:, :, :SETTLED], before.values[:, :, :SETTLED])
    assert cache.cells == cells + 1


def test_the_last_chunk_makes_the_next_token_exact(large: TinyRung, ids: list[int]) -> None:
    cache = guessed(large, ids)
    wrong = large.step(cache.fork(spare=1), ids[-1:], len(ids) - 1)[0]
    got = heal.step(large, cache, ids, SETTLED, cache.cells - SETTLED)
    own = large.step(large.prefill_afresh(ids[:-1], spare=1), ids[-1:], len(ids) - 1)[0]
    torch.testing.assert_close(got, own, rtol=0, atol=3e-5)
    assert (wrong - own).abs().max() > 0.1  # the control: without healing it is another answer


def test_a_fault_adds_no_cell(large: TinyRung, ids: list[int]) -> None:
    cache = guessed(large, ids)
    cache._values[1][:, -60:] = 0.0
    cache._values[0][:, cache.cells - 1] = float("nan")
    cells = cache.cells
    with pytest.raises(NotFinite, match=r"^layer 0 gives values that are not finite$"):
        heal.step(large, cache, ids, SETTLED, 3)
    assert cache.cells == cells
