"""A new file for results: its place is checked before the work begins, nothing is overwritten, and what the work gave
is not lost where it cannot be written in the end."""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molt.errors import InputError


def check_new_file(path: Path, option: str = "--out", *, make_folder: bool = False) -> None:
    """``InputError`` if there is a file, or none can be made. Its folder is there, or ``make_folder`` if it can be."""
    try:
        if path.is_dir():
            raise InputError(f"{option}: {path} is a folder; give a file")
        if os.path.lexists(path):
            raise InputError(f"{option}: {path}: exists already; results are never overwritten")
        if make_folder and not path.parent.exists():
            check_folder(path.parent, option)
            return
        if not path.parent.is_dir():
            raise InputError(f"{option}: {path.parent}: no such folder")
        path.open("xb").close()  # the name may be what cannot be written
        path.unlink()
    except OSError as error:
        raise InputError(f"{option}: {path}: cannot be written: {error.strerror}") from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An ``OSError`` about the file that is written throughout names it, as when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def check_folder(folder: Path, option: str = "--out") -> None:
    """``InputError`` if there is no such folder and none can be made, or no file can be made in it. Nothing is left."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not there.is_dir():
            raise InputError(f"{option}: {there}: is a file; give a folder")
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise InputError(f"{option}: {folder}: cannot be written: {error.strerror}") from None


def unused(path: Path) -> Path:
    """``path``, or if it is there already the first of ``path-2``, ``path-3`` and so on that is not."""
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], names) if not os.path.lexists(one))


def save_new(path: Path, text: str) -> None:
    """Write a new file, and its folder where there is none.

    Where that fails the text goes to a temporary file, or to stdout; the ``InputError`` says which.
    """
    try:
        _write(path, text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {_elsewhere(path, text)}") from None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8", newline="\n") as sink:
        try:
            sink.write(text)
            sink.flush()
        except OSError:
            path.unlink()
            raise


def _elsewhere(path: Path, text: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", prefix=f"{path.stem}-", suffix=path.suffix, delete=False
        ) as sink:
            sink.write(text)
        return f"the result is in {sink.name}"
    except OSError:
        print(text)
        return "the result is on stdout"
