"""``molt real``: everything that runs real processes."""

from __future__ import annotations

import typer

from realproc import run
from realproc.campaigns import campaign

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Real processes, real memory, the kernel's own killer.",
)
app.command("run")(run.command)
app.command("campaign")(campaign.command)


@app.callback()
def commands() -> None:
    """Real processes, real memory, the kernel's own killer."""
