"""``molt real``: the commands that run real processes."""

from __future__ import annotations

import typer

from realproc import run
from realproc.campaigns import campaign

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.command("run")(run.command)
app.command("campaign")(campaign.command)


@app.callback()
def commands() -> None:
    """Run real processes under real memory limits, which the kernel enforces.

    Example: molt real run scenarios/spike_mid_answer.yaml
    """
