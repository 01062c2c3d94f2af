"""A rung on its preallocated cache computes what transformers does, in exactly the bytes it was given."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from molt.kv.cache import PreallocatedCache
from tests.tiny_rungs import TinyRung, cache_argument


@torch.inference_mode()
def reference_logits(rung: TinyRung, ids: list[int]) -> torch.Tensor:
    """Logits (T, vocabulary) of a plain forward pass without any cache."""
    return rung.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :, : rung.vocabulary]


@torch.inference_mode()
def test_chunks_and_single_steps_agree_with_the_dynamic_cache(any_rung: TinyRung, ids: list[int]) -> None:
    theirs, ours = DynamicCache(config=any_rung.model.config), PreallocatedCache(any_rung.layout, 64)
    first = 0
    for tokens in (7, 1, 1, 12, 1, 18):
        chunk = ids[first : first + tokens]
        argument = cache_argument(any_rung.model, theirs)
        expected = any_rung.model(input_ids=torch.tensor([chunk]), use_cache=True, **argument).logits[0]
        got = any_rung.step(ours, chunk, first)
        torch.testing.assert_close(got, expected[:, : any_rung.vocabulary], rtol=0, atol=3e-5)
        first += tokens
    torch.testing.assert_close(got[-1], reference_logits(any_rung, ids)[-1], rtol=0, atol=1e-4)


def test_reading_without_logits_leaves_the_same_cache(any_rung: TinyRung, ids: list[int]) -> None:
    read, stepped = any_rung.prefill_afresh(ids), PreallocatedCache(any_rung.layout, len(ids))
    any_rung.step(stepped, ids, 0)
    assert torch.equal(read.export().keys, stepped.export().keys)
    assert torch.equal(read.export().values, stepped.export().values)


def test_state_export_and_import_gives_identical_logits(any_rung: TinyRung, ids: list[int]) -> None:
    original = any_rung.prefill_afresh(ids[:-1], spare=1)
    twin = PreallocatedCache(any_rung.layout, len(ids))
    twin.append(original.export())
    last = len(ids) - 1
    assert torch.equal(any_rung.step(twin, ids[-1:], last), any_rung.step(original, ids[-1:], last))


def test_bytes_are_capacity_times_bytes_per_token(large: TinyRung, ids: list[int]) -> None:
    per_token = large.layout.bytes_per_token
    cache = large.prefill_afresh(ids, spare=24)
    assert cache.nbytes == 64 * per_token
    assert cache.resize(len(ids)) == 24 * per_token
    assert cache.nbytes == len(ids) * per_token
    assert cache.resize(100) == -60 * per_token
    assert cache.shed(10, sinks=4) == 90 * per_token
    assert cache.nbytes == 10 * per_token


def test_trimming_and_growing_change_no_logits(large: TinyRung, ids: list[int]) -> None:
    cache = large.prefill_afresh(ids[:-1], spare=30)
    fork = cache.fork(spare=1)
    cache.resize(cache.cells)
    cache.resize(cache.cells + 1)
    last = len(ids) - 1
    assert torch.equal(large.step(cache, ids[-1:], last), large.step(fork, ids[-1:], last))


def test_a_shed_keeps_sinks_and_recent_cells_at_their_positions(large: TinyRung, ids: list[int]) -> None:
    cache = large.prefill_afresh(ids)
    before = cache.export()
    cache.shed(12, sinks=4)
    assert cache.positions == [0, 1, 2, 3, *range(32, 40)]
    after = cache.export()
    kept = torch.tensor(cache.positions)
    assert torch.equal(after.keys, before.keys[:, :, kept])
    assert torch.equal(after.values, before.values[:, :, kept])


@pytest.mark.parametrize(
    ("keep", "positions"),
    [(0, []), (1, [39]), (4, [0, 1, 2, 39]), (5, [0, 1, 2, 3, 39]), (99, list(range(40)))],
)
def test_a_shed_to_any_size(large: TinyRung, ids: list[int], keep: int, positions: list[int]) -> None:
    cache = large.prefill_afresh(ids)
    cache.shed(keep, sinks=4)
    assert cache.positions == positions


@torch.inference_mode()
def test_after_a_shed_distances_stay_exact(large: TinyRung, ids: list[int]) -> None:
    """The same as hiding the lost cells from attention by a mask, in a model that still holds them."""
    cache = large.prefill_afresh(ids[:-1], spare=1)
    hidden = torch.ones(1, 1, 1, len(ids), dtype=torch.bool)
    hidden[..., 4:31] = False
    argument = cache_argument(large.model, DynamicCache(config=large.model.config))
    large.model(input_ids=torch.tensor([ids[:-1]]), use_cache=True, **argument)
    last = torch.tensor([ids[-1:]])
    position = torch.tensor([[len(ids) - 1]])
    expected = large.model(input_ids=last, position_ids=position, attention_mask=hidden, **argument).logits[
        0, -1
    ]
    cache.shed(12, sinks=4)
    cache.resize(13)
    got = large.step(cache, ids[-1:], len(ids) - 1)[0]
    torch.testing.assert_close(got, expected[: large.vocabulary], rtol=0, atol=1e-5)


def test_a_failed_step_leaves_the_cache_as_it_was(large: TinyRung, ids: list[int]) -> None:
    cache = large.prefill_afresh(ids, spare=1)
    before = cache.export()
    with pytest.raises(IndexError):
        large.step(cache, [10_000], len(ids))
    assert cache.positions == list(range(len(ids)))
    assert torch.equal(cache.export().keys, before.keys)


def test_a_bfloat16_cache_takes_half_the_bytes(ids: list[int], large: TinyRung) -> None:
    from dataclasses import replace

    half = replace(large.layout, dtype_bytes=2)
    cache = PreallocatedCache(half, 40)
    cache.append(large.prefill_afresh(ids).export())
    assert cache.nbytes * 2 == 40 * large.layout.bytes_per_token
    assert cache.export().keys.dtype == torch.float32
