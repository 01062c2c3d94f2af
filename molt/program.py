"""A command as a program: how it runs, its exit status, and the one line that a user reads where it cannot.

Exit status: 0 fine, 1 an invariant broke or a comparison failed (or stdout was closed), 2 bad input (one line on
stderr), or a file that could not be read or written.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import typer

from molt.errors import InputError

T = TypeVar("T")

PLAIN = {
    **dict.fromkeys("–—‑−─━╸╺╌", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("‘’‹›´", "'"),
    **dict.fromkeys("“”«»", '"'),
    **dict.fromkeys("█▇▆▅▄▃▂▁▉▊▋▌▍▎▏", "#"),
    "…": "...", "→": "->", "←": "<-", "⇆": "<->", "·": "|", "•": "*", "×": "x", "±": "+-", "≤": "<=", "≥": ">=",
    "≈": "~", "µ": "u", "μ": "u", "∞": "inf",
}  # fmt: skip
"""What stands for a character that a console cannot show. Others lose their accents, or become a question mark."""

FILE_TROUBLES = frozenset(
    number
    for name in (
        "EACCES", "EDQUOT", "EEXIST", "EFBIG", "EIO", "EISDIR", "ELOOP", "EMFILE", "ENAMETOOLONG", "ENOENT", "ENOSPC",
        "ENOTDIR", "ENOTEMPTY", "EPERM", "EROFS", "EXDEV",
    )
    if (number := getattr(errno, name, None)) is not None
)  # fmt: skip
"""Errors of the system that are about a file or its folder, and not about this program."""


def single(command: Callable[..., Any]) -> typer.Typer:
    """A program that has one command."""
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(command)
    return program


def run_command(command: Callable[..., Any]) -> None:
    """Run one command as a program of its own (``python -m sim.run``)."""
    run_program(single(command))


def run_program(program: Callable[[], Any]) -> None:
    """Run a program; bad input, or a file that cannot be used, ends it with one line and status 2."""
    with _in_a_line():
        program()


def run_words(main: Callable[[list[str]], int | None], usage: str) -> None:
    """Run what takes its words as they are (``python -m reports.agreement``), and exit with the status it returns;
    ``--help`` among them prints the first line of its file, and its usage."""
    with _in_a_line():
        words = sys.argv[1:]
        if {"-h", "--help"} & set(words):
            says = (sys.modules["__main__"].__doc__ or "").strip().partition("\n\n")[0]
            print(f"usage: {usage}\n\n{says}")
            sys.exit(0)
        sys.exit(main(words))


def option(name: str, value: str, parse: Callable[[str], T]) -> T:
    """The value of an option, as ``parse`` reads it; ``InputError`` names the option."""
    try:
        return parse(value)
    except InputError as error:
        raise InputError(f"{name}: {value!r}: {error}") from None


@contextmanager
def _in_a_line() -> Iterator[None]:
    """Streams that show what they can, and the one line in place of a traceback."""
    _prepare_streams()
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except InputError as error:
        _end_with(str(error))
    except BrokenPipeError:  # the reader of stdout has gone, as ``head`` does
        with suppress(OSError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(1)
    except OSError as error:
        if error.errno not in FILE_TROUBLES:
            raise
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        _end_with(f"{place}{error.strerror}")


def _end_with(reason: str) -> None:
    with suppress(OSError, ValueError):  # stderr is closed
        print(f"molt: {reason}", file=sys.stderr)
    sys.exit(2)


def _prepare_streams() -> None:
    """No character ends a program: what a console cannot show is written plainly, what cannot be read is replaced."""
    codecs.register_error("molt.plain", _plainly)
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "molt.plain"), (sys.stderr, "molt.plain")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    chars = error.object[error.start : error.end]
    return "".join(map(_plain, chars)), error.end


def _plain(char: str) -> str:
    if char in PLAIN:
        return PLAIN[char]
    return unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode() or "?"
