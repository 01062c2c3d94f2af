"""``molt sim``, and what is done with the logs that it writes: ``replay``, ``report``; ``schema`` of its scenarios."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from molt.errors import InputError
from molt.program import single


def sim(context: typer.Context) -> None:
    """Simulate a scenario under several policies and compare them."""
    from sim.run import command

    single(command)(context.args, prog_name="molt sim")


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="events.jsonl of one policy.")],
    policy: Annotated[
        str | None, typer.Option(help="Policy as module:Class, if the log's policy is not installed.")
    ] = None,
) -> None:
    """Make every decision of LOG again and compare it with the recorded one.

    Example: molt replay runs/first/molt/events.jsonl
    """
    from molt.jobs.replay import replay as decide_again

    result = decide_again(log, policy)
    if result.difference is not None:
        seq, recorded, decided = result.difference
        print(f"{log}: seq {seq}: recorded {recorded}, decided again {decided}", file=sys.stderr)
        raise typer.Exit(1)
    cut = "" if result.complete else " (the log is incomplete: it has no end record)"
    print(f"{log}: {result.decisions} decisions on {result.events} facts, all identical{cut}")


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, as molt sim --out wrote it.")
    ],
) -> None:
    """Write the reports of RUN again from its logs.

    Example: molt report runs/first
    """
    from reports.from_run import write_reports
    from reports.table import text_table

    try:
        summary = write_reports(folder)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from error
    print(text_table(summary))


def schema() -> None:
    """Print the JSON schema of scenario files, for editors.

    Example: molt schema > scenario.schema.json
    """
    import json

    from molt.jobs.scenario import json_schema

    print(json.dumps(json_schema(), indent=2, sort_keys=True))
