"""Matrices in bfloat16 change what a rung makes of a text by little, and its keys' biases not at all."""

from __future__ import annotations

from dataclasses import replace

import torch

from molt.fitting.bf16_decoder import bf16_decoder
from molt.kv.loaded_rung import LoadedRung


def test_the_cache_is_nearly_the_same(large: LoadedRung, ids: list[int]) -> None:
    exact = large.prefill_afresh(ids).export()
    quick = replace(large, decoder=bf16_decoder(large.decoder), model=None).prefill_afresh(ids).export()
    for one, other in ((exact.keys, quick.keys), (exact.values, quick.values)):
        error = (one - other).square().mean() / one.square().mean()
        assert 0 < error < 1e-3


def test_it_computes_in_float32(large: LoadedRung) -> None:
    decoder = bf16_decoder(large.decoder)
    assert decoder.dtype == torch.float32
    assert decoder.embed([1, 2]).dtype == torch.float32
    assert decoder.head is decoder.embedding or not large.decoder.shape.tied
