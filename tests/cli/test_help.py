"""``--help``: every command stands in a panel and has an example, which the command would accept."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from molt.cli import main
from molt.evals import command as evals
from molt.fitting import documents, fit
from molt.program import single
from molt.server import command as server
from realproc import command as real
from sim import fuzz, run
from tests import prove

ROOT = Path(__file__).resolve().parent.parent.parent

PASSED_ON: dict[str, typer.Typer] = {
    "sim": single(run.command),
    "serve": single(server.command),
    "real": real.app,
    "eval": evals.app,
    "fit": single(fit.command),
    "fuzz": single(fuzz.command),
    "prove": single(prove.command),
}
"""The programs that commands pass their words on to."""

PANELS = {
    "Try": ["demo", "chat"],
    "Simulate": ["sim", "replay", "report", "schema"],
    "Serve": ["serve", "ladders"],
    "Measure and fit": ["doctor", "calibrate", "record", "real", "eval", "fit"],
    "Prove": ["fuzz", "prove"],
}

Command = Any
"""A command as typer builds it, of its own copy of click or of click."""


def programs() -> Iterator[tuple[str, Command]]:
    """Every program and subcommand, by the words that call it."""
    molt: Any = typer.main.get_command(main.app)
    for name, command in molt.commands.items():
        own = typer.main.get_command(PASSED_ON[name]) if name in PASSED_ON else command
        yield f"molt {name}", own
        for below, one in getattr(own, "commands", {}).items():
            yield f"molt {name} {below}", one
    yield "python -m molt.fitting.documents", typer.main.get_command(single(documents.command))


PROGRAMS = dict(programs())


def test_the_panels_are_these() -> None:
    molt: Any = typer.main.get_command(main.app)
    found: dict[str, list[str]] = {}
    for name, command in molt.commands.items():
        found.setdefault(command.rich_help_panel, []).append(name)
    assert {panel: sorted(names) for panel, names in PANELS.items()} == {
        panel: sorted(names) for panel, names in found.items()
    }


@pytest.mark.parametrize("words", PROGRAMS)
def test_every_command_has_an_example_that_it_accepts(words: str) -> None:
    """The last line of its help: its own words, options that it has, and paths that are there."""
    *_, example = (PROGRAMS[words].help or "").strip().splitlines()
    assert example.startswith("Example: "), example
    typed = example.removeprefix("Example: ").rpartition("| ")[2].partition(" > ")[0]
    assert f"{typed} ".startswith(f"{words} ")
    arguments = shlex.split(typed)[len(words.split()) :]
    command = PROGRAMS[words]
    if arguments and arguments[0] in getattr(command, "commands", {}):
        command = PROGRAMS[f"{words} {arguments.pop(0)}"]
    command.make_context(words, arguments)
    assert all((ROOT / word).is_file() for word in arguments if word.startswith("scenarios/"))


def test_the_list_of_commands_imports_no_heavy_library() -> None:
    """So that it comes at once."""
    code = (
        "import sys; from molt.cli.main import app; app(['--help'], standalone_mode=False); "
        "print(sorted({'torch', 'pydantic', 'simpy', 'numpy', 'starlette', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
