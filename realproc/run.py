"""Runs a scenario with real processes and real memory: the kernel enforces the limit and kills.

``python -m realproc.run scenarios/spike_mid_answer.yaml`` and ``molt real run`` are the same. Scenario files, policies
and tables are those of the simulator; ``docs/explanations/real-processes.md`` says how a scenario is made real.
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
from molt.worlds.refusals import Refusals
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
    """Bytes a second: a size, or ``max`` (``None``: no limit)."""
    if text == "max":
        return None
    rate = parse_size(text)
    if rate == 0:
        raise InputError("rate must be positive")
    return rate


def command(
    path: ScenarioPath,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Policy: name, {MAPPED}, or module:Class; repeat for more. Default: the scenario's."
        ),
    ] = None,
    ladder: LadderName = None,
    profile: ProfileName = None,
    signal: Annotated[
        str, typer.Option(help=f"Signal that wakes the monitor: best, {', '.join(SIGNALS)}.")
    ] = SIGNAL,
    rate: Annotated[
        str,
        typer.Option(help="Memory that other processes allocate in a second, such as 200MiB; max: no limit."),
    ] = format_size(RATE_BYTES_PER_S),
    huge: Annotated[bool, typer.Option("--huge", help="Other processes allocate huge pages.")] = False,
    no_cgroup: Annotated[
        bool,
        typer.Option("--no-cgroup", help="Declare a budget, set no limit: the kernel kills no process."),
    ] = False,
    margin: Annotated[
        str | None,
        typer.Option(
            help="Memory to keep free below the limit; default: 4MiB or, if more, 1% of the budget."
        ),
    ] = None,
    slowdown: Annotated[
        float | None,
        typer.Option(
            help="Slowdown of the simulated device against this machine, in place of the scenario's."
        ),
    ] = None,
    seed: Seed = None,
    out: OutFolder = None,
    json_output: AsJson = False,
) -> None:
    """Run SCENARIO with real processes under every policy that it names, and compare the policies.

    The policy hold runs a second time with its weights mapped from their files (hold_mapped).

    Example: molt real run scenarios/spike_mid_answer.yaml --policy hold --policy molt
    """
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
    refused: list[Refusals] = []
    for contender in chosen:
        print(f"{contender.name}: begins", file=sys.stderr)
        (folder / contender.name).mkdir()
        try:
            with breach_in_a_line():
                found, refusals = run_contender(run, contender, setting, folder / contender.name)
            violations += len(found)
            refused.append(refusals)
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
    for one in (refusals for refusals in refused if refusals.refused):
        print(
            f"molt: policy {one.policy!r}: {one.refused} of {one.asked} plans were refused", file=sys.stderr
        )
    if violations or any(refusals.failed for refusals in refused):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(command)
