"""``molt demo`` and ``molt chat``: see it work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def demo(
    ladder: Annotated[
        str, typer.Option(metavar="LADDER", help="Name or file of the ladder to serve.")
    ] = "pico",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the session and its log; default: runs/demo-LADDER.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Name or file of a profile by `molt calibrate`; default: the ladder's."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=16, help="Length of the answer in tokens, at most.")] = 40,
) -> None:
    """Play a session: ask a question, cut the memory budget after eight tokens, show which rung wrote which word.

    Example: molt demo --ladder pico --max-tokens 60
    """
    from molt.client.demo import demo as play

    with _server_errors_in_a_line():
        switched = play(
            ladder,
            out or Path("runs") / f"demo-{Path(ladder).name.removesuffix('.yaml')}",
            max_tokens,
            profile,
        )
    if not switched:
        print("molt: the answer is incomplete, or the model did not change during it", file=sys.stderr)
        raise typer.Exit(1)


def chat(
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8080",
    token: Annotated[
        str | None, typer.Option(envvar="MOLT_TOKEN", help="Token that the server requires from clients.")
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Low priority: foreground answers of others go first.")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of each answer in tokens, at most.")
    ] = None,
) -> None:
    """Talk to a running server (molt serve) and see which rung wrote each word. Questions may be piped in, one a line.

    Example: echo "What is a page cache?" | molt chat --max-tokens 60
    """
    from molt.client.chat import chat as converse
    from molt.client.chat import typed

    with _server_errors_in_a_line():
        complete = converse(
            url, token, kind="batch" if batch else "foreground", max_tokens=max_tokens, questions=typed()
        )
    if not complete:
        raise typer.Exit(1)


@contextmanager
def _server_errors_in_a_line() -> Iterator[None]:
    """A server that cannot be reached, or breaks off, is one line on stderr and exit status 1."""
    from molt.client.http_client import ServerError

    try:
        yield
    except ServerError as error:
        print(f"molt: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
