"""A command as a program: how it runs, its exit status, and the one line that a user reads where it cannot.

Exit status: 0 fine, 1 an invariant broke or a comparison failed, 2 bad input (one line on stderr).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from molt.errors import InputError

T = TypeVar("T")


def single(command: Callable[..., Any]) -> typer.Typer:
    """A program that has one command."""
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(command)
    return program


def run_command(command: Callable[..., Any]) -> None:
    """Run one command as a program of its own (``python -m sim.run``)."""
    run_program(single(command))


def run_program(program: typer.Typer) -> None:
    """Run a program; bad input ends it with one line and status 2."""
    try:
        program()
    except InputError as error:
        print(f"molt: {error}", file=sys.stderr)
        sys.exit(2)


def option(name: str, value: str, parse: Callable[[str], T]) -> T:
    """The value of an option, as ``parse`` reads it; ``InputError`` names the option."""
    try:
        return parse(value)
    except InputError as error:
        raise InputError(f"{name}: {value!r}: {error}") from None
