"""Ridge regression from covariances, in float64.

Covariances come from sums over rows (``molt.fitting.sums``), so calibration text of any length costs the square of
the width and no more.
"""

from __future__ import annotations

import torch
from torch import Tensor

USE_MIN = 1e-30  # of a component that no target needs
RIDGE_MIN = 1e-12  # of one that is raised from nothing
RAISED_MAX = 12


def solve(xx: Tensor, xy: Tensor, ridge: float) -> Tensor:
    """Weights W (p, q) from covariances of features (p, p) and of features with targets (p, q).

    Minimises the mean of ``|y - x W|^2`` plus ``penalty |W|^2`` for centred x and y, where the penalty is
    ``ridge`` times the mean variance of the features. ``xx`` is used up.
    """
    return torch.cholesky_solve(xy, _factor(xx, ridge))


def solve_reduced(
    xx: Tensor, xy: Tensor, importance: Tensor, rank: int, ridge: float
) -> tuple[Tensor, Tensor]:
    """The best W = E D of a ``rank``: E (p, rank) and D (rank, q), the components of x E by falling use.

    What ``solve`` minimises, with the error of every target times its ``importance`` (q,): without a bound on
    the rank that would change nothing, but with one it decides which targets the components serve.
    """
    lower = _factor(xx, ridge)
    whitened = torch.linalg.solve_triangular(lower, xy * importance, upper=False)  # (p, q)
    of_features = len(whitened) < len(importance)
    squares = whitened @ whitened.T if of_features else whitened.T @ whitened
    uses, vectors = torch.linalg.eigh(squares)  # by rising use
    uses, vectors = uses[-rank:].flip(0).clamp_min_(USE_MIN), vectors[:, -rank:].flip(1)
    if of_features:
        left, right = vectors * uses.sqrt(), (whitened.T @ vectors) / uses.sqrt()
    else:
        left, right = whitened @ vectors, vectors  # (p, rank), (q, rank) orthonormal
    return torch.linalg.solve_triangular(lower.T, left, upper=True), right.T / importance


def _factor(xx: Tensor, ridge: float) -> Tensor:
    """The lower factor of ``xx`` and its penalty.

    Sums of products are rounded. With fewer rows than features that alone makes ``xx`` indefinite, and a ``ridge``
    below the rounding does not help: then it is raised tenfold until one does. Raises ``ValueError`` if none does.
    """
    unit, penalty = float(xx.diagonal().mean()), 0.0
    for _ in range(RAISED_MAX):
        xx.diagonal().add_(unit * (ridge - penalty))
        lower, failed = torch.linalg.cholesky_ex(xx)
        if not failed:
            return lower
        penalty, ridge = ridge, max(10 * ridge, RIDGE_MIN)
    raise ValueError("covariances that no penalty makes positive definite: not finite, or all of them 0")
