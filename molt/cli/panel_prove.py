"""``molt fuzz`` and ``molt prove``: search for a world in which a promise is broken."""

from __future__ import annotations

import sys

import typer

from molt.errors import InputError
from molt.paths import IMPORT_ROOT
from molt.program import single


def fuzz(context: typer.Context) -> None:
    """Simulate random worlds with faults and check that every policy keeps its promises."""
    from sim.fuzz import command

    single(command)(context.args, prog_name="molt fuzz")


def prove(context: typer.Context) -> None:
    """Check every claim about the core and the simulator again; needs a checkout of the project, not a wheel."""
    if not (IMPORT_ROOT / "tests" / "prove.py").is_file():
        raise InputError(
            "prove: needs a checkout of the project: it runs the tests, which a wheel does not contain"
        )
    sys.path.insert(0, str(IMPORT_ROOT))
    try:
        from tests.prove import command
    except ModuleNotFoundError as error:
        raise InputError(
            f"prove: {error.name} is not installed, which the tests need: pip install -e '.[test]'"
        ) from None

    single(command)(context.args, prog_name="molt prove")
