"""RoPE can be taken out of a key and put back, exactly as the models put it in."""

from __future__ import annotations

import torch
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from molt.kv.key_rotation import rotate, unrotate
from tests.tiny_rungs import TinyRung

POSITIONS = torch.tensor([0, 1, 2, 3, 90, 91, 250])


def keys_for(rung: TinyRung) -> torch.Tensor:
    shape = (rung.layout.layers, rung.layout.kv_heads, len(POSITIONS), rung.layout.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_rotation_is_the_one_the_model_applies(any_rung: TinyRung) -> None:
    keys = keys_for(any_rung)
    cos, sin = any_rung.model.base_model.rotary_emb(keys, POSITIONS[None])
    expected, _ = apply_rotary_pos_emb(keys, keys, cos, sin)
    rotated = (
        rotate(keys, POSITIONS, any_rung.rope) * any_rung.rope.score_factor**0.5
    )  # ours keep their length
    torch.testing.assert_close(rotated, expected, rtol=0, atol=1e-6)


def test_off_and_on_again_is_a_round_trip(any_rung: TinyRung) -> None:
    keys = keys_for(any_rung)
    there_and_back = rotate(unrotate(keys, POSITIONS, any_rung.rope), POSITIONS, any_rung.rope)
    torch.testing.assert_close(there_and_back, keys, rtol=0, atol=2e-6)


def test_content_does_not_depend_on_the_position(any_rung: TinyRung) -> None:
    keys = keys_for(any_rung)
    moved = rotate(keys, POSITIONS + 5, any_rung.rope)
    torch.testing.assert_close(unrotate(moved, POSITIONS + 5, any_rung.rope), keys, rtol=0, atol=2e-6)
