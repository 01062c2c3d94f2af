"""Memory goes back to the operating system, as the kernel counts it."""

from __future__ import annotations

import ctypes
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from molt.core.engine_protocol import Destination, Request
from molt.core.ladder import RouteKind
from molt.engine.real import RealEngine
from molt.models import loader
from molt.models.arena import Arena
from molt.models.ladder_file import RungSpec, resolve
from molt.models.model_config import read_shape
from tests.models.live_bytes import LiveBytes
from tests.models.tiny import QWEN2, write_model

STATUS = Path("/proc/self/status")
MIB = 1024 * 1024
LARGE = {"hidden_size": 512, "intermediate_size": 4096, "vocab_size": 16_000, "num_hidden_layers": 3}
needs_proc = pytest.mark.skipif(
    not STATUS.is_file(), reason="needs Linux: the kernel's count of this process"
)


def resident(kind: str) -> int:
    """Bytes of this process in RAM that are ``RssAnon``, ``RssFile``, or ``VmRSS`` for all."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RungSpec:
    """A rung of about 100 MiB."""
    monkeypatch.setenv("MOLT_CACHE", str(tmp_path / "cache"))
    folder = write_model(tmp_path / "large", QWEN2 | LARGE)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what making the file left behind must not be given back meanwhile
    return RungSpec("large", "large", folder, "fp32", read_shape(folder))


def taken_and_given(spec: RungSpec) -> tuple[int, int]:
    """What a load takes and its release gives back, with whatever else the process allocates meanwhile."""
    before = resident("RssAnon")
    rung = loader.load(spec)
    taken = resident("RssAnon") - before
    del rung
    return taken, taken - (resident("RssAnon") - before)


@needs_proc
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_released_weights_are_back_with_the_system(large: RungSpec, precision: Any) -> None:
    rung = loader.load(
        replace(large, precision=precision)
    )  # what a first load leaves behind is not the rung's
    size = rung.weight_bytes
    del rung
    taken, given = sorted(taken_and_given(replace(large, precision=precision)) for _ in range(3))[1]
    assert size <= taken + MIB
    assert taken <= size + 8 * MIB
    assert given >= 0.95 * size


@needs_proc
def test_mapped_weights_are_pages_of_their_file(large: RungSpec) -> None:
    loader.prepare(large)
    anonymous, file = resident("RssAnon"), resident("RssFile")
    rung = loader.load(replace(large, residency="mapped"))
    total = sum(layer.gate_up.linear(torch.ones(1, 512)).sum() for layer in rung.decoder.layers)
    assert total.isfinite()
    assert resident("RssAnon") - anonymous < 4 * MIB
    assert resident("RssFile") - file > 3 * 2 * 4096 * 512 * 4 - MIB


@needs_proc
def test_two_hundred_switches_leave_memory_where_it_was() -> None:
    engine = RealEngine(resolve("pico"))
    request = Request(tuple(range(20, 420)), 300, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)
    engine.load("tier0")
    engine.admit("tenant", request, "tier0", 720)
    engine.prefill("tenant", 399, 128)
    sizes = []
    for _ in range(100):
        for source, dest in (("tier0", "tier1"), ("tier1", "tier0")):
            engine.load(dest)
            engine.switch("tenant", Destination(dest, RouteKind.PROJECT, 720))
            engine.release(source)
            engine.decode("tenant", 1)
        sizes.append(resident("VmRSS"))
    assert max(sizes[50:]) - sizes[10] < 16 * MIB


def test_releasing_first_never_holds_both_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and caches lie in arenas: the most that were alive together is the larger of the two, not the sum."""
    live: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    peak = 0
    allocate = Arena.anonymous

    def watched(nbytes: int) -> Arena:
        nonlocal peak
        arena = allocate(nbytes)
        live[id(arena._memory)] = arena._memory
        peak = max(peak, sum(len(memory) for memory in live.values()))
        return arena

    monkeypatch.setattr(Arena, "anonymous", watched)
    spec = resolve("pico")
    engine = RealEngine(spec)
    request = Request(tuple(range(20, 120)), 50, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)
    upper, lower = spec.ladder.rung("tier0"), spec.ladder.rung("tier1")
    engine.load("tier0")
    engine.admit("tenant", request, "tier0", 149)
    engine.prefill("tenant", 99, 128)
    engine.park("tenant")
    peak = 0
    engine.release("tier0")
    engine.load("tier1")
    engine.switch("tenant", Destination("tier1", RouteKind.PROJECT, 149))
    assert peak == lower.weight_bytes + upper.kv_bytes(99) + lower.kv_bytes(149)
    assert peak < upper.weight_bytes + lower.weight_bytes


@pytest.mark.parametrize("dest", ["tier0", "tier1", "tier2"])
def test_loading_works_within_the_scratch_of_its_rung(dest: str) -> None:
    spec = resolve("pico")
    with LiveBytes() as loading:
        rung = loader.load(spec.rung(dest))
    assert (
        rung.weight_bytes == spec.ladder.rung(dest).weight_bytes
    )  # which lie in an arena, and are not seen here
    assert loading.peak <= spec.ladder.rung(dest).scratch_bytes


@pytest.mark.parametrize(("source", "dest"), [("tier0", "tier1"), ("tier0", "tier2"), ("tier1", "tier0")])
def test_a_switch_works_within_the_scratch_of_its_destination(source: str, dest: str) -> None:
    """Beside both caches and the map, which the books have, nothing is in use that they do not have."""
    spec = resolve("pico")
    engine = RealEngine(spec)
    request = Request(tuple(range(20, 620)), 50, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)
    engine.load(source)
    engine.admit("tenant", request, source, 650)
    engine.prefill("tenant", 599, 128)
    engine.release(source)
    engine.load(dest)
    with LiveBytes() as switching:
        engine.switch("tenant", Destination(dest, RouteKind.PROJECT, 650, native=16))
    map_bytes = spec.ladder.route(source, dest).map_bytes
    assert map_bytes <= switching.peak <= map_bytes + spec.ladder.rung(dest).scratch_bytes
