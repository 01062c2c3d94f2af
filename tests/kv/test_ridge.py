"""The fit is ridge regression, whatever way the rows came in."""

from __future__ import annotations

import pytest
import torch

from molt.kv.ridge import Statistics, solve, unexplained

X, Y = torch.arange(5), torch.arange(5, 8)


@pytest.fixture
def rows() -> torch.Tensor:
    """(200, 8): five features with means far from 0, three targets that depend on them, and noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64) + 1000
    true = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return torch.cat((x, x @ true + 0.1 * torch.randn(200, 3, generator=generator)), dim=1)


def collected(rows: torch.Tensor, chunk: int) -> Statistics:
    statistics = Statistics(origin=rows[:10].mean(0))
    for part in rows.split(chunk):
        statistics.add(part)
    return statistics


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_the_estimate_is_the_textbook_one(rows: torch.Tensor, ridge: float) -> None:
    weight, bias = solve(collected(rows, 64), X, Y, ridge)
    x = rows[:, :5] - rows[:, :5].mean(0)
    y = rows[:, 5:] - rows[:, 5:].mean(0)
    penalty = ridge * x.var(0, unbiased=False).mean() * len(rows)
    expected = torch.linalg.solve(x.T @ x + penalty * torch.eye(5, dtype=torch.float64), x.T @ y)
    torch.testing.assert_close(weight, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(bias, rows[:, 5:].mean(0) - rows[:, :5].mean(0) @ expected, rtol=0, atol=1e-6)


def test_chunking_does_not_matter(rows: torch.Tensor) -> None:
    for one, other in zip(
        solve(collected(rows, 7), X, Y, 0.01), solve(collected(rows, 200), X, Y, 0.01), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_error_from_sums_is_the_error_of_the_rows(rows: torch.Tensor) -> None:
    weight, bias = solve(collected(rows[:100], 50), X, Y, 0.01)
    held = rows[100:]
    error = (held[:, 5:] - held[:, :5] @ weight - bias).square().sum()
    variance = (held[:, 5:] - held[:, 5:].mean(0)).square().sum()
    share = unexplained(collected(held, 33), X, Y, weight, bias)
    assert share == pytest.approx(float(error / variance), rel=1e-6)
