"""Clients that follow the events of the server. It does not wait for them: one that does not read is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from molt.server.error_answers import Unavailable
from molt.server.limits import Limits

Notice = Mapping[str, Any]
"""An event for observers; ``type`` names it."""

View = asyncio.Queue[Notice | None]
"""Notices that one observer has not read yet; ``None`` is the end."""


class Observers:
    """At most ``limits.observers``, each with at most ``limits.backlog`` unread notices; a few more for the owner."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._views: list[View] = []
        self._connected = {False: 0, True: 0}  # by whether they are the owner's

    @contextmanager
    def watching(self, *, owner: bool = False) -> Iterator[View]:
        """A view, for as long as the context lasts; ``Unavailable`` if there are too many observers."""
        most = self._limits.owner_observers if owner else self._limits.observers
        if self._connected[owner] >= most:
            raise Unavailable(
                f"{most} observers are connected, which is the limit", self._limits.retry_after_s
            )
        view: View = asyncio.Queue()
        self._views.append(view)
        self._connected[owner] += 1
        try:
            yield view
        finally:
            self._connected[owner] -= 1
            if view in self._views:
                self._views.remove(view)

    def publish(self, notice: Notice) -> None:
        """Send a notice to all observers."""
        for view in list(self._views):
            if view.qsize() >= self._limits.backlog:
                self._views.remove(view)
                view.put_nowait(None)
            else:
                view.put_nowait(notice)

    def end(self) -> None:
        """End all views."""
        for view in self._views:
            view.put_nowait(None)
