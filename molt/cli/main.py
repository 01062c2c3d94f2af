"""The console script ``molt``. Every subcommand imports what it needs when it is called.

Exit status: 0 fine, 1 an invariant broke or a comparison failed, 2 bad input (one line on stderr).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from molt import __version__
from molt.errors import InputError
from molt.paths import IMPORT_ROOT
from molt.program import option, run_program, single

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For commands whose own options need an import of seconds: ``molt --help`` does without it."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Change the model between two tokens and take the attention state along.",
)


def main() -> None:
    """Entry point of the console script."""
    from sim import run

    app.command("sim")(run.command)
    app.registered_commands.insert(0, app.registered_commands.pop())  # the main command: first in the help
    run_program(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"molt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all subcommands."""


@app.command()
def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="An events.jsonl.")],
    policy: Annotated[
        str | None, typer.Option(help="module:Class of the log's policy, where it is not an installed one.")
    ] = None,
) -> None:
    """Decide LOG again and compare every decision."""
    from molt.jobs.replay import replay as decide_again

    result = decide_again(log, policy)
    if result.difference is not None:
        seq, recorded, decided = result.difference
        print(f"{log}: seq {seq}: recorded {recorded}, decided again {decided}", file=sys.stderr)
        raise typer.Exit(1)
    cut = "" if result.complete else " (the log is incomplete: it has no end record)"
    print(f"{log}: {result.decisions} decisions on {result.events} facts, all identical{cut}")


@app.command()
def report(folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]) -> None:
    """Write the reports of RUN again from its logs."""
    from reports.from_run import write_reports
    from reports.table import text_table

    try:
        print(text_table(write_reports(folder)))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from error


@app.command()
def schema() -> None:
    """Print the JSON schema of scenario files, for editors."""
    import json

    from molt.jobs.scenario import json_schema

    print(json.dumps(json_schema(), indent=2, sort_keys=True))


@app.command()
def calibrate(
    ladder: Annotated[str, typer.Argument(metavar="LADDER", help="Ladder name or file.")] = "pico",
    out: Annotated[Path | None, typer.Option(help="Profile to write; default <ladder>.json here.")] = None,
    apart: Annotated[
        bool,
        typer.Option("--apart", help="An engine in a process of its own, as servers and real runs have it."),
    ] = False,
    slowdown: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="With --apart: as real runs with this slowdown are, whose cores cool down meanwhile.",
        ),
    ] = 1.0,
) -> None:
    """Measure what every step costs on this machine and write a profile. Let the machine do nothing else meanwhile."""
    from realproc.calibration.calibrate import calibrate as measure

    if slowdown != 1.0 and not apart:
        raise InputError(
            "--slowdown: only an engine in a process of its own is slowed down: say --apart, too"
        )
    measure(ladder, out or Path(f"{Path(ladder).stem}.json"), apart=apart, slowdown=slowdown)


@app.command()
def record(
    out: Annotated[Path, typer.Argument(metavar="TRACE", help="New CSV file.")],
    duration: Annotated[
        str | None, typer.Option("--for", help="How long, such as 60s; else until Ctrl-C.")
    ] = None,
    every: Annotated[str, typer.Option(help="Between two rows.")] = "100ms",
    pid: Annotated[int | None, typer.Option(help="Process whose memory counts as its own.")] = None,
    group: Annotated[Path | None, typer.Option(help="Folder of the memory control group it is in.")] = None,
) -> None:
    """Record the memory of this machine, or of a control group, as a budget trace for scenarios."""
    from molt.units import parse_duration
    from realproc.kernel.record import command

    duration_ns = None if duration is None else option("--for", duration, parse_duration)
    interval_ns = option("--every", every, parse_duration)
    if not interval_ns:
        raise InputError("--every: must be longer than nothing")
    command(out, duration_ns, interval_ns, pid, group)


@app.command(context_settings=PASS_ON, add_help_option=False)
def real(context: typer.Context) -> None:
    """Real processes, real memory, the kernel's own killer: run, campaign, compare."""
    from realproc.command import app as commands

    commands(context.args, prog_name="molt real")


@app.command(context_settings=PASS_ON, add_help_option=False)
def fit(context: typer.Context) -> None:
    """Fit the maps that carry a cache between the rungs of a ladder."""
    from molt.fitting.fit import command

    single(command)(context.args, prog_name="molt fit")


@app.command("eval", context_settings=PASS_ON, add_help_option=False)
def evaluate(context: typer.Context) -> None:
    """Measure how good and how dear the switches of a ladder are: handoff, drift, ablation, residuals, switch-cost."""
    from molt.evals.command import app as tables

    tables(context.args, prog_name="molt eval")


ladders = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="List ladders (the default), fetch their weights, verify them.",
)
app.add_typer(ladders, name="ladders")


@ladders.callback(invoke_without_command=True)
def list_ladders(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the ladders that ship with Molt: what their rungs weigh, and whether they are here."""
    if context.invoked_subcommand is not None:
        return
    import json
    from dataclasses import asdict

    from molt.models import ladder_list

    found = ladder_list.ladders()
    if json_output:
        print(json.dumps([asdict(one) | {"is_here": one.is_here} for one in found], indent=2))
    else:
        print(ladder_list.table(found))


@ladders.command("fetch")
def fetch_ladder(
    ladder: Annotated[str, typer.Argument(metavar="LADDER", help="Ladder name or file.")],
) -> None:
    """Bring the weights of LADDER to this machine; again, to mend what is torn or altered."""
    from molt.models.fetching.fetch import fetch

    fetch(ladder)


@ladders.command("verify")
def verify_ladder(
    ladder: Annotated[str, typer.Argument(metavar="LADDER", help="Ladder name or file.")],
) -> None:
    """Read all weights of LADDER and compare them with what was brought."""
    from molt.models.fetching.fetch import verify

    verify(ladder)


@app.command()
def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Tell what this machine offers and what would make results wrong on it, each with the remedy."""
    from realproc.doctor.checks import command

    command(json_output)


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8080",
    token: Annotated[str | None, typer.Option(envvar="MOLT_TOKEN", help="The user's token, if any.")] = None,
    batch: Annotated[bool, typer.Option("--batch", help="Nobody waits: give way to who does.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The most tokens of an answer.")] = None,
) -> None:
    """Talk to a server, and see which rung wrote which word. Questions may be piped in, one a line."""
    from molt.client.chat import chat as converse
    from molt.client.chat import typed

    with _one_line():
        complete = converse(
            url, token, kind="batch" if batch else "foreground", max_tokens=max_tokens, questions=typed()
        )
    if not complete:
        raise typer.Exit(1)


@app.command()
def demo(
    ladder: Annotated[str, typer.Option(metavar="LADDER", help="Ladder name or file.")] = "pico",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the session; default runs/demo-<ladder>.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens of the answer.")] = 40,
) -> None:
    """Play a session by itself: ask, take memory away after eight tokens, and show which rung wrote which word."""
    from molt.client.demo import demo as play

    with _one_line():
        held = play(
            ladder, out or Path("runs") / f"demo-{Path(ladder).name.removesuffix('.yaml')}", max_tokens
        )
    if not held:
        print("molt: the answer was not whole, or the model was not changed on the way", file=sys.stderr)
        raise typer.Exit(1)


@contextmanager
def _one_line() -> Iterator[None]:
    """A server that cannot be had, or that breaks off, is told of in a line; exit status 1."""
    from molt.client.http_client import ServerError

    try:
        yield
    except ServerError as error:
        print(f"molt: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command(context_settings=PASS_ON, add_help_option=False)
def serve(context: typer.Context) -> None:
    """Serve answers over HTTP, in OpenAI's API, under a budget of memory that may change at any time."""
    from molt.server.command import command

    single(command)(context.args, prog_name="molt serve")


@app.command(context_settings=PASS_ON, add_help_option=False)
def fuzz(context: typer.Context) -> None:
    """Run random worlds with faults and hold the policies to their promises."""
    from sim.fuzz import command

    single(command)(context.args, prog_name="molt fuzz")


@app.command(context_settings=PASS_ON, add_help_option=False)
def prove(context: typer.Context) -> None:
    """Try again everything that is claimed of the core and the simulator; needs a checkout, where its tests are."""
    if not (IMPORT_ROOT / "tests" / "prove.py").is_file():
        raise InputError(
            "prove: needs a checkout of the project: what it runs are tests, and no wheel has them"
        )
    sys.path.insert(0, str(IMPORT_ROOT))
    from tests.prove import command

    single(command)(context.args, prog_name="molt prove")
