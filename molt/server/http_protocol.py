"""HTTP/1.1 by uvicorn, with time limits against slow clients."""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from molt.server.limits import Limits


def bounded(limits: Limits) -> type[H11Protocol]:
    """A protocol that cuts a connection whose headers do not arrive, or whose client does not read, in time."""

    class Bounded(H11Protocol):
        _headers_due: asyncio.TimerHandle | None = None
        _read_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=limits.send_buffer_bytes)
            sock = transport.get_extra_info("socket")
            if sock is not None:  # the kernel's buffer is bounded too
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
            self._headers_due = self.loop.call_later(limits.header_s, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._headers_due = _cancel(self._headers_due)
            elif self._headers_due is None:
                self._headers_due = self.loop.call_later(limits.header_s, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._read_due = self.loop.call_later(limits.stalled_reader_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._read_due = _cancel(self._read_due)

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers_due = _cancel(self._headers_due)
            self._read_due = _cancel(self._read_due)
            super().connection_lost(exc)

    return Bounded


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer; returns ``None``, to replace it with."""
    if timer is not None:
        timer.cancel()
    return None
