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
    """Do the work, or raise ``Unfinished`` at the pause after which another part could end later than this time.

    A part is taken for as long as the longest so far; one is done in any case.
    """
    begin_ns = before_ns = time.monotonic_ns()
    longest_ns = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        now_ns = time.monotonic_ns()
        longest_ns, before_ns = max(longest_ns, now_ns - before_ns), now_ns
        if within_ns is not None and now_ns - begin_ns + longest_ns > within_ns:
            raise Unfinished
