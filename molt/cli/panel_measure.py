"""What is measured, of this machine and of the models: ``doctor calibrate record real eval``; and ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from molt.errors import InputError
from molt.program import option, single


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check this machine: what it offers, what would falsify results on it, and the remedy for each.

    Example: molt doctor --json
    """
    from realproc.doctor.checks import command

    command(json_output)


def calibrate(
    ladder: Annotated[str, typer.Argument(metavar="LADDER", help="Name or file of the ladder.")] = "pico",
    out: Annotated[
        Path | None, typer.Option(help="New file for the profile; default: LADDER.json in this folder.")
    ] = None,
    apart: Annotated[
        bool,
        typer.Option(
            "--apart", help="Measure an engine in a process of its own, as in servers and real runs."
        ),
    ] = False,
    slowdown: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="With --apart: pause between steps as real runs with this slowdown do; cores cool down meanwhile.",
        ),
    ] = 1.0,
) -> None:
    """Measure the duration of every kind of step on this machine and write a profile. The machine must be idle.

    Example: molt calibrate pico --out pico-here.json
    """
    from molt.formats.new_file import unused
    from realproc.calibration.calibrate import calibrate as measure

    if slowdown != 1.0 and not apart:
        raise InputError(
            "--slowdown: needs --apart, since only an engine in a process of its own is slowed down"
        )
    measure(ladder, out or unused(Path(f"{Path(ladder).stem}.json")), apart=apart, slowdown=slowdown)


def record(
    out: Annotated[Path, typer.Argument(metavar="TRACE", help="New CSV file.")],
    duration: Annotated[
        str | None,
        typer.Option("--for", help="Duration of the recording, such as 60s; default: until Ctrl-C."),
    ] = None,
    every: Annotated[str, typer.Option(help="Time between two rows.")] = "100ms",
    pid: Annotated[
        int | None,
        typer.Option(help="Process that the budget is for: its own memory counts as available to it."),
    ] = None,
    group: Annotated[
        Path | None,
        typer.Option(help="Memory control group of that process (a folder): its limit counts too."),
    ] = None,
) -> None:
    """Record the memory of this machine, or of a control group, as a budget trace for scenarios.

    Example: molt record evening.csv --for 10min --every 200ms
    """
    from molt.units import parse_duration
    from realproc.kernel.record import command

    duration_ns = None if duration is None else option("--for", duration, parse_duration)
    interval_ns = option("--every", every, parse_duration)
    if not interval_ns:
        raise InputError("--every: the time must be positive")
    command(out, duration_ns, interval_ns, pid, group)


def real(context: typer.Context) -> None:
    """Run real processes under real memory limits, which the kernel enforces: run, campaign."""
    from realproc.command import app as commands

    commands(context.args, prog_name="molt real")


def evaluate(context: typer.Context) -> None:
    """Measure quality and cost of the switches of a ladder: handoff, drift, ablation, residuals, switch-cost."""
    from molt.evals.command import app as tables

    tables(context.args, prog_name="molt eval")


def fit(context: typer.Context) -> None:
    """Fit the maps that carry a KV cache from one rung of a ladder to another."""
    from molt.fitting.fit import command

    single(command)(context.args, prog_name="molt fit")
