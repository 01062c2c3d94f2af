"""What a world holds, in bytes: the truth that is logged, and that belief is compared with."""

from __future__ import annotations

from collections.abc import Callable


class MemoryBooks:
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
