"""Sockets and signals: the server from its first connection to its end.

The first SIGTERM (or Ctrl-C) ends every stream with an error and ``[DONE]``, and the engine after the step under way;
the second ends the process at once, and the engine's with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import psutil
import uvicorn
from starlette.types import ASGIApp

from molt.errors import InputError
from molt.server.bridge import Bridge
from molt.server.http_protocol import bounded

END_SIGNALS = (signal.SIGINT, signal.SIGTERM)
AT_ONCE_S = 0.5
PROBE_S = 1.0
"""How long another server may take to accept, or to make its own socket."""

BACKLOG = 128
"""Connections that wait to be accepted: so many are accepted in one go, before any other task runs."""


class _Server(uvicorn.Server):
    """Uvicorn's, which leaves signals to ``serve``."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(
    bridge: Bridge,
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until a signal comes, or the world fails; whether the server ended as intended."""
    limits = bridge.limits
    config = uvicorn.Config(
        app,
        http=bounded(limits),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="error",  # malformed requests are not logged
        backlog=BACKLOG,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(limits.idle_s),
        timeout_graceful_shutdown=limits.drain_s,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=limits.header_bytes,
    )
    server = _Server(config)
    ending = _Ending(bridge, server)
    bridge.end_server = ending.gently
    with ending.at_signals():
        bridge.start()
        started()
        await server.serve(sockets=list(sockets))
        bridge.stop()
        ended = await bridge.stopped(ending.left_s())
    return ended and bridge.failure is None


class _Ending:
    """Ends the server at a signal."""

    def __init__(self, bridge: Bridge, server: uvicorn.Server) -> None:
        self._bridge, self._server = bridge, server
        self._begun_s: float | None = None

    def signalled(self) -> None:
        """The first time gently, the second at once."""
        if self._begun_s is not None:
            self._at_once()
        self.gently()

    def gently(self) -> None:
        """End every answer, and then the server."""
        if self._begun_s is None:
            self._begun_s = time.monotonic()
            self._bridge.stop()
            self._server.should_exit = True

    def left_s(self) -> float:
        """Seconds until the world must have ended."""
        since_s = 0.0 if self._begun_s is None else time.monotonic() - self._begun_s
        return max(0.0, self._bridge.limits.stop_s - since_s)

    def _at_once(self) -> None:
        """Kill the engine, then exit; the world gets a moment to clean up."""
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._bridge.join(AT_ONCE_S)
        os._exit(1)

    @contextlib.contextmanager
    def at_signals(self) -> Generator[None, None, None]:
        """End at a signal, as long as the context lasts (in the main thread: others get no signals)."""
        loop = asyncio.get_running_loop()
        try:
            for number in END_SIGNALS:
                loop.add_signal_handler(number, self.signalled)
        except (RuntimeError, ValueError):
            yield
            return
        try:
            yield
        finally:
            for number in END_SIGNALS:
                loop.remove_signal_handler(number)


def listen_on(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; ``InputError`` if it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host} --port {port}: {_reason(error)}") from None
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


@contextlib.contextmanager
def admin_listener(path: Path) -> Generator[socket.socket, None, None]:
    """``listen_at``, whose file is removed at the end, however that comes; unless it is another server's by then."""
    with listen_at(path) as sock:
        made = path.stat()
        try:
            yield sock
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(path.stat(), made):
                    path.unlink()


def listen_at(path: Path) -> socket.socket:
    """A UNIX socket that only its owner may connect to. One of the same name is replaced if no server listens there.

    ``InputError`` if one does, or if there can be no socket.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(path.parent):
            if stat.S_ISSOCK(_mode(path)):
                _check_unused(path)
                path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                sock.bind(str(path))
            finally:
                os.umask(before)
            sock.listen(BACKLOG)  # now, so that no other server takes it for unused
    except (OSError, ValueError) as error:
        sock.close()
        raise InputError(f"--admin-socket: {path}: {_reason(error)}") from None
    sock.setblocking(False)
    return sock


@contextlib.contextmanager
def _alone_in(folder: Path) -> Generator[None, None, None]:
    """Two servers that start at once look for and make their sockets in a folder one after the other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        until_s = time.monotonic() + PROBE_S
        while time.monotonic() < until_s:  # not for ever: others may lock the folder, too
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _check_unused(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(PROBE_S)
        try:
            other.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except TimeoutError:
            pass  # its queue is full: there is a server, and a busy one
    raise InputError("another server listens there")


def _reason(error: Exception) -> str:
    """What the system says; Python's own words where it was not asked, as for a path that is too long."""
    return getattr(error, "strerror", None) or str(error)


def say(line: str) -> None:
    """Print a line to stderr, if that is still open."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
