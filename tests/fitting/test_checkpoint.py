"""A killed fit goes on where it was, and only if it is the same fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from molt.fitting.checkpoint import Checkpoint
from molt.fitting.sums import BlockSums

PAIRS = frozenset({(0, 0), (0, 1), (1, 1)})


@pytest.fixture
def sums() -> BlockSums:
    generator = torch.Generator().manual_seed(0)
    made = BlockSums((torch.ones(3), torch.zeros(2)), PAIRS)
    made.add([torch.randn(7, 3, generator=generator), torch.randn(7, 2, generator=generator)])
    return made


def test_sums_come_back_as_they_were(tmp_path: Path, sums: BlockSums) -> None:
    Checkpoint(tmp_path / "sums", "key").keep(sums, 4, at_once=True)
    restored, windows = Checkpoint(tmp_path / "sums", "key").restore(PAIRS)
    assert windows == 4
    assert restored is not None
    assert restored.rows == sums.rows
    assert torch.equal(sums.covariance((0, 1), (0, 1)), restored.covariance((0, 1), (0, 1)))
    assert torch.equal(sums.mean((0, 1)), restored.mean((0, 1)))


def test_sums_of_another_fit_are_not_taken_up(tmp_path: Path, sums: BlockSums) -> None:
    Checkpoint(tmp_path / "sums", "key").keep(sums, 4, at_once=True)
    assert Checkpoint(tmp_path / "sums", "other").restore(PAIRS) == (None, 0)


@pytest.mark.parametrize("content", [b"", b"half a file"])
def test_a_damaged_checkpoint_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sums").write_bytes(content)
    assert Checkpoint(tmp_path / "sums", "key").restore(PAIRS) == (None, 0)


def test_nothing_is_written_more_often_than_asked(tmp_path: Path, sums: BlockSums) -> None:
    checkpoint = Checkpoint(tmp_path / "sums", "key", seconds=3600.0)
    checkpoint.keep(sums, 1)
    assert not (tmp_path / "sums").exists()
    checkpoint.keep(sums, 1, at_once=True)
    checkpoint.drop()
    assert not (tmp_path / "sums").exists()
