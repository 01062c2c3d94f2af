"""The main command: simulate a scenario under several policies and compare them.

``python -m sim.run scenarios/three_tenants.yaml`` and ``molt sim scenarios/three_tenants.yaml`` are the same.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from molt import provenance, scenario
from molt.core.costs import CostModel
from molt.core.turns import step_ns_max
from molt.core.view import Policy
from molt.engine.modelled import ModelledEngine
from molt.engine.protocol import Engine
from molt.errors import InputError
from molt.log import FILE_NAME, Log, plain
from molt.models.ladder_file import LadderSpec, resolve
from molt.plugins import known_policies, make_policy
from molt.profile import load_profile
from molt.scenario import PolicySpec, ResolvedScenario
from molt.units import show_duration
from sim.hardware import slowed
from sim.world import World


class EngineKind(StrEnum):
    """Real model steps, or their costs only."""

    REAL = "real"
    MODELLED = "modelled"


class Clock(StrEnum):
    """Time of a step: what the profile says, or what the wall clock just measured."""

    PROFILE = "profile"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Job:
    """Everything one simulation run needs, read and checked."""

    scenario: ResolvedScenario
    spec: LadderSpec
    costs: CostModel
    policies: tuple[tuple[PolicySpec, Policy], ...]
    engine: EngineKind
    clock: Clock
    device: str


@dataclass(slots=True)
class Outcome:
    """What a run left behind: wall seconds of the simulation loops alone, and every violation."""

    loop_s: float = 0.0
    violations: list[dict[str, Any]] = field(default_factory=list)


def prepare(
    path: Path,
    *,
    policies: Sequence[str] = (),
    ladder: str | None = None,
    engine: EngineKind = EngineKind.REAL,
    clock: Clock = Clock.PROFILE,
    seed: int | None = None,
    device: str = "cpu",
) -> Job:
    """Read and check everything; raises ``InputError`` in one line, before anything is loaded or written."""
    document = scenario.load(path)
    spec = resolve(ladder or document.ladder)
    if engine is EngineKind.MODELLED and clock is Clock.MEASURED:
        raise InputError("--clock measured: needs --engine real, the modelled engine takes no time")
    if device != "cpu":
        from molt.engine.device import usable_device  # torch

        usable_device(device)
    chosen = [PolicySpec(name) for name in policies] or None
    resolved = document.resolve(spec, known_policies(), seed=seed, policies=chosen)
    costs = slowed(load_profile(resolved.profile, spec.ladder), resolved.slowdown)
    made = tuple((named, make_policy(named.name, named.params)) for named in resolved.policies)
    names = [policy.name for _, policy in made]
    for twice in (name for name in names if names.count(name) > 1):
        raise InputError(f"policies: {twice!r} a second time")
    if seed is not None and not 0 <= seed <= scenario.SEED_MAX:
        raise InputError(f"--seed: {seed} is not between 0 and {scenario.SEED_MAX}")
    return Job(resolved, spec, costs, made, engine, clock, device)


def simulate(
    job: Job, out: Path, on_progress: Callable[[str, int], None] = lambda policy, now_ns: None
) -> Outcome:
    """Run every policy of the job; one folder with a log for each under ``out``."""
    outcome = Outcome()
    engine = _engine(job)
    for named, policy in job.policies:
        folder = out / policy.name
        folder.mkdir(parents=True)
        with (folder / FILE_NAME).open("w", encoding="utf-8", newline="\n") as sink:
            world = World(
                job.scenario,
                job.spec.ladder,
                job.costs,
                policy,
                engine,
                Log(sink, _header(job, named, policy)),
                measured_clock=job.clock is Clock.MEASURED,
                on_progress=lambda now_ns, name=policy.name: on_progress(name, now_ns),  # type: ignore[misc]
            )
            begin = time.perf_counter()
            world.run()
            outcome.loop_s += time.perf_counter() - begin
        on_progress(policy.name, job.scenario.horizon_ns)
        outcome.violations += world.violations
    return outcome


def _engine(job: Job) -> Engine:
    if job.engine is EngineKind.MODELLED:
        return ModelledEngine(job.spec.ladder)
    from molt.engine.device import usable_device
    from molt.engine.real import RealEngine  # torch: seconds to import, and not needed by the modelled engine

    # Judging a switch takes time that must not count as the switch's own.
    return RealEngine(job.spec, measure_handoff=job.clock is Clock.PROFILE, device=usable_device(job.device))


def _header(job: Job, named: PolicySpec, policy: Policy) -> dict[str, Any]:
    run = job.scenario
    return {
        "scenario": {
            "name": run.name,
            "seed": run.seed,
            "horizon_ns": run.horizon_ns,
            "kill_after_ns": run.kill_after_ns,
            "budgets": plain(run.budgets),
            "profile": run.profile,
            "slowdown": run.slowdown,
            "tenants": [
                {
                    "name": tenant.name,
                    "kind": tenant.kind.value,
                    "arrives_ns": tenant.arrives_ns,
                    "prompt_tokens": len(tenant.request.prompt_ids),
                    "max_tokens": tenant.request.max_tokens,
                    "stop_at_eos": tenant.request.stop_at_eos,
                    "temperature": tenant.request.temperature,
                    "top_p": tenant.request.top_p,
                }
                for tenant in run.tenants
            ],
        },
        "policy": {
            "name": policy.name,
            "source": named.name,
            "params": plain(named.params),
            "promises": sorted(policy.promises),
        },
        "engine": job.engine.value,
        "clock": job.clock.value,
        "ladder": plain(job.spec.ladder),
        "costs": plain(job.costs),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
    }


def new_folder(out: Path | None, name: str) -> Path:
    """The folder for a run's results, made now; an existing one is never written into."""
    if out is not None:
        return _made(out)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    stem = f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)}-{stamp}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return _made(next(folder for folder in map(Path("runs").joinpath, names) if not folder.exists()))


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError(f"{folder}: exists already; results are never overwritten") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from None
    return folder


def warn_if_slow(job: Job) -> None:
    """Say on stderr when no policy can be sure to react before the OS kills."""
    longest = max(len(t.request.prompt_ids) + t.request.max_tokens for t in job.scenario.tenants)
    reaction_ns = max(step_ns_max(rung, longest) + rung.release_ns for rung in job.costs.rungs.values())
    if reaction_ns >= job.scenario.kill_after_ns:
        print(
            f"warning: on this device a step and a release can take {show_duration(reaction_ns)}, and the OS kills "
            f"after {show_duration(job.scenario.kill_after_ns)}: even a policy that reacts may be killed",
            file=sys.stderr,
        )


def command(
    path: Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")],
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy name or module:Class; repeat for more.")
    ] = None,
    ladder: Annotated[
        str | None, typer.Option(help="Ladder name or file, in place of the scenario's.")
    ] = None,
    engine: Annotated[
        EngineKind, typer.Option(help="Real model steps, or their costs only.")
    ] = EngineKind.REAL,
    clock: Annotated[
        Clock, typer.Option(help="Time of a step: profiled, or measured (then quality is not).")
    ] = Clock.PROFILE,
    seed: Annotated[int | None, typer.Option(help="Seed, in place of the scenario's.")] = None,
    device: Annotated[str, typer.Option(help="Where the real engine computes: cpu, or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="New folder for the results.")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print summary.json instead of the table.")
    ] = False,
) -> None:
    """Simulate SCENARIO under every policy it names and compare them."""
    from reports.from_run import write_reports
    from reports.summary import summary_json
    from reports.table import text_table

    begin = time.perf_counter()
    job = prepare(
        path, policies=policy or (), ladder=ladder, engine=engine, clock=clock, seed=seed, device=device
    )
    folder = new_folder(out, job.scenario.name)
    warn_if_slow(job)
    with _progress() as progress:
        horizon_ns = job.scenario.horizon_ns
        tasks = {p.name: progress.add_task(p.name, total=horizon_ns, start=False) for _, p in job.policies}

        def show(name: str, now_ns: int) -> None:
            progress.start_task(tasks[name])
            progress.update(tasks[name], completed=now_ns)

        outcome = simulate(job, folder, show)
    summary = write_reports(folder, wall_s=time.perf_counter() - begin, policies=tasks)
    print(summary_json(summary) if json_output else text_table(summary))
    simulated_s = len(job.policies) * job.scenario.horizon_ns / 1e9
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
    from molt.cli import run_command

    run_command(command)
