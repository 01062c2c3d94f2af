"""The simulator tells the same story, byte for byte, until somebody means to change it."""

from __future__ import annotations

import pytest

from molt.errors import NotFetchedError
from tests.golden import bodies


def test_every_shipped_scenario_is_recorded() -> None:
    assert sorted(bodies.recorded()) == bodies.names()


@pytest.mark.parametrize("name", bodies.names())
def test_the_log_is_the_recorded_one(name: str) -> None:
    """``python -m tests.golden.bodies`` renews what is recorded, where a change is meant."""
    try:
        found = bodies.digests(name)
    except NotFetchedError as absent:
        pytest.skip(str(absent))
    assert found == bodies.recorded()[name]
