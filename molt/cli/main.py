"""The console script ``molt``: its commands, panel by panel, as ``molt --help`` lists them.

One file a panel has the commands. A command imports what it needs when it is called, so that ``molt --help`` is quick.
Exit status: 0 fine, 1 an invariant broke or a comparison failed, 2 bad input (one line on stderr).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from molt import __version__
from molt.cli import panel_measure, panel_prove, panel_serve, panel_simulate, panel_try
from molt.program import run_program

PASS_ON: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}
"""For a command that passes its words on, ``--help`` among them, to a program whose import takes a while."""

TRY = "Try"
SIMULATE = "Simulate"
SERVE = "Serve"
MEASURE = "Measure and fit"
PROVE = "Prove"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Change the model between two tokens and take its KV cache along.",
    epilog="Options of a command, and an example: molt COMMAND --help",
)

app.command(rich_help_panel=TRY)(panel_try.demo)
app.command(rich_help_panel=TRY)(panel_try.chat)

app.command(rich_help_panel=SIMULATE, **PASS_ON)(panel_simulate.sim)
app.command(rich_help_panel=SIMULATE)(panel_simulate.replay)
app.command(rich_help_panel=SIMULATE)(panel_simulate.report)
app.command(rich_help_panel=SIMULATE)(panel_simulate.schema)

app.command(rich_help_panel=SERVE, **PASS_ON)(panel_serve.serve)
app.add_typer(panel_serve.ladders, name="ladders", rich_help_panel=SERVE)

app.command(rich_help_panel=MEASURE)(panel_measure.doctor)
app.command(rich_help_panel=MEASURE)(panel_measure.calibrate)
app.command(rich_help_panel=MEASURE)(panel_measure.record)
app.command(rich_help_panel=MEASURE, **PASS_ON)(panel_measure.real)
app.command("eval", rich_help_panel=MEASURE, **PASS_ON)(panel_measure.evaluate)
app.command(rich_help_panel=MEASURE, **PASS_ON)(panel_measure.fit)

app.command(rich_help_panel=PROVE, **PASS_ON)(panel_prove.fuzz)
app.command(rich_help_panel=PROVE, **PASS_ON)(panel_prove.prove)


def main() -> None:
    """Entry point of the console script."""
    run_program(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"molt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of all subcommands."""
