"""How long the last steps of a live world took, and how slow its machine is.

Between two boundaries a world takes no budget, so the longest step bounds its reaction.
"""

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
    """Listens to a world; any thread may call ``boundary_ns`` and ``slower``."""

    def __init__(self, longest_ns: int) -> None:
        """``longest_ns`` is what a step may take at the most, and is assumed until the first has ended."""
        self._longest_ns = longest_ns
        self._has_begun, self._begin_ns = threading.Event(), 0
        self.cache_bytes = self.booked_bytes = 0
        """The caches, and everything, by the books of the world."""
        self._last_ns = time.monotonic_ns()
        self._steps_ns: deque[int] = deque([longest_ns], maxlen=REMEMBERED)
        self._tokens: deque[tuple[str, int]] = deque(maxlen=REMEMBERED)

    def on_record(self, record: WorldRecord) -> None:
        """Take one record of the world."""
        now_ns = time.monotonic_ns()
        if isinstance(record, MemorySample):
            self.cache_bytes, self.booked_bytes = sum(record.parts.get("kv", {}).values()), record.usage_bytes
            if not self._has_begun.is_set():
                self._begin_ns = now_ns - record.at_ns
                self._has_begun.set()
            return
        if isinstance(record, STEPS):  # idle time before it counts for no more than a step
            took_ns = min(self._longest_ns, now_ns - self._last_ns)
            self._steps_ns.append(took_ns)
            if isinstance(record, TokensProduced) and not record.heal:
                self._tokens.append((record.rung, took_ns))
        self._last_ns = now_ns

    def begin_ns(self, within_s: float) -> int | None:
        """The time of the monotonic clock at which the world's clock was 0; ``None`` if it does not begin in time."""
        return self._begin_ns if self._has_begun.wait(within_s) else None

    def boundary_ns(self) -> int:
        """The longest of the last steps."""
        return max(tuple(self._steps_ns))

    def slower(self, token_ns: Mapping[str, int]) -> float:
        """How many times longer than ``token_ns`` says for its rung the slowest of the last tokens took; at least 1."""
        return max([1.0, *(took_ns / token_ns[rung] for rung, took_ns in tuple(self._tokens))])
