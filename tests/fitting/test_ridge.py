"""The fit is ridge regression, and the best one of its rank."""

from __future__ import annotations

import pytest
import torch

from molt.fitting.ridge import solve, solve_reduced


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Centred: (200, 5) features, and (200, 3) targets that depend on them, with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    true = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    y = x @ true + 0.1 * torch.randn(200, 3, generator=generator, dtype=torch.float64)
    return x - x.mean(0), y - y.mean(0)


def covariances(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.T @ x / len(x), x.T @ y / len(x)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_the_estimate_is_the_textbook_one(rows: tuple[torch.Tensor, torch.Tensor], ridge: float) -> None:
    x, y = rows
    weight = solve(*covariances(x, y), ridge)
    penalty = ridge * x.var(0, unbiased=False).mean() * len(x)
    expected = torch.linalg.solve(x.T @ x + penalty * torch.eye(5, dtype=torch.float64), x.T @ y)
    torch.testing.assert_close(weight, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_with_full_rank_it_is_the_same_whatever_is_important(
    rows: tuple[torch.Tensor, torch.Tensor], ridge: float
) -> None:
    x, y = rows
    importance = torch.tensor([1.0, 5.0, 0.1], dtype=torch.float64)
    encoder, decoder = solve_reduced(*covariances(x, y), importance, 3, ridge)
    torch.testing.assert_close(encoder @ decoder, solve(*covariances(x, y), ridge))


def test_no_map_of_the_rank_does_better(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = rows
    importance = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def error(weight: torch.Tensor) -> float:
        return float(((y - x @ weight) * importance).square().sum())

    encoder, decoder = solve_reduced(*covariances(x, y), importance, 2, 0.0)
    best, generator = error(encoder @ decoder), torch.Generator().manual_seed(1)
    for _ in range(50):
        moved = [
            part + 0.01 * torch.randn(part.shape, generator=generator, dtype=torch.float64)
            for part in (encoder, decoder)
        ]
        assert error(moved[0] @ moved[1]) > best
    one, other = solve_reduced(*covariances(x, y), torch.ones(3, dtype=torch.float64), 1, 0.0)
    assert error(one @ other) > best


def test_more_targets_than_features_are_no_other_case(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    y, x = rows
    importance = torch.linspace(1, 2, 5, dtype=torch.float64)
    whole = solve(*covariances(x, y), 0.1)
    torch.testing.assert_close(
        torch.linalg.multi_dot(solve_reduced(*covariances(x, y), importance, 3, 0.1)), whole
    )
    encoder, decoder = solve_reduced(*covariances(x, y), importance, 2, 0.0)
    assert (encoder.shape, decoder.shape) == ((3, 2), (2, 5))
    fitted = x @ solve(*covariances(x, y), 0.0) * importance
    lost = torch.linalg.svdvals(fitted)[2:].square().sum()
    torch.testing.assert_close((fitted - x @ encoder @ decoder * importance).square().sum(), lost)


def test_a_penalty_below_the_rounding_of_the_sums_is_raised_until_one_can_solve() -> None:
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(40, 60, generator=generator), torch.randn(40, 2, generator=generator)
    xx, xy = (part.double() for part in covariances(x, y))  # products in float32, 40 rows for 60 features
    assert (
        torch.linalg.eigvalsh(xx)[0] < -1e-9 * xx.diagonal().mean()
    )  # the control: rounding made it indefinite
    weight = solve(xx.clone(), xy, 1e-10)
    assert weight.isfinite().all()
    assert (
        x.double() @ weight - y
    ).abs().max() < 0.01  # fewer rows than features: all of it can be explained
    torch.testing.assert_close(solve(xx.clone(), xy, 0.0), solve(xx.clone(), xy, 1e-12), rtol=0, atol=1e-9)


@pytest.mark.parametrize("entry", [0.0, float("nan")])
def test_what_no_penalty_helps_is_refused(entry: float) -> None:
    with pytest.raises(ValueError, match="no penalty makes positive definite"):
        solve(torch.full((3, 3), entry, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64), 1e-5)
