"""The main command: simulate a scenario under several policies and compare them.

``python -m sim.run scenarios/three_tenants.yaml`` and ``molt sim scenarios/three_tenants.yaml`` are the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from molt.core.engine_protocol import Engine, EngineKind
from molt.core.turns import step_ns_max
from molt.core.view import Policy
from molt.engine.modelled import ModelledEngine
from molt.errors import InputError
from molt.formats.log import FILE_NAME, RETOLD, Log
from molt.formats.new_file import naming
from molt.jobs import job
from molt.jobs.options import AsJson, LadderName, OutFolder, ProfileName, ScenarioPath, Seed
from molt.jobs.scenario import PolicySpec
from molt.program import run_command
from molt.units import show_duration
from molt.worlds.refusals import Refusals
from sim import recorded_memory
from sim.world import SimulatedWorld


class Clock(StrEnum):
    """Time of a step: what the profile says, or what the wall clock just measured."""

    PROFILE = "profile"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class SimulationJob(job.Job):
    """Everything one simulation run needs, read and checked. ``memories`` has what a policy's process meets where that
    does not come from the scenario."""

    engine: EngineKind
    clock: Clock
    device: str
    memories: Mapping[str, recorded_memory.RecordedMemory]


@dataclass(slots=True)
class Outcome:
    """What a run left behind: wall seconds of the simulation loops alone, violations, and each policy's refusals."""

    loop_s: float = 0.0
    violations: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusals] = field(default_factory=list)


def prepare(
    path: Path,
    *,
    policies: Sequence[str] = (),
    ladder: str | None = None,
    engine: EngineKind = EngineKind.REAL,
    clock: Clock = Clock.PROFILE,
    profile: str | None = None,
    seed: int | None = None,
    device: str = "cpu",
    memory_of: Path | None = None,
) -> SimulationJob:
    """Read and check everything; raises ``InputError`` in one line, before anything is loaded or written."""
    if engine is EngineKind.MODELLED and clock is Clock.MEASURED:
        raise InputError("--clock measured: needs --engine real, the modelled engine takes no time")
    if device != "cpu":
        from molt.engine.device import usable_device  # torch

        usable_device(device)
    read = job.prepare(path, policies=policies, ladder=ladder, profile=profile, seed=seed)
    memories = {
        policy.name: recorded_memory.read(memory_of, policy.name, read.scenario.name)
        for _, policy in read.policies
        if memory_of is not None
    }
    return SimulationJob(read.scenario, read.spec, read.costs, read.policies, engine, clock, device, memories)


def simulate(
    run: SimulationJob, out: Path, on_progress: Callable[[str, int], None] = lambda policy, now_ns: None
) -> Outcome:
    """Run every policy of a job; one folder with a log for each under ``out``."""
    outcome = Outcome()
    engine = _engine(run)
    for named, policy in run.policies:
        folder = out / policy.name
        folder.mkdir(parents=True)
        path = folder / FILE_NAME
        with naming(path), path.open("w", encoding="utf-8", newline="\n") as sink:
            world = SimulatedWorld(
                run.scenario,
                run.spec.ladder,
                run.costs,
                policy,
                engine,
                Log(sink, _header(run, named, policy)),
                measured_clock=run.clock is Clock.MEASURED,
                memory=run.memories.get(policy.name),
                on_progress=partial(on_progress, policy.name),
            )
            begin = time.perf_counter()
            world.run()
            outcome.loop_s += time.perf_counter() - begin
        on_progress(policy.name, run.scenario.horizon_ns)
        outcome.violations += world.violations
        outcome.refusals.append(world.refusals)
    return outcome


def _engine(run: SimulationJob) -> Engine:
    if run.engine is EngineKind.MODELLED:
        return ModelledEngine(run.spec.ladder)
    from molt.engine.device import usable_device
    from molt.engine.real import RealEngine  # torch: seconds to import, and not needed by the modelled engine

    # Judging a switch takes time that must not count as the switch's own.
    return RealEngine(run.spec, measure_handoff=run.clock is Clock.PROFILE, device=usable_device(run.device))


def _header(run: SimulationJob, named: PolicySpec, policy: Policy) -> dict[str, Any]:
    memory = {"memory": RETOLD} if run.memories else {}
    return {**job.header(run, named, policy), "engine": run.engine.value, "clock": run.clock.value, **memory}


def warn_if_slow(run: SimulationJob) -> None:
    """Say on stderr when no policy can be sure to react before the OS kills."""
    longest = max(len(t.request.prompt_ids) + t.request.max_tokens for t in run.scenario.tenants)
    costs = run.costs.rungs
    reaction_ns = max(
        step_ns_max(costs[rung.name], rung.kv.layers, longest) + costs[rung.name].release_ns
        for rung in run.spec.ladder.rungs
    )
    if reaction_ns >= run.scenario.kill_after_ns:
        print(
            f"warning: on this device a step and a release can take {show_duration(reaction_ns)}, and the OS kills "
            f"after {show_duration(run.scenario.kill_after_ns)}: even a policy that reacts may be killed",
            file=sys.stderr,
        )


def command(
    path: ScenarioPath,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy: name or module:Class; repeat for more. Default: the scenario's."),
    ] = None,
    ladder: LadderName = None,
    profile: ProfileName = None,
    engine: Annotated[
        EngineKind,
        typer.Option(help="Real: compute every step. Modelled: no tensors, only times and sizes."),
    ] = EngineKind.REAL,
    clock: Annotated[
        Clock,
        typer.Option(help="Time of a step: the profile's, or measured (then handoff quality is not)."),
    ] = Clock.PROFILE,
    seed: Seed = None,
    device: Annotated[
        str, typer.Option(help="Device that the real engine computes on: cpu or cuda.")
    ] = "cpu",
    memory_of: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Folder of a run by `molt real run`: every policy gets the memory and the signals recorded there.",
        ),
    ] = None,
    out: OutFolder = None,
    json_output: AsJson = False,
) -> None:
    """Simulate SCENARIO under every policy that it names, and compare the policies.

    Example: molt sim scenarios/three_tenants.yaml --engine modelled --out runs/first
    """
    from reports.from_run import write_reports
    from reports.summary import summary_json
    from reports.table import text_table

    begin = time.perf_counter()
    run = prepare(
        path,
        policies=policy or (),
        ladder=ladder,
        engine=engine,
        clock=clock,
        profile=profile,
        seed=seed,
        device=device,
        memory_of=memory_of,
    )
    folder = job.new_folder(out, run.scenario.name)
    warn_if_slow(run)
    with _progress() as progress:
        horizon_ns = run.scenario.horizon_ns
        tasks = {p.name: progress.add_task(p.name, total=horizon_ns, start=False) for _, p in run.policies}

        def show(name: str, now_ns: int) -> None:
            progress.start_task(tasks[name])
            progress.update(tasks[name], completed=now_ns)

        outcome = simulate(run, folder, show)
    summary = write_reports(folder, wall_s=time.perf_counter() - begin, policies=tasks)
    print(summary_json(summary) if json_output else text_table(summary))
    simulated_s = len(run.policies) * run.scenario.horizon_ns / 1e9
    print(
        f"{simulated_s:.0f} simulated seconds in {outcome.loop_s:.2f} s "
        f"({simulated_s / outcome.loop_s:,.0f} per second); results in {folder}",
        file=sys.stderr,
    )
    if outcome.violations:
        first = outcome.violations[0]
        print(
            f"{len(outcome.violations)} violations; first: {first['policy']} at {first['at_ns']} ns: "
            f"{first['invariant']}: {first['detail']}",
            file=sys.stderr,
        )
    for line in filter(None, (refusals.line() for refusals in outcome.refusals)):
        print(f"molt: {line}", file=sys.stderr)
    if outcome.violations or any(refusals.failed for refusals in outcome.refusals):
        raise typer.Exit(1)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:>14}"),
        BarColumn(bar_width=40),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=False,
    )


if __name__ == "__main__":
    run_command(command)
