"""Checks a ladder on a device and times the parts of a switch: prefill, decode, transplant, release.

``python -m benchmarks.device [LADDER] [--device cuda]``

On an accelerator every rung runs in bfloat16, and the bytes are the device allocator's. The check comes first: the
logits on the device are those of the processor within the tolerance of the precision; if not, nothing is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
import typer
from rich.console import Console
from tabulate import tabulate

from molt.core.engine_protocol import Destination, Request
from molt.core.ladder import Route, RouteKind
from molt.engine.device import allocated_bytes, usable_device
from molt.engine.real import RealEngine
from molt.fitting.fit import load_for_fit
from molt.kv.loaded_rung import LoadedRung
from molt.models.ladder_file import LadderSpec, resolve
from molt.models.loader import load
from molt.program import run_command

PROMPT = tuple(i % 200 + 20 for i in range(513))
REPEATS = 5
KL_MAX = 0.02
"""Nats a token between a rung in bfloat16 on the device and in float32 on the processor."""


def on_device(spec: LadderSpec, device: torch.device) -> LadderSpec:
    """The ladder as the device can run it."""
    if device.type == "cpu":
        return spec
    return replace(spec, rungs=tuple(replace(rung, precision="bf16") for rung in spec.rungs))


def divergence(spec: LadderSpec, name: str, device: torch.device) -> float:
    """KL (nats a token) of a rung on the device to the same weights in float32 on the processor."""
    ids = list(PROMPT[:128])
    numbers = spec.ladder.rung(name)
    there = LoadedRung(
        load(on_device(spec, device).rung(name), device).decoder, numbers.kv, 4096, spec.vocabulary
    )
    here = load_for_fit(spec, replace(spec.rung(name), precision="fp32"))
    ours, theirs = (
        rung.step(rung.empty_cache(len(ids)), ids, 0).double().log_softmax(-1) for rung in (here, there)
    )
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def median_ms(work: Callable[[], object], device: torch.device) -> float:
    """Median wall time of repeated work, in milliseconds, the device's queue emptied before and after."""
    times = []
    for _ in range(REPEATS):
        _wait(device)
        begin = time.perf_counter()
        work()
        _wait(device)
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timings(spec: LadderSpec, device: torch.device) -> list[tuple[str, str, float]]:
    """Rows of what was timed: what, where, milliseconds."""
    engine = RealEngine(on_device(spec, device), device=device)
    rows: list[tuple[str, str, float]] = []
    request = Request(PROMPT, 200, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)
    for rung in spec.ladder.rungs:
        engine.load(rung.name)
        engine.admit("tenant", request, rung.name, len(PROMPT) + 199)
        begin = time.perf_counter()
        engine.prefill("tenant", len(PROMPT) - 1, 128)
        _wait(device)
        rows.append(("prefill of 512", rung.name, (time.perf_counter() - begin) * 1e3))
        rows.append(("decode", rung.name, median_ms(lambda: engine.decode("tenant", 1), device)))
        engine.finish("tenant")
        begin = time.perf_counter()
        engine.release(rung.name)
        rows.append(("release", rung.name, (time.perf_counter() - begin) * 1e3))
    rows.extend(
        ("transplant of 512", f"{route.source}->{route.dest}", _transplant(engine, route, request))
        for route in spec.ladder.routes
        if route.kind is RouteKind.PROJECT
    )
    return rows


def _transplant(engine: RealEngine, route: Route, request: Request) -> float:
    engine.load(route.source)
    engine.load(route.dest)
    times = []
    for _ in range(REPEATS):
        engine.admit("tenant", request, route.source, len(PROMPT) + 199)
        engine.prefill("tenant", len(PROMPT) - 1, 128)
        begin = time.perf_counter()
        engine.switch("tenant", Destination(route.dest, route.kind, len(PROMPT) + 199))
        times.append((time.perf_counter() - begin) * 1e3)
        engine.finish("tenant")
    engine.release(route.source)
    engine.release(route.dest)
    return statistics.median(times)


def main(
    ladder: Annotated[str, typer.Argument(help="A ladder's name or file.")] = "pico",
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
) -> None:
    """Check a ladder on a device, then time it."""
    where, spec = usable_device(device), resolve(ladder)
    for name in {rung.weights: rung.name for rung in spec.rungs}.values():
        kl = divergence(spec, name, where)
        print(f"{name}: KL to float32 on the processor {kl:.4f}")
        if kl > KL_MAX:
            print(f"{name}: more than {KL_MAX}: wrong on {device}")
            raise typer.Exit(1)
    print(tabulate(timings(spec, where), ("what", "where", "ms"), floatfmt=".2f"))
    if where.type == "cuda":
        print(f"left on the device: {allocated_bytes(where)} bytes")
    Console(stderr=True).print(f"torch {torch.__version__} on {where}")


if __name__ == "__main__":
    run_command(main)
