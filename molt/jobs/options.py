"""The options that every command which runs a scenario has, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioPath = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")]

LadderName = Annotated[str | None, typer.Option(help="Ladder name or file, in place of the scenario's.")]

ProfileName = Annotated[
    str | None,
    typer.Option(help="Costs of steps, as `molt calibrate` writes them, in place of the scenario's."),
]

Seed = Annotated[int | None, typer.Option(help="Seed, in place of the scenario's.")]

OutFolder = Annotated[Path | None, typer.Option(help="New folder for the results.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")]
