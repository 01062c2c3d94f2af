"""Runs a scenario with real processes and real memory: the kernel applies the pressure and does the killing.

``python -m realproc.run scenarios/spike_mid_answer.yaml`` and ``molt real run`` are the same. Scenario files, policies
and tables are those of the simulator; ``docs/real-processes.md`` says how a scenario is made real.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from molt.errors import InputError
from molt.formats.yaml_file import nearest, show
from molt.jobs import job
from molt.jobs.options import AsJson, LadderName, OutFolder, ProfileName, ScenarioPath, Seed
from molt.program import option, run_command
from molt.units import format_size, parse_size
from realproc.kernel.signals import SIGNALS
from realproc.supervisor.real_run import (
    MAPPED,
    RATE_BYTES_PER_S,
    SIGNAL,
    Setting,
    breach_in_a_line,
    contenders,
    run_contender,
)


def parse_rate(text: str) -> int | None:
    """Bytes a second: a size, or ``max`` for flat out."""
    if text == "max":
        return None
    rate = parse_size(text)
    if rate == 0:
        raise InputError("a rate must be positive")
    return rate


def command(
    path: ScenarioPath,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"Policy name, {MAPPED}, or module:Class; repeat for more."),
    ] = None,
    ladder: LadderName = None,
    profile: ProfileName = None,
    signal: Annotated[str, typer.Option(help=f"What wakes: best, {', '.join(SIGNALS)}.")] = SIGNAL,
    rate: Annotated[
        str, typer.Option(help="How fast others take memory, a second, such as 200MiB; max: flat out.")
    ] = format_size(RATE_BYTES_PER_S),
    huge: Annotated[bool, typer.Option("--huge", help="Others take huge pages.")] = False,
    no_cgroup: Annotated[
        bool, typer.Option("--no-cgroup", help="A declared budget instead of a limit: nobody is killed.")
    ] = False,
    margin: Annotated[
        str | None, typer.Option(help="Kept free below the limit; default 4MiB or a hundredth.")
    ] = None,
    slowdown: Annotated[
        float | None,
        typer.Option(help="How many times slower than this machine, in place of the scenario's."),
    ] = None,
    seed: Seed = None,
    out: OutFolder = None,
    json_output: AsJson = False,
) -> None:
    """Run SCENARIO with real processes under every policy it names, and hold on mapped weights, and compare them."""
    from reports.from_run import write_reports
    from reports.summary import summary_json
    from reports.table import text_table

    begin = time.perf_counter()
    if signal != "best" and signal not in SIGNALS:
        raise InputError(f"--signal: {show(signal)} is not known; {nearest(signal, ['best', *SIGNALS])}")
    wanted = list(policy or ())
    asked = list(dict.fromkeys("hold" if name == MAPPED else name for name in wanted))
    run = job.prepare(path, policies=asked, ladder=ladder, profile=profile, seed=seed)
    setting = Setting(
        signal=signal,
        rate_bytes_per_s=option("--rate", rate, parse_rate),
        huge=huge,
        limited=not no_cgroup,
        margin_bytes=None if margin is None else option("--margin", margin, parse_size),
        slowdown=run.scenario.slowdown if slowdown is None else slowdown,
    )
    if setting.slowdown < 1:
        raise InputError(f"slowdown: {setting.slowdown}: must be at least 1")
    chosen = [c for c in contenders(run, mapped=not no_cgroup) if not wanted or c.name in wanted]
    folder = job.new_folder(out, run.scenario.name)
    done, violations = [], 0
    for contender in chosen:
        print(f"{contender.name}: begins", file=sys.stderr)
        (folder / contender.name).mkdir()
        try:
            with breach_in_a_line():
                violations += len(run_contender(run, contender, setting, folder / contender.name))
        except InputError as refusal:
            if contender.name != MAPPED or wanted:
                raise
            print(f"{contender.name}: left out: {refusal}", file=sys.stderr)
            (folder / contender.name).rmdir()
            continue
        done.append(contender.name)
    summary = write_reports(folder, wall_s=time.perf_counter() - begin, policies=done)
    print(summary_json(summary) if json_output else text_table(summary))
    print(f"results in {folder}", file=sys.stderr)
    if violations:
        print(f"{violations} violations; see summary.json", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(command)
