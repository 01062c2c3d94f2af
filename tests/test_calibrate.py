"""The fit of step costs: what is measured comes back, whatever the noise, and never negative."""

from __future__ import annotations

import psutil
from hypothesis import given
from hypothesis import strategies as st

from molt.core.costs import StepCost
from molt.live.remote import RemoteEngine
from molt.models.ladder_file import resolve
from realproc.calibrate import fit_step, measured_engine

GRID = [(tokens, context) for tokens in (8, 32, 128) for context in (0, 128, 512, 1024)]
COEFFICIENTS = st.tuples(st.floats(1e4, 1e8), st.floats(1e2, 1e6), st.floats(0, 1e3))


@given(COEFFICIENTS)
def test_exact_samples_give_their_cost_back(coefficients: tuple[float, float, float]) -> None:
    true = StepCost(*coefficients)
    fitted = fit_step([(tokens, context, true.ns(tokens, context)) for tokens, context in GRID])
    for tokens, context in GRID:
        assert (
            abs(fitted.ns(tokens, context) - true.ns(tokens, context)) <= 1e-6 * true.ns(tokens, context) + 2
        )


@given(COEFFICIENTS, st.lists(st.floats(0.5, 2), min_size=len(GRID), max_size=len(GRID)))
def test_noisy_samples_give_a_cost_that_is_never_negative(
    coefficients: tuple[float, float, float], noise: list[float]
) -> None:
    true = StepCost(*coefficients)
    samples = [(t, c, true.ns(t, c) * factor) for (t, c), factor in zip(GRID, noise, strict=True)]
    fitted = fit_step(samples)
    assert min(fitted.fixed_ns, fitted.token_ns, fitted.pair_ns) >= 0


def test_an_engine_apart_is_a_process_that_ends_with_its_measuring() -> None:
    with measured_engine(resolve("pico"), apart=True) as engine:
        assert isinstance(engine, RemoteEngine)
        engine.load("tier2")
        assert engine.weight_bytes("tier2") > 0
        pid = engine.pid
        assert pid is not None
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
