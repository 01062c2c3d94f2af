"""The k-th allocation fails, for every k: the old rung still serves, or a clean fallback does, never half of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from molt.core.engine_protocol import Destination, LoadError, SpillError, SwitchError
from molt.core.ladder import RouteKind
from molt.engine.real import RealEngine
from molt.models.arena import Arena
from molt.models.ladder_file import LadderSpec
from tests.engine.test_real import CHUNK, POSITIONS, PROMPT, request, start, undisturbed, with_every_rung
from tests.models.live_bytes import made_by

# The fixtures of the ladder on disk.
from tests.engine.test_real import spec  # noqa: F401  isort: skip


class Allocations(TorchDispatchMode):
    """Counts what is allocated, by operations and as arenas; the ``fails``-th of it is not to be had."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self.fails = fails
        self.count = 0

    def one(self) -> None:
        self.count += 1
        if self.count == self.fails:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate too much")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if next(made_by((args, kwargs), result), None) is not None:
            self.one()
        return result


@contextmanager
def failing(fails: int) -> Iterator[Allocations]:
    allocate = Arena.anonymous
    with Allocations(fails) as mode:

        def arena(nbytes: int) -> Arena:
            mode.one()
            return allocate(nbytes)

        with patch.object(Arena, "anonymous", arena):
            yield mode


def every(attempt: Callable[[int], bool], step: int = 1) -> int:
    """Call ``attempt`` with 1, 2, 3, ... until it says that nothing failed any more; how often it did."""
    fails = 1
    while attempt(fails):
        fails += step
    return fails - 1


@pytest.mark.parametrize(
    "route", [(RouteKind.PROJECT, "small"), (RouteKind.CARRY, "twin")], ids=["project", "carry"]
)
def test_a_switch_without_memory_leaves_the_old_rung_serving(
    spec: LadderSpec,  # noqa: F811
    route: tuple[RouteKind, str],
) -> None:
    engine = with_every_rung(spec)
    whole = undisturbed(engine, request())

    def attempt(fails: int) -> bool:
        start(engine, request())
        first = engine.decode("tenant", 3).ids
        try:
            with failing(fails):
                engine.switch("tenant", Destination(route[1], route[0], POSITIONS))
        except SwitchError:
            assert engine._generations["tenant"].rung == "large"
            assert first + engine.decode("tenant", 99).ids == whole.ids
            failed = True
        else:
            assert engine._generations["tenant"].rung == route[1]
            failed = False
        engine.finish("tenant")
        return failed

    assert every(attempt, step=1 if route[0] is RouteKind.CARRY else 7) > (
        3 if route[0] is RouteKind.CARRY else 50
    )


def test_a_load_without_memory_leaves_nothing_of_it(spec: LadderSpec) -> None:  # noqa: F811
    engine = RealEngine(spec)

    def attempt(fails: int) -> bool:
        try:
            with failing(fails):
                engine.load("small")
        except LoadError:
            assert engine.weight_bytes("small") == 0
            return True
        return False

    assert every(attempt, step=3) > 10
    assert engine.weight_bytes("small") == spec.ladder.rung("small").weight_bytes
    engine.release("small")


@pytest.mark.parametrize("keep", [12, 0])
def test_a_shed_park_or_growth_without_memory_loses_no_cell_it_keeps(spec: LadderSpec, keep: int) -> None:  # noqa: F811
    engine = with_every_rung(spec)

    def attempt(fails: int) -> bool:
        start(engine, request())
        cache = engine._generations["tenant"].cache
        before = cache.export()
        try:
            with failing(fails):
                engine.park("tenant")
                engine.grow("tenant", POSITIONS)
                if keep:
                    engine.shed("tenant", keep, "large")
            failed = False
        except (MemoryError, RuntimeError):
            failed = True
        kept = torch.tensor(cache.positions)
        assert cache.cells in (before.cells, keep)
        assert torch.equal(cache.export().keys, before.keys[:, :, kept])
        assert torch.equal(cache.export().values, before.values[:, :, kept])
        engine.grow("tenant", POSITIONS)
        assert engine.decode("tenant", 1).count == 1
        engine.finish("tenant")
        return failed

    assert every(attempt) > 5


def test_a_spill_without_memory_leaves_the_cache_and_no_file(
    spec: LadderSpec,  # noqa: F811
    tmp_path: Path,
) -> None:
    engine = with_every_rung(spec, spill_folder=tmp_path)
    whole = undisturbed(engine, request())

    def attempt(fails: int) -> bool:
        start(engine, request())
        first = engine.decode("tenant", 3).ids
        engine.park("tenant")
        try:
            with failing(fails):
                engine.spill("tenant")
        except SpillError:
            engine.grow("tenant", POSITIONS)
            assert first + engine.decode("tenant", 99).ids == whole.ids
            failed = True
        else:
            failed = False
        engine.finish("tenant")
        assert list(tmp_path.iterdir()) == []
        return failed

    assert every(attempt) > 3


def test_a_restore_without_memory_costs_reading_again(spec: LadderSpec) -> None:  # noqa: F811
    engine = with_every_rung(spec)
    whole = undisturbed(engine, request())

    def attempt(fails: int) -> bool:
        start(engine, request())
        first = engine.decode("tenant", 3).ids
        engine.park("tenant")
        engine.spill("tenant")
        engine.grow("tenant", POSITIONS)
        try:
            with failing(fails):
                engine.restore("tenant")
            failed = False
        except SpillError:
            engine.shed("tenant", 0, "large")
            engine.grow("tenant", POSITIONS)
            engine.prefill("tenant", len(PROMPT) + 3 - 1, CHUNK)
            failed = True
        assert first + engine.decode("tenant", 99).ids == whole.ids
        engine.finish("tenant")
        return failed

    assert every(attempt) > 3


def test_healing_without_memory_keeps_what_was_exact(spec: LadderSpec) -> None:  # noqa: F811
    engine = with_every_rung(spec)

    def attempt(fails: int) -> bool:
        start(engine, request())
        engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
        engine.decode("tenant", 1, 8)
        generation = engine._generations["tenant"]
        settled, known = engine.settled_cells("tenant"), list(generation.known)
        try:
            with failing(fails):
                engine.decode("tenant", 1, 8)
            failed = False
        except (MemoryError, RuntimeError):
            failed = True
            assert engine.settled_cells("tenant") == settled
            assert generation.known == known
        own = engine._loaded["small"].resident.prefill_afresh(generation.known[:settled]).export()
        torch.testing.assert_close(generation.cache.export(0, settled).keys, own.keys, rtol=0, atol=2e-5)
        while engine.settled_cells("tenant") < generation.cache.cells:
            engine.decode("tenant", 1, 8)
        own = engine._loaded["small"].resident.prefill_afresh(generation.known[:-1]).export()
        torch.testing.assert_close(generation.cache.export().keys, own.keys, rtol=0, atol=2e-5)
        engine.finish("tenant")
        return failed

    assert every(attempt, step=11) > 50
