"""Measures what every step of a ladder costs on this machine, and writes a profile for the simulator.

Medians of repeated runs on the real engine; the affine costs of ``molt.core.costs.StepCost`` are fitted to them by
least squares with non-negative coefficients. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from molt.core.costs import CostModel, DiskCosts, HealingFactor, RouteCosts, RungCosts, StepCost
from molt.core.engine_protocol import Destination, Engine
from molt.core.healing import CHUNKS
from molt.core.ladder import Ladder, Route, RouteKind
from molt.errors import InputError
from molt.formats import provenance
from molt.formats.log import plain
from molt.formats.new_file import check_new_file, save_new
from molt.jobs.profile import slowed
from molt.live.remote import ChildSpec
from molt.models.ladder_file import LadderSpec, resolve
from molt.models.tokenizer_file import read_tokenizer
from realproc.calibration.loop_overhead import added_ns, with_overhead
from realproc.supervisor.engine_process import SlowedEngine, made_up_request

STEP_REPEATS = 5
STEP_REPEATS_MIN = 2
MEASURING_S = 5.0
DECODES = 20
CONTEXTS = (0, 128, 512, 1024)
MEASURED_CHUNKS = (8, 32, 128)
CELLS = (64, 256, 1024)
HEALING_CELLS = 1024
ANSWER_TOKENS = 64
FEWER = (
    (STEP_REPEATS, MEASURED_CHUNKS),
    (STEP_REPEATS_MIN, MEASURED_CHUNKS),
    (STEP_REPEATS, MEASURED_CHUNKS[:-1]),
    (STEP_REPEATS_MIN, MEASURED_CHUNKS[:-1]),
    (STEP_REPEATS_MIN, (4, 16)),
)
"""Repeats and chunks that are measured: the first of these for which a rung has the positions."""
CONTEXT_MIN = 16
"""The least by which two measured contexts differ."""
SETTLED_MAX = 32
"""Cells of a transplanted cache that need no healing, at most: the first, and those that were prefilled at the end."""
POSITIONS_MIN = 128

Sample = tuple[int, int, float]
"""Tokens, context, nanoseconds."""


@dataclass(frozen=True, slots=True)
class MeasuredLengths:
    """The lengths that are measured on a rung: every one, with an answer of ``ANSWER_TOKENS``, is within its positions.

    Chunks are prefilled ``repeats`` times on top of each of the ``contexts``; caches of ``cells`` are switched, and the
    longest is spilled, and healed, by each of the numbers in ``healing``.
    """

    repeats: int
    chunks: tuple[int, ...]
    contexts: tuple[int, ...]
    cells: tuple[int, ...]
    healing: tuple[int, ...]
    healing_repeats: int


def measured_lengths(positions: int) -> MeasuredLengths:
    """The lengths for a rung of so many positions, at least ``POSITIONS_MIN``."""
    room = positions - 1 - ANSWER_TOKENS
    repeats, chunks = next(
        one for one in FEWER if one[0] * sum(one[1]) + CONTEXT_MIN <= room or one == FEWER[-1]
    )
    spare = room - repeats * sum(chunks)
    contexts = tuple(context for context in CONTEXTS if context <= spare)
    if len(contexts) < 2:
        contexts = (0, spare)
    cells = tuple(sorted({min(length, room) for length in CELLS}))
    if len(cells) < 2:
        cells = (room // 2, room)
    sizes, left = sorted(CHUNKS), cells[-1] - SETTLED_MAX
    healing = tuple(size for number, size in enumerate(sizes) if sum(sizes[: number + 1]) <= left)
    healing_repeats = max(1, min(STEP_REPEATS, left // sum(healing)))
    return MeasuredLengths(repeats, chunks, contexts, cells, healing, healing_repeats)


def calibrate(name: str, out: Path, *, apart: bool = False, slowdown: float = 1.0) -> CostModel:
    """Measure the ladder ``name`` and write its profile to ``out``.

    ``apart``: the engine is a process of its own, as in servers and in runs with real processes; then every call
    includes the pipe, and every step the overhead of a live world. ``slowdown``: the engine is slowed down as in
    scenarios with that slowdown, whose cores cool down while it waits; the profile is converted back to this machine.

    Times depend on lengths alone, so they are measured on made-up prompts. The divergences of a route are means over
    the documents that ship with pico and were held out from all training and fitting.
    """
    from molt.evals.setup import LoadedLadder
    from molt.models.pico.corpus import shipped_documents
    from realproc.calibration.divergence import divergences as judged

    begin_ns, console = time.perf_counter_ns(), Console(stderr=True)
    spec = resolve(name)
    check_new_file(out)
    ladder = spec.ladder
    fewest = min(ladder.rungs, key=lambda rung: rung.max_positions)
    if fewest.max_positions < POSITIONS_MIN:
        raise InputError(
            f"{spec.path}: rung {fewest.name} has {fewest.max_positions} positions; "
            f"calibration needs at least {POSITIONS_MIN}"
        )
    carried = [route for route in ladder.routes if route.kind is not RouteKind.REREAD]
    with measured_engine(spec, apart=apart, slowdown=slowdown) as engine:
        rungs = {
            rung.name: replace(_rung(engine, ladder, rung.name), healing=_healing(engine, ladder, rung.name))
            for rung in track(ladder.rungs, "rungs", console=console)
        }
        disk = _disk(engine, ladder)
        switches = [_switch(engine, ladder, route) for route in track(carried, "switches", console=console)]
    if apart:
        rungs = {
            rung.name: with_overhead(
                rungs[rung.name],
                added_ns(spec, rung, rungs[rung.name], slowdown),
                _healing_lengths(ladder, rung.name).cells[-1],
            )
            for rung in track(ladder.rungs, "worlds", console=console)
        }
    tokenizer = read_tokenizer(spec.tokenizer)
    texts = [tokenizer.encode(text).ids for _, text in shipped_documents()]
    loaded = LoadedLadder(spec)
    divergences = [
        tuple(judged(loaded, route, texts)) for route in track(carried, "quality", console=console)
    ]
    routes = {
        f"{route.source}->{route.dest}": RouteCosts(switch, quality)
        for route, switch, quality in zip(carried, switches, divergences, strict=True)
    }
    costs = CostModel(
        machine=str(provenance.machine()["processor"]),
        ladder=ladder.name,
        process_start_ns=_process_start_ns(),
        disk=disk,
        rungs=rungs,
        routes=routes,
    )
    if slowdown != 1.0:
        costs = slowed(costs, 1 / slowdown)
    document = {
        **plain(costs),
        "measured": {"machine": provenance.machine(), "versions": provenance.versions()},
    }
    save_new(out, json.dumps(document, indent=2, sort_keys=True) + "\n")
    print(f"{out}: written in {(time.perf_counter_ns() - begin_ns) / 1e9:.0f} s", file=sys.stderr)
    return costs


@contextmanager
def measured_engine(spec: LadderSpec, *, apart: bool, slowdown: float = 1.0) -> Iterator[Engine]:
    """The engine to measure; ``apart`` and ``slowdown`` as in ``calibrate``."""
    if apart:
        remote = SlowedEngine(ChildSpec(str(spec.path)), slowdown)
        remote.start()
        try:
            yield remote
        finally:
            remote.kill()
    else:
        from molt.engine.real import RealEngine  # torch

        yield RealEngine(spec, measure_handoff=False)


def _rung(engine: Engine, ladder: Ladder, rung: str) -> RungCosts:
    load_ns, release_ns = _load_and_release(engine, rung)
    engine.load(rung)
    prefills: list[Sample] = []
    decodes: list[Sample] = []
    lengths = measured_lengths(ladder.rung(rung).max_positions)
    for context in lengths.contexts:
        added, decode = _prefills_and_decodes(engine, rung, context, lengths)
        prefills += added
        decodes.append(decode)
    engine.release(rung)
    return RungCosts(load_ns, release_ns, fit_step(prefills), _decode_cost(decodes))


def _load_and_release(engine: Engine, rung: str) -> tuple[int, int]:
    loads, releases = [], []
    for _ in range(STEP_REPEATS):
        loads.append(_elapsed_ns(lambda: engine.load(rung)))
        releases.append(_elapsed_ns(lambda: engine.release(rung)))
    return round(statistics.median(loads)), round(statistics.median(releases))


def _healing(engine: Engine, ladder: Ladder, rung: str) -> tuple[HealingFactor, ...]:
    """How much longer a decode step takes that heals tokens, on a rung that projected caches are switched to."""
    source, lengths = _healed_from(ladder, rung), _healing_lengths(ladder, rung)
    if source is None:
        return ()
    cells = lengths.cells[-1]
    engine.load(source)
    engine.load(rung)
    with _generation(engine, source, cells + 1) as tenant:
        engine.prefill(tenant, cells, MEASURED_CHUNKS[-1])
        engine.switch(tenant, Destination(rung, RouteKind.PROJECT, cells + ANSWER_TOKENS))
        engine.release(source)
        bare_ns = _median_ns(2 * STEP_REPEATS * [lambda: engine.decode(tenant, 1)])
        healing = tuple(
            HealingFactor(
                tokens,
                _median_ns(lengths.healing_repeats * [lambda n=tokens: engine.decode(tenant, 1, n)])
                / bare_ns,  # type: ignore[misc]
            )
            for tokens in lengths.healing
        )
    engine.release(rung)
    return healing


def _healed_from(ladder: Ladder, rung: str) -> str | None:
    """The first rung from which projected caches are switched to ``rung``."""
    ends = (route for route in ladder.routes if route.dest == rung and route.kind is RouteKind.PROJECT)
    return next((route.source for route in ends), None)


def _healing_lengths(ladder: Ladder, rung: str) -> MeasuredLengths:
    return _common_lengths(ladder, rung, _healed_from(ladder, rung) or rung)


def _common_lengths(ladder: Ladder, *rungs: str) -> MeasuredLengths:
    """The lengths for which each of some rungs has the positions."""
    return measured_lengths(min(ladder.rung(rung).max_positions for rung in rungs))


def _disk(engine: Engine, ladder: Ladder) -> DiskCosts:
    """Nanoseconds a byte of the longest cache that is measured, on the smallest rung."""
    rung, writes, reads = ladder.bottom, [], []
    cells = measured_lengths(rung.max_positions).cells[-1]
    engine.load(rung.name)
    with _generation(engine, rung.name, cells + 1) as tenant:
        engine.prefill(tenant, cells, MEASURED_CHUNKS[-1])
        engine.park(tenant)
        size = engine.cache_bytes(tenant)
        for _ in range(STEP_REPEATS):
            writes.append(_elapsed_ns(lambda: engine.spill(tenant)))
            engine.grow(tenant, cells)
            reads.append(_elapsed_ns(lambda: engine.restore(tenant)))
    engine.release(rung.name)
    return DiskCosts(statistics.median(writes) / size, statistics.median(reads) / size)


def _prefills_and_decodes(
    engine: Engine, rung: str, context: int, lengths: MeasuredLengths
) -> tuple[list[Sample], Sample]:
    """Medians of prefilling chunks of every size, one after the other on top of ``context`` cells, then of decoding.

    The context grows meanwhile: each median is placed in the middle of its own stretch.
    """
    to_prefill, done = context + lengths.repeats * sum(lengths.chunks), 0
    with _generation(engine, rung, to_prefill + 1) as tenant:

        def prefill(tokens: int, chunk: int) -> None:
            nonlocal done
            engine.prefill(tenant, tokens, chunk)
            done += tokens

        if context:
            prefill(context, MEASURED_CHUNKS[-1])
        prefills: list[Sample] = []
        for chunk in lengths.chunks:
            before = done
            median_ns = _median_ns(lengths.repeats * [lambda size=chunk: prefill(size, size)])  # type: ignore[misc]
            prefills.append((chunk, (before + done - chunk) // 2, median_ns))
        if done < to_prefill:  # where prefilling takes long, fewer repeats were made
            prefill(to_prefill - done, MEASURED_CHUNKS[-1])
        decode_ns = _median_ns(DECODES * [lambda: engine.decode(tenant, 1)])
    return prefills, (1, done + DECODES // 2, decode_ns)


@contextmanager
def _generation(engine: Engine, rung: str, prompt_tokens: int) -> Iterator[str]:
    """A generation for the time of a ``with`` block; gives its tenant's name."""
    request = made_up_request(prompt_tokens, ANSWER_TOKENS)
    engine.admit("calibration", request, rung, prompt_tokens + ANSWER_TOKENS - 1)
    try:
        yield "calibration"
    finally:
        engine.finish("calibration")


def _switch(engine: Engine, ladder: Ladder, route: Route) -> StepCost:
    engine.load(route.source)
    engine.load(route.dest)
    lengths = _common_lengths(ladder, route.source, route.dest)
    samples = [(cells, 0, _median_ns(_switching(engine, route, cells))) for cells in lengths.cells]
    engine.release(route.source)
    engine.release(route.dest)
    return fit_step(samples)


def _switching(engine: Engine, route: Route, cells: int) -> Iterator[Callable[[], object]]:
    for _ in range(STEP_REPEATS):
        with _generation(engine, route.source, cells + 1) as tenant:
            engine.prefill(tenant, cells, 128)
            yield lambda: engine.switch(tenant, Destination(route.dest, route.kind, cells + ANSWER_TOKENS))


def _median_ns(works: Iterable[Callable[[], object]]) -> float:
    """Median of the works' times; of works that take long, together with their preparation, the first two do."""
    begin, times = time.monotonic(), []
    for work in works:
        times.append(_elapsed_ns(work))
        if len(times) >= STEP_REPEATS_MIN and time.monotonic() - begin > MEASURING_S:
            break
    return statistics.median(times)


def _elapsed_ns(work: Callable[[], object]) -> int:
    begin_ns = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin_ns


def fit_step(samples: Iterable[Sample]) -> StepCost:
    """The ``StepCost`` nearest to the samples in relative error, coefficients not negative."""
    tokens, context, elapsed = (np.array(column, dtype=float) for column in zip(*samples, strict=True))
    columns = np.stack([np.ones_like(tokens), tokens, tokens * context], axis=1)
    fixed, token, pair = _non_negative(columns / elapsed[:, None], np.ones_like(elapsed))
    return StepCost(fixed, token, pair)


def _decode_cost(samples: Iterable[Sample]) -> StepCost:
    cost = fit_step(samples)  # one token each: the constant and the per-token column are the same
    return StepCost(0.0, cost.fixed_ns + cost.token_ns, cost.pair_ns)


def _non_negative(columns: np.ndarray, target: np.ndarray) -> list[float]:
    """Least squares with non-negative coefficients: drop the most negative column until none is left."""
    active = [i for i in range(columns.shape[1]) if columns[:, i].any()]
    while True:
        solution = np.linalg.lstsq(columns[:, active], target, rcond=None)[0]
        if (solution >= 0).all():
            break
        del active[int(solution.argmin())]
    result = [0.0] * columns.shape[1]
    for index, value in zip(active, solution, strict=True):
        result[index] = float(value)
    return result


def _process_start_ns() -> int:
    """Start of a fresh interpreter with everything an engine imports."""
    import subprocess

    program = [sys.executable, "-c", "import molt.engine.real"]
    return _elapsed_ns(lambda: subprocess.run(program, check=True))  # noqa: S603
