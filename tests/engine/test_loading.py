"""A load in parts: it stops in time, goes on where it was, and leaves nothing when it is abandoned."""

from __future__ import annotations

import gc
import weakref

import pytest

from molt.core.engine_protocol import LoadError
from molt.engine.real import RealEngine
from molt.models import loader
from molt.models.arena import Arena
from molt.models.ladder_file import LadderSpec
from tests.engine.test_real import request, start

# The fixtures of the ladder on disk.
from tests.engine.test_real import spec  # noqa: F401  isort: skip

AT_ONCE = 0


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tiny rungs of these tests have many."""
    monkeypatch.setattr(loader, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(loader, "READ_BYTES", 4096)


@pytest.fixture
def arenas(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref]:
    """References to the memory of every arena that is made."""
    made: list[weakref.ref] = []
    allocate = Arena.anonymous

    def watched(nbytes: int) -> Arena:
        arena = allocate(nbytes)
        made.append(arena.watch())
        return arena

    monkeypatch.setattr(Arena, "anonymous", watched)
    return made


@pytest.mark.parametrize("prepared", [False, True], ids=["from tensors", "from an image"])
@pytest.mark.parametrize("rung", ["large", "twin"])
def test_a_load_in_parts_is_the_whole(
    spec: LadderSpec,  # noqa: F811
    rung: str,
    prepared: bool,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes many calls, counts as nothing until the last of them, and then answers as if loaded at once."""
    monkeypatch.setenv("MOLT_CACHE", str(tmp_path_factory.mktemp("cache")))
    if prepared:
        loader.prepare(spec.rung(rung))
    whole, parts = RealEngine(spec), RealEngine(spec)
    assert whole.load(rung)
    calls = 1
    while not parts.load(rung, AT_ONCE):
        assert parts.weight_bytes(rung) == 0
        calls += 1
    assert calls > 10
    assert parts.weight_bytes(rung) == whole.weight_bytes(rung)
    assert parts.load(rung, AT_ONCE)
    for engine in (whole, parts):
        start(engine, request(), rung=rung)
    assert parts.decode("tenant", 99) == whole.decode("tenant", 99)


def test_an_abandoned_load_is_gone(spec: LadderSpec, arenas: list[weakref.ref]) -> None:  # noqa: F811
    """Its memory is back when ``release`` returns, and the next load begins anew."""
    engine = RealEngine(spec)
    gc.disable()
    try:
        for _ in range(5):
            assert not engine.load("large", AT_ONCE)
        assert [arena() is None for arena in arenas] == [False]
        assert engine.release("large") == 0
        assert [arena() is None for arena in arenas] == [True]
    finally:
        gc.enable()
    assert engine.load("large")
    assert len(arenas) == 2


def test_a_kill_abandons_what_is_under_way(spec: LadderSpec, arenas: list[weakref.ref]) -> None:  # noqa: F811
    engine = RealEngine(spec)
    engine.load("large", AT_ONCE)
    engine.load("small", AT_ONCE)
    engine.kill()
    assert [arena() is None for arena in arenas] == [True, True]


def test_two_loads_may_alternate(spec: LadderSpec) -> None:  # noqa: F811
    """Each goes on where it was."""
    engine = RealEngine(spec)
    done = {"large": False, "small": False}
    while not all(done.values()):
        for rung in done:
            done[rung] = engine.load(rung, AT_ONCE)
    assert all(engine.weight_bytes(rung) == spec.ladder.rung(rung).weight_bytes for rung in done)


def test_a_load_without_memory_fails_and_may_be_tried_again(
    spec: LadderSpec,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = RealEngine(spec)

    def none_left(nbytes: int) -> Arena:
        raise MemoryError(f"no {nbytes} bytes to be had")

    with monkeypatch.context() as patch:
        patch.setattr(Arena, "anonymous", none_left)
        with pytest.raises(LoadError, match="no memory for large"):
            engine.load("large", AT_ONCE)
    assert engine.weight_bytes("large") == 0
    assert engine.load("large")
