"""The fork server: a process that has imported everything an engine needs, and forks engines that are up at once.

A campaign kills an engine in every pair, and starting Python and torch anew each time would be most of its work. The
fork server is outside of the control group. A child enters the group before anything else, so that all that it
allocates is charged there: weights, caches and scratch, and every inherited page that it writes to.

Rules of this module:

- It is for engines that are killed soon. An engine that lives on writes to inherited pages one by one; they are charged
  to it, and its part of the group grows although no book has them.
- The fork server never computes anything, so that it has no thread of a tensor library which a fork would lose.
- It ends when its supervisor has gone; its children are tied to it as any engine is to its parent.
- Messages are JSON objects over a socket: orders with the pipes of a child; back come ``forked`` and ``ended``.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import typer

from molt.core.engine_protocol import EngineDied
from molt.core.ladder import Ladder
from molt.errors import InputError
from molt.live import parent_death
from molt.live.remote import ChildSpec
from molt.paths import IMPORT_ROOT
from realproc.supervisor.engine_process import WarmEngine

MESSAGE_BYTES = 1 << 16
FORK_SERVER_LOOK_S = 0.02
FORK_SERVER_START_S = 120.0


class ForkedProcess:
    """An engine process that the fork server forked, with the interface of ``subprocess.Popen``."""

    def __init__(self, fork_server: ForkServer, pid: int, stdin: io.FileIO, stdout: io.FileIO) -> None:
        self._fork_server, self.pid, self.stdin, self.stdout = fork_server, pid, stdin, stdout

    @property
    def returncode(self) -> int | None:
        """As in ``subprocess``: negative for a signal; ``None`` while it lives."""
        return self._fork_server.status_of(self.pid)

    def poll(self) -> int | None:
        """Its status if it has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises ``subprocess.TimeoutExpired``."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.returncode) is None:
            if until_s is not None and time.monotonic() > until_s:
                raise subprocess.TimeoutExpired("an engine", timeout or 0.0)
            time.sleep(FORK_SERVER_LOOK_S / 10)
        return status

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The fork server, seen from the supervisor. Close it at the end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it; ``InputError`` if it does not start."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._statuses: dict[int, int] = {}
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "realproc.campaigns.fork_server", str(os.getpid()), str(theirs.fileno())],
            cwd=IMPORT_ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self._socket.settimeout(FORK_SERVER_START_S)
        try:
            is_up = "ready" in json.loads(self._socket.recv(MESSAGE_BYTES) or b"{}")
        except (TimeoutError, OSError):
            is_up = False
        if not is_up:
            self.close()
            raise InputError("the fork server did not start")

    def fork(self, arguments: list[str]) -> ForkedProcess:
        """Fork an engine with the arguments of its command line. ``EngineDied`` if the fork server has gone."""
        child_in, ours_in = os.pipe()
        ours_out, child_out = os.pipe()
        try:
            with self._lock:
                socket.send_fds(
                    self._socket, [json.dumps({"arguments": arguments}).encode()], [child_in, child_out]
                )
                while "forked" not in (message := self._receive(FORK_SERVER_START_S)):
                    if not message:
                        raise EngineDied("it was not forked", 1)
        except OSError as error:
            raise EngineDied(f"the fork server has gone: {error}", 1) from None
        finally:
            os.close(child_in)
            os.close(child_out)
        return ForkedProcess(self, message["forked"], io.FileIO(ours_in, "wb"), io.FileIO(ours_out, "rb"))

    def status_of(self, pid: int) -> int | None:
        """The status of a child that has ended; ``None`` while it lives."""
        with self._lock, suppress(OSError, ValueError):  # closed
            while self._receive(0.0):
                pass
        if pid not in self._statuses and self._process.poll() is not None:
            return -signal.SIGKILL  # all children go with the fork server
        return self._statuses.get(pid)

    def close(self) -> None:
        """End it, and with it every process that it has forked."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, within_s: float) -> dict[str, Any]:
        """The next message; an empty one if there is none in time."""
        if not select.select([self._socket], [], [], within_s)[0]:
            return {}
        message: dict[str, Any] = json.loads(self._socket.recv(MESSAGE_BYTES) or b"{}")
        if "ended" in message:
            self._statuses[message["ended"]] = os.waitstatus_to_exitcode(message["status"])
        return message


class ForkedEngine(WarmEngine):
    """An engine whose process comes from the fork server."""

    def __init__(self, spec: ChildSpec, ladder: Ladder, fork_server: ForkServer) -> None:
        super().__init__(spec, ladder)
        self._fork_server = fork_server

    def _spawn(self) -> subprocess.Popen[bytes]:
        return self._fork_server.fork(self._spec.arguments()[3:])  # type: ignore[return-value]  # no python -m


# --- in the fork server's process ---


def main(supervisor_pid: int, descriptor: int) -> None:
    """Fork engines until the supervisor has gone."""
    parent_death.tie_to_parent(supervisor_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = socket.socket(fileno=descriptor)
    import molt.engine.real  # torch  # noqa: F401
    from molt.live import child

    line.send(json.dumps({"ready": os.getpid()}).encode())
    while True:
        if select.select([line], [], [], FORK_SERVER_LOOK_S)[0]:
            message, descriptors, *_ = socket.recv_fds(line, MESSAGE_BYTES, 2)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                line.close()
                _run_engine(child.main, json.loads(message)["arguments"], *descriptors)
            for one in descriptors:
                os.close(one)
            line.send(json.dumps({"forked": pid}).encode())
        _report_ended(line)


def _report_ended(line: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            line.send(json.dumps({"ended": ended[0], "status": ended[1]}).encode())


def _run_engine(serve: Any, arguments: list[str], incoming: int, outgoing: int) -> NoReturn:
    """The life of a forked child: it runs the engine and exits."""
    status = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(incoming, 0)
        os.dup2(outgoing, 1)
        for one in (incoming, outgoing):
            os.close(one)
        arguments[arguments.index("--parent") + 1] = str(os.getppid())
        program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        program.command()(serve)
        program(prog_name="molt.live.child", args=arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
