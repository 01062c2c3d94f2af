"""How long a live world takes from one boundary to the next, as it seems lately: the time in which it hears nothing;
and how slow its machine is."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from molt.core.events import LoadProgressed, PromptRead, RungLoaded, Switched, TokensProduced
from molt.live.live_world import MemorySample, WorldRecord

REMEMBERED = 8
STEPS = (TokensProduced, PromptRead, LoadProgressed, RungLoaded, Switched)


class StepTimes:
    """Listens to a world; ``boundary_ns`` and ``slower`` may be asked for by any thread."""

    def __init__(self, longest_ns: int) -> None:
        """``longest_ns`` is what a step may take at the most, and is assumed until the first has ended."""
        self._longest_ns = longest_ns
        self._has_begun, self._begin_ns = threading.Event(), 0
        self.kept_bytes = self.booked_bytes = 0
        """What caches, and all together, take by the books of the world."""
        self._last_ns = time.monotonic_ns()
        self._lately: deque[int] = deque([longest_ns], maxlen=REMEMBERED)
        self._tokens: deque[tuple[str, int]] = deque(maxlen=REMEMBERED)

    def hear(self, heard: WorldRecord) -> None:
        """Something has happened in the world."""
        now_ns = time.monotonic_ns()
        if isinstance(heard, MemorySample):
            self.kept_bytes, self.booked_bytes = sum(heard.parts.get("kv", {}).values()), heard.usage_bytes
            if not self._has_begun.is_set():
                self._begin_ns = now_ns - heard.at_ns
                self._has_begun.set()
            return
        if isinstance(heard, STEPS):  # it may have been idle before: then nobody waited for so long
            took_ns = min(self._longest_ns, now_ns - self._last_ns)
            self._lately.append(took_ns)
            if isinstance(heard, TokensProduced) and not heard.heal:
                self._tokens.append((heard.rung, took_ns))
        self._last_ns = now_ns

    def begin_ns(self, within_s: float) -> int | None:
        """When the world's clock was 0, by the monotonic clock; ``None`` if it does not begin in time."""
        return self._begin_ns if self._has_begun.wait(within_s) else None

    def boundary_ns(self) -> int:
        """The longest step of the last few."""
        return max(tuple(self._lately))

    def slower(self, token_ns: Mapping[str, int]) -> float:
        """How many times longer than it should, by rung, the slowest of the last tokens took; no less than 1."""
        return max([1.0, *(took_ns / token_ns[rung] for rung, took_ns in tuple(self._tokens))])
