"""A switch in parts: it stops in time, goes on where it was, and leaves nothing when it is abandoned."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from molt.core.engine_protocol import SINKS, Destination, Engine
from molt.core.ladder import RouteKind
from molt.engine.real import RealEngine
from molt.kv import transplant
from molt.models.ladder_file import LadderSpec
from molt.work import Unfinished
from tests.engine.test_real import POSITIONS, request, start, with_every_rung

# The fixtures of the ladder on disk.
from tests.engine.test_real import spec  # noqa: F401  isort: skip

AT_ONCE = 0
NATIVE = 6


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short context has many."""
    monkeypatch.setattr(transplant, "CHUNK_CELLS", 5)
    monkeypatch.setattr(transplant, "NATIVE_CHUNK_TOKENS", 2)


@pytest.fixture
def engine(spec: LadderSpec) -> RealEngine:  # noqa: F811
    """Its one generation has a context of some cells on ``large``."""
    made = with_every_rung(spec)
    start(made, request())
    made.decode("tenant", 3)
    return made


def switch(engine: Engine, dest: str = "small") -> None:
    engine.switch("tenant", Destination(dest, RouteKind.PROJECT, POSITIONS, NATIVE), AT_ONCE)


def parts(engine: Engine, dest: str = "small") -> int:
    """Switch; how many calls that took."""
    for count in range(1, 1000):
        try:
            switch(engine, dest)
        except Unfinished:
            continue
        return count
    raise AssertionError("it does not end")


def test_parts_come_to_what_one_switch_does(engine: RealEngine, spec: LadderSpec) -> None:  # noqa: F811
    whole = with_every_rung(spec)
    start(whole, request())
    whole.decode("tenant", 3)
    whole.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS, NATIVE))
    assert parts(engine) > 5
    assert engine.settled_cells("tenant") == whole.settled_cells("tenant") == SINKS
    assert engine.decode("tenant", 99) == whole.decode("tenant", 99)


CHANGES: dict[str, Callable[[Engine], object]] = {
    "park": lambda engine: engine.park("tenant"),
    "grow": lambda engine: engine.grow("tenant", POSITIONS),
    "spill": lambda engine: (engine.spill("tenant"), engine.grow("tenant", 40), engine.restore("tenant")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_abandoned_switch_leaves_the_answer_as_it_was(
    engine: RealEngine,
    spec: LadderSpec,  # noqa: F811
    change: str,
) -> None:
    left_alone = with_every_rung(spec)
    start(left_alone, request())
    left_alone.decode("tenant", 3)
    with pytest.raises(Unfinished):
        switch(engine)
    CHANGES[change](engine)
    engine.grow("tenant", POSITIONS)
    assert engine.decode("tenant", 99) == left_alone.decode("tenant", 99)


@pytest.mark.parametrize("done", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "leave",
    [
        lambda engine: engine.park("tenant"),
        lambda engine: engine.finish("tenant"),
        lambda engine: None,  # releasing does
        RealEngine.kill,
    ],
)
def test_an_abandoned_switch_holds_on_to_nothing(
    engine: RealEngine, done: int, leave: Callable[[Engine], object]
) -> None:
    """``release`` asserts that nothing refers to the weights any more."""
    for _ in range(done):
        with pytest.raises(Unfinished):
            switch(engine)
    gc.disable()
    try:
        leave(engine)
        engine.release("small")
    finally:
        gc.enable()


def test_another_destination_begins_anew(engine: RealEngine, spec: LadderSpec) -> None:  # noqa: F811
    """What had been done of a switch to one rung is of no use for a switch to another."""
    for _ in range(3):
        with pytest.raises(Unfinished):
            switch(engine)
    assert parts(engine, "twin") > 5
    whole = with_every_rung(spec)
    start(whole, request())
    whole.decode("tenant", 3)
    whole.switch("tenant", Destination("twin", RouteKind.PROJECT, POSITIONS, NATIVE))
    assert engine.decode("tenant", 99) == whole.decode("tenant", 99)
