"""Options of every command that runs a scenario, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioPath = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")]

LadderName = Annotated[
    str | None, typer.Option(help="Name or file of the ladder, in place of the scenario's.")
]

ProfileName = Annotated[
    str | None,
    typer.Option(help="Name or file of a profile by `molt calibrate`, in place of the scenario's."),
]

Seed = Annotated[int | None, typer.Option(help="Random seed, in place of the scenario's.")]

OutFolder = Annotated[
    Path | None, typer.Option(help="New folder for the results; default: runs/SCENARIO-TIME.")
]

AsJson = Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")]
