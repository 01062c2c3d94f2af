"""The file of a server's log. A server outlives it: where it cannot be written, the log is given up and answers go on.

Rules of this module:

- A file ends with a whole line, also where the disk was full in the middle of one.
- What is once given up stays so: a log with a gap would say what did not happen.
- Rotation keeps ``files`` files: ``PATH`` is written, ``PATH.1`` is the one before it, and so on. Each begins with the
  header; from the second on it has ``part``, its number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from molt.errors import InputError

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
MODE = 0o644


class NoLog:
    """``--log none``: nothing is kept."""

    name = "no log"

    def write(self, line: str) -> None:
        """Forget a line."""

    def flush(self) -> None:
        """Nothing waits to be written."""

    def close(self) -> None:
        """Nothing is open."""


class LogFile:
    """A new log, rotated before a file would have more than ``size_bytes`` (``None``: never).

    ``InputError`` where it cannot begin. ``on_given_up`` is called once, with the reason, ``on_lost`` for each record
    that is not written from then on; both in the thread that writes.
    """

    def __init__(
        self,
        path: Path,
        size_bytes: int | None,
        files: int,
        on_given_up: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.name = str(path)
        self._path, self._size_max, self._files = path, size_bytes, files
        self._on_given_up, self._on_lost = on_given_up, on_lost
        self._header: str | None = None
        self._part, self._size, self._records = 1, 0, 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            older = [] if size_bytes is None else [self._older(age) for age in range(1, files)]
            for one in older:
                if os.path.lexists(one):
                    raise InputError(f"--log: {one}: exists already; nothing is overwritten")
            self._file: int | None = os.open(path, FLAGS, MODE)
        except (OSError, ValueError) as error:
            raise _refused(path, error) from None

    def write(self, line: str) -> None:
        """Append a line; the first is the header."""
        if self._file is None:
            self._on_lost()
            return
        try:
            self._rotate_before(len(line.encode()))
            self._append(line)
        except OSError as error:
            if self._header is None:
                self.close()
                self._path.unlink(missing_ok=True)
                raise _refused(self._path, error) from None
            self._give_up(error)
            return
        if self._header is None:
            self._header = line
        else:
            self._records += 1

    def flush(self) -> None:
        """Nothing waits to be written."""

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: str) -> None:
        assert self._file is not None
        rest = memoryview(line.encode())
        before = self._size
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, before)
            raise
        self._size += len(line.encode())

    def _rotate_before(self, size: int) -> None:
        """Begin another file where this one has no room for ``size`` bytes more, but has a record already."""
        if self._size_max is None or self._records == 0 or self._size + size <= self._size_max:
            return
        assert self._header is not None
        self.close()
        for age in range(self._files - 2, 0, -1):
            if self._older(age).exists():
                self._older(age).replace(self._older(age + 1))
        if self._files > 1:
            self._path.replace(self._older(1))
        else:
            self._path.unlink()
        self._file = os.open(self._path, FLAGS, MODE)
        self._part, self._size, self._records = self._part + 1, 0, 0
        self._append(_header_of_part(self._header, self._part))

    def _older(self, age: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{age}")

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._on_lost()
        self._on_given_up(f"log given up: {self.name}: {error.strerror}; answers go on")


def _header_of_part(header: str, part: int) -> str:
    fields = {**json.loads(header), "part": part}
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"


def _refused(path: Path, error: Exception) -> InputError:
    if isinstance(error, InputError):
        return error
    return InputError(f"--log: {path}: {getattr(error, 'strerror', None) or error}")
