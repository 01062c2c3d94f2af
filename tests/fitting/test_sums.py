"""Sums by blocks are the sums over all columns, for the blocks that were asked for."""

from __future__ import annotations

import pytest
import torch

from molt.fitting.sums import BlockSums, Regression, products

PLAN = (Regression((0, 2), 3), Regression((1,), 3))


@pytest.fixture
def blocks() -> list[torch.Tensor]:
    """Four blocks of 3, 2, 4 and 2 columns over 60 rows, with means far from 0."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(60, w, generator=generator, dtype=torch.float64) + 50 for w in (3, 2, 4, 2)]


def collected(blocks: list[torch.Tensor]) -> BlockSums:
    sums = BlockSums(tuple(block[:5].mean(0) for block in blocks), products(PLAN))
    for first in range(0, 60, 20):
        sums.add([block[first : first + 20] for block in blocks])
    return sums


def test_only_the_products_that_a_regression_needs_are_summed(blocks: list[torch.Tensor]) -> None:
    sums = collected(blocks)
    assert set(sums.grams) == {(0, 0), (0, 2), (2, 2), (0, 3), (2, 3), (3, 3), (1, 1), (1, 3)}
    with pytest.raises(KeyError):
        sums.covariance((0,), (1,))


@pytest.mark.parametrize("order", [(0, 2, 3), (2, 0, 3), (1, 3)])
def test_blocks_side_by_side_are_what_summing_their_columns_gives(
    blocks: list[torch.Tensor], order: tuple[int, ...]
) -> None:
    sums = collected(blocks)
    columns = torch.cat([blocks[block] for block in order], dim=1)
    covariance = torch.cov(columns.T, correction=0)
    torch.testing.assert_close(sums.mean(order), columns.mean(0))
    torch.testing.assert_close(sums.covariance(order, order), covariance)
    torch.testing.assert_close(sums.covariance(order, order[:1]), covariance[:, : blocks[order[0]].shape[1]])
    torch.testing.assert_close(sums.variance(order[0]), blocks[order[0]].var(0, correction=0))
