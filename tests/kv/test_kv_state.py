"""A state says what is wrong with it before anything is done with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from molt.core.ladder import KVLayout
from molt.kv.kv_state import KVState

LAYOUT = KVLayout(layers=2, kv_heads=1, head_dim=4, dtype_bytes=4)


def state() -> KVState:
    return KVState(torch.zeros(2, 1, 3, 4), torch.ones(2, 1, 3, 4), torch.tensor([0, 1, 9]))


def test_a_gap_in_the_positions_is_allowed() -> None:
    state().check(LAYOUT)


def test_an_empty_state_is_a_state() -> None:
    KVState(torch.zeros(2, 1, 0, 4), torch.zeros(2, 1, 0, 4), torch.zeros(0, dtype=torch.int64)).check(LAYOUT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keys": torch.zeros(2, 1, 2, 4)}, "keys"),
        ({"values": torch.zeros(2, 2, 3, 4)}, "values"),
        ({"values": torch.zeros(2, 1, 3, 4, dtype=torch.float16)}, "float16"),
        ({"keys": torch.full((2, 1, 3, 4), float("nan"))}, "not finite"),
        ({"values": torch.full((2, 1, 3, 4), float("inf"))}, "not finite"),
        ({"positions": torch.tensor([0, 2, 2])}, "increasing"),
        ({"positions": torch.tensor([-1, 0, 1])}, "increasing"),
        ({"positions": torch.tensor([0.0, 1.0, 2.0])}, "int64"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(state(), **change).check(LAYOUT)


def test_selected_cells_keep_their_positions() -> None:
    assert state().select(torch.tensor([0, 2])).positions.tolist() == [0, 9]
