"""Those who watch what happens. Nobody waits for them: who does not read loses the view."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from molt.server.error_answers import Unavailable
from molt.server.limits import Limits

Told = Mapping[str, Any]
View = asyncio.Queue[Told | None]
"""What one observer has not read yet; ``None`` is the end."""


class Observers:
    """At most ``limits.observers`` of them, each of whom may leave ``limits.backlog`` things unread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._views: list[View] = []

    @contextmanager
    def watching(self) -> Iterator[View]:
        """Watch, for as long as the context lasts; ``Unavailable`` if too many do."""
        if len(self._views) >= self._limits.observers:
            raise Unavailable(f"{len(self._views)} observers, which is the limit", self._limits.retry_after_s)
        view: View = asyncio.Queue()
        self._views.append(view)
        try:
            yield view
        finally:
            if view in self._views:
                self._views.remove(view)

    def tell(self, told: Told) -> None:
        """Tell everybody."""
        for view in list(self._views):
            if view.qsize() >= self._limits.backlog:
                self._views.remove(view)
                view.put_nowait(None)
            else:
                view.put_nowait(told)

    def end(self) -> None:
        """There will be no more."""
        for view in self._views:
            view.put_nowait(None)
