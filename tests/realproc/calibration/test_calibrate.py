"""The fit of step costs: what is measured comes back, whatever the noise, and never negative."""

from __future__ import annotations

from pathlib import Path

import psutil
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from molt.cli.main import app
from molt.core.costs import HealingFactor, RungCosts, StepCost
from molt.errors import InputError
from molt.live.remote import RemoteEngine
from molt.models.ladder_file import resolve
from realproc.calibration.calibrate import fit_step, measured_engine
from realproc.calibration.loop_overhead import PROMPT_TOKENS, added_ns, with_overhead

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


@given(COEFFICIENTS, st.floats(1.0, 3.0), st.integers(0, 10**7))
def test_what_a_world_adds_is_added_once_to_every_step(
    coefficients: tuple[float, float, float], factor: float, added: int
) -> None:
    read, decode = StepCost(*coefficients), StepCost(0.0, *coefficients[1:])
    costs = RungCosts(load_ns=5, release_ns=7, read=read, decode=decode, healing=(HealingFactor(8, factor),))
    within = with_overhead(costs, added, PROMPT_TOKENS)
    for context in (0, 500):
        assert within.read.ns(64, context) - read.ns(64, context) in range(added - 1, added + 2)
        assert within.decode.ns(1, context) - decode.ns(1, context) in range(added - 1, added + 2)
    healing_ns = within.healing_ns(8, PROMPT_TOKENS) - costs.healing_ns(8, PROMPT_TOKENS)
    assert abs(healing_ns - added) <= 1 + 1e-6 * within.healing_ns(8, PROMPT_TOKENS)
    assert (within.load_ns, within.release_ns) == (5, 7)


def test_a_world_adds_to_a_token_what_its_engine_does_not_take() -> None:
    """With costs that predict 0, the whole token is added; with costs that predict too much, nothing is."""
    spec = resolve("pico")
    nothing = RungCosts(0, 0, StepCost(0, 0), StepCost(0, 0))
    too_much = RungCosts(0, 0, StepCost(0, 0), StepCost(0, 1e12))
    assert added_ns(spec, spec.ladder.rung("tier2"), nothing) > 100_000
    assert added_ns(spec, spec.ladder.rung("tier2"), too_much) == 0


def test_only_an_engine_apart_is_slowed_down(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    result = CliRunner().invoke(app, ["calibrate", "pico", "--slowdown", "10", "--out", str(profile)])
    assert isinstance(result.exception, InputError)
    assert "--slowdown: needs --apart" in str(result.exception)
    assert not profile.exists()
