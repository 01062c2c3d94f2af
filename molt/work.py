"""Work in small parts, between which it can be put aside, and taken up again or dropped."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Work: TypeAlias = Generator[None, None, T]
"""Yields between its parts, and returns what came of it."""


class Unfinished(Exception):
    """Time was over before the work was done; the same work goes on where it was."""


def finished(work: Work[T]) -> T:
    """Do all of the work."""
    return advanced(work, None)


def advanced(work: Work[T], within_ns: int | None) -> T:
    """Do the work, or raise ``Unfinished`` at the first pause after this time."""
    until_ns = None if within_ns is None else time.monotonic_ns() + within_ns
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        if until_ns is not None and time.monotonic_ns() >= until_ns:
            raise Unfinished
