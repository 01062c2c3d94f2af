"""The OS of a simulated world, which watches its memory."""

from __future__ import annotations

from collections.abc import Callable

import simpy


class OutOfMemoryKiller:
    """Kills the process when usage has stayed above the budget for longer than ``kill_after_ns``."""

    def __init__(self, env: simpy.Environment, kill_after_ns: int, kill: Callable[[], None]) -> None:
        self._env = env
        self._kill_after_ns = kill_after_ns
        self._kill = kill
        self._excursion = 0
        self._over = False

    def observe(self, usage_bytes: int, budget_bytes: int) -> None:
        """To be called at every change of usage or budget."""
        over = usage_bytes > budget_bytes
        if over and not self._over:
            self._excursion += 1
            self._env.process(self._grace(self._excursion))
        self._over = over

    def _grace(self, excursion: int) -> simpy.events.ProcessGenerator:
        yield self._env.timeout(self._kill_after_ns)
        if self._over and excursion == self._excursion:
            self._kill()
