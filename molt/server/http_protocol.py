"""HTTP/1.1 by uvicorn, with time limits against slow clients and room for a number of connections.

Rules of this module:

- Every state in which a connection waits for its client has a time limit, whatever the method: headers, a body, unread
  answers, idleness, and the last bytes before the end.
- A connection that had room when it was made keeps it. One beyond the room is refused with 503, and one beyond
  ``REFUSED_MAX`` more is cut at once: descriptors never run out.
- The owner's connections, at the UNIX socket, have room of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from molt.server.limits import Limits

GRACE_S = 1.0
"""How much longer than its deadline a body may take: whoever reads it refuses it first, with a reason."""

REFUSED_MAX = 16
"""Connections beyond the room that are still there to be refused."""

OWN_DESCRIPTORS = 128
"""Descriptors of the server beside those of its connections: files, pipes to the engine, libraries."""


class Room:
    """The connections at one kind of socket: the first ``size`` are served, a few more are refused."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._served: set[object] = set()
        self._refused: set[object] = set()

    def enter(self, connection: object) -> bool:
        """Add a connection; whether it may stay at all."""
        if len(self._served) < self._size:
            self._served.add(connection)
        elif len(self._refused) < REFUSED_MAX:
            self._refused.add(connection)
        else:
            return False
        return True

    def serves(self, connection: object) -> bool:
        """Whether requests of this connection are answered."""
        return connection in self._served

    def leave(self, connection: object) -> None:
        """Remove a connection."""
        self._served.discard(connection)
        self._refused.discard(connection)


def connections_possible(limits: Limits) -> int:
    """Connections at the port for which there are descriptors, beside the owner's; asks the system for more first."""
    beside = limits.owner_connections + 2 * REFUSED_MAX + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < limits.connections + beside:
        wanted = limits.connections + beside
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE,
                (wanted if hard == resource.RLIM_INFINITY else min(hard, wanted), hard),
            )
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, min(limits.connections, soft - beside))
    return limits.connections


def bounded(limits: Limits) -> type[H11Protocol]:
    """A protocol that cuts connections whose client is too slow, or for which there is no room."""
    port, owner = Room(connections_possible(limits)), Room(limits.owner_connections)

    class Bounded(H11Protocol):
        _headers_due: asyncio.TimerHandle | None = None
        _body_due: asyncio.TimerHandle | None = None
        _read_due: asyncio.TimerHandle | None = None
        _end_due: asyncio.TimerHandle | None = None
        _room = port

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.family == socket.AF_UNIX:
                self._room = owner
            if not self._room.enter(self):
                transport.abort()
                return
            transport.set_write_buffer_limits(high=limits.send_buffer_bytes)
            if sock is not None:  # the kernel's buffer is bounded too
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
            self._headers_due = self.loop.call_later(limits.header_s, transport.abort)

        def data_received(self, data: bytes) -> None:
            self.limit_concurrency = None if self._room.serves(self) else 0  # 0: uvicorn refuses with 503
            super().data_received(data)

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is not h11.IDLE:
                self._headers_due = _cancel(self._headers_due)
            elif self._headers_due is None and self.conn.trailing_data[0]:
                self._headers_due = self.loop.call_later(limits.header_s, self.transport.abort)
            if self.conn.their_state is not h11.SEND_BODY:
                self._body_due = _cancel(self._body_due)
            elif self._body_due is None:
                self._body_due = self.loop.call_later(limits.body_s + GRACE_S, self.transport.abort)
            self._end_in_time()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.SEND_BODY:  # the rest of the body stays unread
                self.transport.close()
            self._end_in_time()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._end_in_time()

        def shutdown(self) -> None:
            super().shutdown()
            self._end_in_time()

        def _end_in_time(self) -> None:
            """A connection that is closing may still have something to send, which its client may never read."""
            if self.transport.is_closing() and self._end_due is None:
                self._end_due = self.loop.call_later(limits.stalled_reader_s, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._read_due = self.loop.call_later(limits.stalled_reader_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._read_due = _cancel(self._read_due)

        def connection_lost(self, exc: Exception | None) -> None:
            self._room.leave(self)
            self._headers_due = _cancel(self._headers_due)
            self._body_due = _cancel(self._body_due)
            self._read_due = _cancel(self._read_due)
            super().connection_lost(exc)
            self._unset_keepalive_if_required()
            self._end_due = _cancel(self._end_due)

    return Bounded


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer; returns ``None``, to replace it with."""
    if timer is not None:
        timer.cancel()
    return None
