"""``molt serve`` and ``molt ladders``: answers over HTTP, and the weights that they need."""

from __future__ import annotations

from typing import Annotated

import typer

from molt.program import single

LadderArgument = Annotated[str, typer.Argument(metavar="LADDER", help="Name or file of the ladder.")]


def serve(context: typer.Context) -> None:
    """Serve answers over HTTP, in OpenAI's API, within a memory budget that may change at any time."""
    from molt.server.command import command

    single(command)(context.args, prog_name="molt serve")


ladders = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="List the ladders that ship with Molt; fetch their weights and verify them.\n\nExample: molt ladders --json",
)


@ladders.callback(invoke_without_command=True)
def list_ladders(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the ladders that ship with Molt: the size of their rungs, and whether their weights are on this machine."""
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
def fetch_ladder(ladder: LadderArgument) -> None:
    """Download the weights of LADDER. Run it again to resume a download or to repair damaged files.

    Example: molt ladders fetch smollm2-135m
    """
    from molt.models.fetching.fetch import fetch

    fetch(ladder)


@ladders.command("verify")
def verify_ladder(ladder: LadderArgument) -> None:
    """Read all weights of LADDER and compare their hashes with those of the download.

    Example: molt ladders verify smollm2-135m
    """
    from molt.models.fetching.fetch import verify

    verify(ladder)
