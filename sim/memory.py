"""The truth about memory in a simulated world, and the OS that watches it."""

from __future__ import annotations

from collections.abc import Callable

import simpy


class Memory:
    """What is allocated, by kind (``weights``, ``scratch``, ``kv``, ``transient``) and owner, in bytes."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.parts: dict[str, dict[str, int]] = {"weights": {}, "scratch": {}, "kv": {}, "transient": {}}
        self.usage_bytes = 0

    def put(self, kind: str, owner: str, size: int) -> None:
        """Set one part to ``size`` bytes; 0 removes it."""
        owners = self.parts[kind]
        before = owners.pop(owner, 0)
        if size:
            owners[owner] = size
        if size != before:
            self.usage_bytes += size - before
            self._on_change()

    def move(self, kind: str, owner: str, parts: dict[tuple[str, str], int]) -> None:
        """Replace one part by others in a single step, without a moment in which both or neither count."""
        self.usage_bytes -= self.parts[kind].pop(owner, 0)
        for (new_kind, new_owner), size in parts.items():
            self.usage_bytes += size - self.parts[new_kind].pop(new_owner, 0)
            if size:
                self.parts[new_kind][new_owner] = size
        self._on_change()

    def clear(self) -> None:
        """Everything is gone at once."""
        for owners in self.parts.values():
            owners.clear()
        self.usage_bytes = 0
        self._on_change()


class OutOfMemoryKiller:
    """Kills the process when usage has stayed above the budget for longer than ``kill_after_ns``."""

    def __init__(self, env: simpy.Environment, kill_after_ns: int, kill: Callable[[], None]) -> None:
        self._env = env
        self._kill_after_ns = kill_after_ns
        self._kill = kill
        self._excursion = 0
        self._over = False

    def observe(self, usage_bytes: int, budget_bytes: int) -> None:
        """To be told of every change of usage or budget."""
        over = usage_bytes > budget_bytes
        if over and not self._over:
            self._excursion += 1
            self._env.process(self._grace(self._excursion))
        self._over = over

    def _grace(self, excursion: int) -> simpy.events.ProcessGenerator:
        yield self._env.timeout(self._kill_after_ns)
        if self._over and excursion == self._excursion:
            self._kill()
