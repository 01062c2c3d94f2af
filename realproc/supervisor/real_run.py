"""One policy's run with real processes: an engine and an allocator in a limited group, a monitor beside the world.

``docs/real-processes.md`` says how a scenario is made real. ``perform`` does all of it; its parts serve campaigns too.
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

from molt.core.bound import CHUNK_NS_MAX
from molt.core.engine_protocol import EngineDied, LoadError, SwitchError
from molt.core.ladder import Ladder
from molt.core.turns import step_ns_max
from molt.core.view import Policy
from molt.errors import InputError
from molt.formats.log import FILE_NAME, plain
from molt.jobs import job
from molt.jobs.job import Job
from molt.jobs.scenario import PolicySpec
from molt.live.live_world import LiveWorld
from molt.live.remote import ChildSpec
from molt.paths import cache_folder
from molt.units import show_size
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Allocator, AllocatorSpec, occupied
from realproc.kernel.touched_pages import MIB
from realproc.supervisor.confinement import Confinement, confine
from realproc.supervisor.engine_process import SlowedEngine, warm_up, warm_up_bytes
from realproc.supervisor.growth import LOOK_NS
from realproc.supervisor.monitor import Monitor, RunProcesses, SharedLog, TimedAction, visits
from realproc.supervisor.step_times import StepTimes

MAPPED = "hold_mapped"
"""Hold, with weights that are pages of a file."""
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
    control group. ``slowdown`` is how many times slower than this machine the engine is. It computes with so many
    ``threads`` (``None``: as many as it likes), and is as ``nice`` as that (``None``: as this process).
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
        """What is kept free below the limit: 4 MiB, or a hundredth of the budget where that is more."""
        if self.margin_bytes is not None:
            return self.margin_bytes
        return max(MARGIN_BYTES, budget_bytes // MARGIN_SHARE)


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, what it is called in the tables, and where its weights lie."""

    name: str
    spec: PolicySpec
    policy: Policy
    weights: Literal["anonymous", "mapped"]


def contenders(run: Job, *, mapped: bool) -> list[Contender]:
    """The policies of a job; with ``mapped``, hold a second time, on weights that are pages of a file."""
    found = [Contender(policy.name, spec, policy, "anonymous") for spec, policy in run.policies]
    holding = next((one for one in found if one.name == "hold"), None)
    if mapped and holding is not None:
        found.insert(found.index(holding) + 1, replace(holding, name=MAPPED, weights="mapped"))
    return found


def perform(run: Job, contender: Contender, setting: Setting, folder: Path) -> list[dict[str, Any]]:
    """Run one contender, with a log in ``folder``; returns the violations.

    Raises ``InputError`` where it cannot begin, ``BreachError`` if it had to be stopped, as when the disk is full.
    """
    with ExitStack() as stack:
        home = stack.enter_context(confinement_of(run, contender, setting))
        engine = SlowedEngine(child_of(run, contender, setting, home), setting.slowdown)
        stack.callback(engine.kill)
        bring_up(engine, run, home)
        stage = start_processes(run, setting, home, engine, stack)
        sink = stack.enter_context(log_file(folder / FILE_NAME))
        log = SharedLog(sink, header_of(run, contender, setting))
        pulse = StepTimes(longest_step_ns(run))
        world = LiveWorld(
            ladder_of(run, contender), run.costs, contender.policy, engine, log,
            budget_bytes=stage.told_bytes, listen=pulse.hear,
        )  # fmt: skip
        play(run, stage, world, log, pulse, setting.signal)
    return world.violations


@contextmanager
def log_file(path: Path) -> Iterator[TextIO]:
    """A new log, written line by line; ``BreachError`` where the disk is full, whoever came upon it."""
    with writing(path), path.open("w", encoding="utf-8", buffering=1) as sink:
        yield sink


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """``BreachError`` where the disk is full, named after the file that is written all the time."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BreachError(f"{path}: {error.strerror}") from None


@contextmanager
def breach_in_a_line() -> Iterator[None]:
    """A run that had to be stopped says so in one line, and ends the command with status 1."""
    try:
        yield
    except BreachError as breach:
        print(f"molt: stopped: {breach}", file=sys.stderr)
        raise typer.Exit(1) from None


def confinement_of(run: Job, contender: Contender, setting: Setting) -> AbstractContextManager[Confinement]:
    """Where the processes are to live, with room for the engine to be warmed up."""
    place_weights(run, mapped=contender.weights == "mapped")
    return confine(setting.limited, max(most_bytes(run), warm_up_bytes(run.spec.ladder)), setting.nice)


def child_of(run: Job, contender: Contender, setting: Setting, home: Confinement) -> ChildSpec:
    """The engine process."""
    return ChildSpec(
        str(run.spec.path), weights=contender.weights, group=home.folder, threads=setting.threads
    )


def bring_up(engine: SlowedEngine, run: Job, home: Confinement) -> None:
    """Start the engine and warm it up; to be called by the thread that the world will have.

    ``InputError`` if it does not live through that.
    """
    with coming_up(home):
        engine.start()
        assert engine.pid is not None, "it was started"
        home.engine_is(engine.pid)
        warm_up(engine, run.spec.ladder)


@contextmanager
def coming_up(home: Confinement) -> Iterator[None]:
    """``InputError`` if the engine process does not live through its start, or a rung or a map cannot be used."""
    try:
        yield
    except (LoadError, SwitchError) as refusal:
        raise InputError(f"the engine cannot be warmed up: {refusal}") from None
    except EngineDied as death:
        hint = LIMIT_HINT if home.counted().get("kills") else MAPPED_HINT
        raise InputError(f"the engine process does not come up: {death.reason}{hint}") from None


def start_processes(
    run: Job, setting: Setting, home: Confinement, engine: SlowedEngine, stack: ExitStack
) -> RunProcesses:
    """The engine at rest, an allocator beside it, the limit set, and as much taken as the trace begins with."""
    budgets, most = run.scenario.budgets, most_bytes(run)
    spec = AllocatorSpec(setting.rate_bytes_per_s, setting.huge, home.folder)
    allocator = stack.enter_context(Allocator(spec))
    assert engine.pid is not None, "it was started"
    share = home.settle(most, setting.margin_of(most), engine.pid)
    taken_bytes = occupied(budgets, most)[0][1]
    allocator.hold(taken_bytes)
    if allocator.wait_until_held(taken_bytes, ALLOCATE_NS) is None:
        raise BreachError(f"an allocator did not come to hold {show_size(taken_bytes)}")
    return RunProcesses(engine, allocator, home, share, most, budgets[0][1])


def play(
    run: Job, stage: RunProcesses, world: LiveWorld, log: SharedLog, pulse: StepTimes, signal: str
) -> None:
    """Let the scenario happen, from its beginning to its horizon."""
    reaction_ns = reaction(run, pulse)
    horizon = TimedAction(run.scenario.horizon_ns, lambda: attendant.end("horizon"))
    attendant = Monitor(
        stage, world, log, signal, pulse, reaction_ns, [*visits(world, run.scenario.tenants), horizon]
    )
    attendant.start(occupied(run.scenario.budgets, stage.budget_bytes))
    try:
        world.run()
    finally:
        attendant.leave()


def most_bytes(run: Job) -> int:
    """The largest budget of a scenario: what is left to the engine while nobody takes anything."""
    return max(budget for _, budget in run.scenario.budgets)


def longest_step_ns(run: Job) -> int:
    """The longest that a step may take, by the profile."""
    return max(CHUNK_NS_MAX, *(step_ns_max(costs, 0) for costs in run.costs.rungs.values()))


def reaction(run: Job, pulse: StepTimes) -> Callable[[], int]:
    """How far ahead a budget has to look while it falls: what is told must hold until the world can hear again.

    That is to the next look, to the next boundary, then every rung released; and whatever is begun on its word, at
    worst a stretch of a switch. Tokens of late tell how much slower than its profile the machine is, as others compute
    on it too. Boundary and stretch count twice: what is under way may be slower than what was before.
    """
    releases_ns = sum(costs.release_ns for costs in run.costs.rungs.values())
    cells = min(TYPICAL_CELLS, *(rung.max_positions for rung in run.spec.ladder.rungs))
    token_ns = {name: costs.decode.ns(1, cells) for name, costs in run.costs.rungs.items()}
    switch_ns = max((costs.switch.ns(cells, 0) for costs in run.costs.routes.values()), default=0)
    stretch_ns = min(switch_ns, CHUNK_NS_MAX)

    def reaction_ns() -> int:
        slowed_ns = round(2 * stretch_ns * pulse.slower(token_ns))
        return LOOK_NS + 2 * pulse.boundary_ns() + releases_ns + slowed_ns

    return reaction_ns


def ladder_of(run: Job, contender: Contender) -> Ladder:
    """The ladder as its weights lie in memory."""
    ladder = run.spec.ladder
    if contender.weights == "anonymous":
        return ladder
    return replace(ladder, rungs=tuple(replace(rung, mapped=True) for rung in ladder.rungs))


def header_of(run: Job, contender: Contender, setting: Setting) -> dict[str, Any]:
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


def place_weights(run: Job, *, mapped: bool) -> None:
    """Whom the pages of the weights' files are charged to is whoever reads them first.

    Where they are only read, that is this process, unless they are many; where they are mapped, the engine: they are
    dropped here, as far as nobody else uses them.
    """
    files = {file for rung in run.spec.rungs for file in rung.folder.glob("*.safetensors")}
    if mapped:
        for file in (*files, *(cache_folder() / "images").glob("*.safetensors")):
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    elif sum(file.stat().st_size for file in files) <= READ_BYTES_MAX:
        for file in files:
            file.read_bytes()
