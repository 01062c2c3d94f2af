"""Stop strings, found across tokens: text is withheld while it could be the beginning of one.

The text let through does not depend on how it is cut into pieces: it ends before the stop string that is complete
first (of two that end together, before the longer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence


class StopStrings:
    """Lets the pieces of one answer through; every piece keeps its origin, the rung that produced it."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would end every answer"
        self._stops = tuple(stops)
        self._held: deque[tuple[str, str]] = deque()  # origin and text, in order

    def push(self, origin: str, text: str) -> tuple[list[tuple[str, str]], bool]:
        """The text to send now, as pairs of origin and text, and whether a stop string is complete."""
        if text:
            self._held.append((origin, text))
        held = "".join(text for _, text in self._held)
        ends = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if ends:
            _, begins_at = min(ends)
            let_through = list(self._take(begins_at))
            self._held.clear()
            return let_through, True
        return list(self._take(len(held) - self._undecided(held))), False

    def flush(self) -> list[tuple[str, str]]:
        """The withheld text, at the end of the answer."""
        rest = list(self._held)
        self._held.clear()
        return rest

    def _undecided(self, held: str) -> int:
        """Length of the longest end of ``held`` with which a stop string begins."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        ends = range(min(longest, len(held)), 0, -1)
        return next((n for n in ends if any(stop.startswith(held[-n:]) for stop in self._stops)), 0)

    def _take(self, chars: int) -> Iterator[tuple[str, str]]:
        while chars > 0:
            origin, text = self._held.popleft()
            if len(text) > chars:
                self._held.appendleft((origin, text[chars:]))
            yield origin, text[:chars]
            chars -= len(text)
