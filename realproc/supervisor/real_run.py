"""One policy's run with real processes: an engine and an allocator in a limited group, a monitor beside the world.

``docs/explanations/real-processes.md`` says how a scenario is made real. ``run_contender`` does all of it; campaigns
use its parts.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO

import typer

from molt.core.engine_protocol import EngineDied, LoadError, SwitchError
from molt.core.ladder import Ladder
from molt.core.turns import SLICE_NS_MAX, step_ns_max
from molt.core.view import Policy
from molt.errors import InputError
from molt.formats.log import FILE_NAME, plain
from molt.jobs import job
from molt.jobs.job import Job
from molt.jobs.scenario import PolicySpec
from molt.live.live_world import LiveWorld
from molt.live.remote import ChildSpec
from molt.paths import cache_folder
from molt.units import MIB, show_size
from molt.worlds.refusals import Refusals
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Allocator, AllocatorSpec, targets_for
from realproc.supervisor.confinement import Confinement, confine
from realproc.supervisor.engine_process import SlowedEngine, warm_up, warm_up_budget
from realproc.supervisor.growth import WATCH_INTERVAL_NS
from realproc.supervisor.monitor import Monitor, RunProcesses, SharedLog, TimedAction, tenant_actions
from realproc.supervisor.step_times import StepTimes

MAPPED = "hold_mapped"
"""The policy ``hold`` with weights that are pages of a file."""
RATE_BYTES_PER_S = 50 * MIB
MARGIN_BYTES, MARGIN_SHARE = 4 * MIB, 100
MAPPED_HINT = " (weights that are to be mapped need their images: molt ladders fetch makes them)"
LIMIT_HINT = " (its group was at its limit: Python, a tensor library and the weights do not fit below it)"
SIGNAL = "poll-10ms"
ALLOCATE_NS = 60 * 10**9
READ_BYTES_MAX = 2**30
TYPICAL_CELLS = 512


@dataclass(frozen=True, slots=True)
class Setting:
    """How a scenario is made real.

    Others take memory at ``rate_bytes_per_s`` (``None``: flat out), in ``huge`` pages or small ones. ``limited``: in a
    control group. The engine is ``slowdown`` times slower than this machine; it computes with so many ``threads``
    (``None``: the tensor library's default) and at the niceness ``nice`` (``None``: this process's).
    """

    signal: str = SIGNAL
    rate_bytes_per_s: int | None = RATE_BYTES_PER_S
    huge: bool = False
    limited: bool = True
    margin_bytes: int | None = None
    slowdown: float = 1.0
    nice: int | None = None
    threads: int | None = None

    def margin_of(self, budget_bytes: int) -> int:
        """The margin below the limit: 4 MiB, or a hundredth of the budget where that is more."""
        if self.margin_bytes is not None:
            return self.margin_bytes
        return max(MARGIN_BYTES, budget_bytes // MARGIN_SHARE)


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, its name in the tables, and where its weights lie."""

    name: str
    spec: PolicySpec
    policy: Policy
    weights: Literal["anonymous", "mapped"]


class DiskFullError(BreachError):
    """There is no room for what a run has to write."""


def contenders(run: Job, *, mapped: bool) -> list[Contender]:
    """The policies of a job; with ``mapped``, hold a second time, on weights that are pages of a file."""
    found = [Contender(policy.name, spec, policy, "anonymous") for spec, policy in run.policies]
    holding = next((one for one in found if one.name == "hold"), None)
    if mapped and holding is not None:
        found.insert(found.index(holding) + 1, replace(holding, name=MAPPED, weights="mapped"))
    return found


def run_contender(
    run: Job, contender: Contender, setting: Setting, folder: Path
) -> tuple[list[dict[str, Any]], Refusals]:
    """Run one contender, with a log in ``folder``; returns the violations, and what was refused of the policy's plans.

    Raises ``InputError`` where it cannot begin, ``BreachError`` if it had to be stopped, and ``DiskFullError``.
    """
    with ExitStack() as stack:
        confinement = stack.enter_context(confinement_for(run, contender, setting))
        engine = SlowedEngine(engine_spec(run, contender, setting, confinement), setting.slowdown)
        stack.callback(engine.kill)
        start_engine(engine, run, confinement)
        processes = set_up_processes(run, setting, confinement, engine, stack)
        sink = stack.enter_context(log_file(folder / FILE_NAME))
        log = SharedLog(sink, log_header(run, contender, setting))
        step_times = StepTimes(longest_step_ns(run))
        world = LiveWorld(
            ladder_of(run, contender), run.costs, contender.policy, engine, log,
            budget_bytes=processes.reported_bytes, on_record=step_times.on_record,
        )  # fmt: skip
        run_scenario(run, processes, world, log, step_times, setting.signal)
    return world.violations, world.refusals


@contextmanager
def log_file(path: Path) -> Iterator[TextIO]:
    """A new log, written line by line; ``DiskFullError`` when the disk is full, whichever thread meets that."""
    with disk_full_as_breach(path), path.open("w", encoding="utf-8", buffering=1) as sink:
        yield sink


@contextmanager
def disk_full_as_breach(path: Path) -> Iterator[None]:
    """``DiskFullError`` when the disk is full, naming the file that is written throughout."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise DiskFullError(f"{path}: {error.strerror}") from None


@contextmanager
def breach_in_a_line() -> Iterator[None]:
    """A run that had to be stopped prints one line, and ends the command with status 1; 2 if the disk was full."""
    try:
        yield
    except BreachError as breach:
        print(f"molt: stopped: {breach}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(breach, DiskFullError) else 1) from None


def confinement_for(run: Job, contender: Contender, setting: Setting) -> AbstractContextManager[Confinement]:
    """A confinement with room for the largest budget, and for the engine to be warmed up."""
    charge_weight_pages(run, mapped=contender.weights == "mapped")
    return confine(setting.limited, max(largest_budget(run), warm_up_budget(run.spec.ladder)), setting.nice)


def engine_spec(run: Job, contender: Contender, setting: Setting, confinement: Confinement) -> ChildSpec:
    """How the engine process is started."""
    return ChildSpec(
        str(run.spec.path), weights=contender.weights, group=confinement.folder, threads=setting.threads
    )


def start_engine(engine: SlowedEngine, run: Job, confinement: Confinement) -> None:
    """Start the engine and warm it up, in the thread that will run the world; ``InputError``: see ``start_errors``."""
    with start_errors(confinement):
        engine.start()
        assert engine.pid is not None, "it was started"
        confinement.adopt_engine(engine.pid)
        warm_up(engine, run.spec.ladder)


@contextmanager
def start_errors(confinement: Confinement) -> Iterator[None]:
    """``InputError`` if the engine process dies while it starts, or a rung or a map cannot be used."""
    try:
        yield
    except (LoadError, SwitchError) as refusal:
        raise InputError(f"the engine cannot be warmed up: {refusal}") from None
    except EngineDied as death:
        hint = LIMIT_HINT if confinement.counters().get("kills") else MAPPED_HINT
        raise InputError(f"the engine process does not come up: {death.reason}{hint}") from None


def set_up_processes(
    run: Job, setting: Setting, confinement: Confinement, engine: SlowedEngine, stack: ExitStack
) -> RunProcesses:
    """Beside an engine at rest, start an allocator; set the limit; take as much memory as the trace begins with."""
    budgets, budget_bytes = run.scenario.budgets, largest_budget(run)
    spec = AllocatorSpec(setting.rate_bytes_per_s, setting.huge, confinement.folder)
    allocator = stack.enter_context(Allocator(spec))
    assert engine.pid is not None, "it was started"
    share = confinement.set_limit(budget_bytes, setting.margin_of(budget_bytes), engine.pid)
    taken_bytes = targets_for(budgets, budget_bytes)[0][1]
    allocator.hold(taken_bytes)
    if allocator.wait_until_held(taken_bytes, ALLOCATE_NS) is None:
        raise BreachError(f"an allocator did not come to hold {show_size(taken_bytes)}")
    return RunProcesses(engine, allocator, confinement, share, budget_bytes, reported_bytes=budgets[0][1])


def run_scenario(
    run: Job, processes: RunProcesses, world: LiveWorld, log: SharedLog, step_times: StepTimes, signal: str
) -> None:
    """Run the world, with a monitor beside it, from the beginning of the scenario to its horizon."""
    horizon = TimedAction(run.scenario.horizon_ns, lambda: monitor.stop_world("horizon"))
    actions = [*tenant_actions(world, run.scenario.tenants), horizon]
    monitor = Monitor(processes, world, log, signal, step_times, reaction_time(run, step_times), actions)
    monitor.start(targets_for(run.scenario.budgets, processes.budget_bytes))
    try:
        world.run()
    finally:
        monitor.join()


def largest_budget(run: Job) -> int:
    """The largest budget of a scenario, bytes: what is left to the engine while others take nothing."""
    return max(budget for _, budget in run.scenario.budgets)


def longest_step_ns(run: Job) -> int:
    """The longest that a step may take, by the profile."""
    rungs = run.spec.ladder.rungs
    return max(SLICE_NS_MAX, *(step_ns_max(run.costs.rungs[rung.name], rung.kv.layers, 0) for rung in rungs))


def reaction_time(run: Job, step_times: StepTimes) -> Callable[[], int]:
    """The time for which a falling budget looks ahead: a reported budget must hold until the world can take the next.

    That is the time to the next look and to the next boundary, the release of every rung, and what the report makes the
    world begin, at worst a stretch of a switch. The stretch is as much longer as the last tokens took longer than the
    profile says, because others compute on the machine too. Boundary and stretch count twice: the step under way may be
    slower than those before.
    """
    releases_ns = sum(costs.release_ns for costs in run.costs.rungs.values())
    cells = min(TYPICAL_CELLS, *(rung.max_positions for rung in run.spec.ladder.rungs))
    token_ns = {name: costs.decode.ns(1, cells) for name, costs in run.costs.rungs.items()}
    switch_ns = max((costs.switch.ns(cells, 0) for costs in run.costs.routes.values()), default=0)
    stretch_ns = min(switch_ns, SLICE_NS_MAX)

    def reaction_ns() -> int:
        slowed_ns = round(2 * stretch_ns * step_times.slower(token_ns))
        return WATCH_INTERVAL_NS + 2 * step_times.boundary_ns() + releases_ns + slowed_ns

    return reaction_ns


def ladder_of(run: Job, contender: Contender) -> Ladder:
    """The ladder as its weights lie in memory."""
    ladder = run.spec.ladder
    if contender.weights == "anonymous":
        return ladder
    return replace(ladder, rungs=tuple(replace(rung, mapped=True) for rung in ladder.rungs))


def log_header(run: Job, contender: Contender, setting: Setting) -> dict[str, Any]:
    """The first line of a log."""
    made = job.header(run, contender.spec, contender.policy)
    return {
        **made,
        "policy": {**made["policy"], "name": contender.name},
        "ladder": plain(ladder_of(run, contender)),
        "engine": "real",
        "clock": "wall",
        "real": plain(setting),
    }


def charge_weight_pages(run: Job, *, mapped: bool) -> None:
    """Make the first reader of the weights' files the process that their pages are to be charged to.

    Weights that are only read are charged to this process, which reads the files here unless they are large. Weights
    that are mapped are charged to the engine: the pages are dropped here, as far as no other process uses them.
    """
    files = {file for rung in run.spec.rungs for file in rung.folder.glob("*.safetensors")}
    if mapped:
        for file in (*files, *(cache_folder() / "images").glob("*.safetensors")):
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    elif sum(file.stat().st_size for file in files) <= READ_BYTES_MAX:
        for file in files:
            file.read_bytes()
