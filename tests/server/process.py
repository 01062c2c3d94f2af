"""``molt serve`` as a process of its own, as its users have it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.server.local import ADMIN, is_healthy, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Process:
    """A server that was started; ``said`` is what it printed."""

    process: subprocess.Popen[str]
    log: Path
    spill: Path
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is, as it says itself."""
        (url,) = [m[0] for line in self.said if (m := re.match(r"http://\S+:\d+", line))]
        return url

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx2.Client:
        """A client that gives up rather than hang."""
        return httpx2.Client(base_url=self.url, timeout=60, trust_env=False, **options)

    def budget(self, budget: int | str, token: str = ADMIN) -> httpx2.Response:
        """Set the budget."""
        with self.client(headers={"authorization": f"Bearer {token}"}) as client:
            return client.post("/admin/budget", json={"budget": budget})

    def children(self) -> list[psutil.Process]:
        """Its child processes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, *signals: int, within_s: float = 10.0) -> int:
        """Send signals, and wait for the exit status."""
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(within_s)


def command(*options: str) -> list[str]:
    """The command line of a server."""
    return [sys.executable, "-m", "molt.server", *options]


@contextmanager
def started(
    folder: Path, *options: str, healthy: bool = True, preexec: Callable[[], None] | None = None
) -> Iterator[Process]:
    """A server with a log in ``folder``, killed at the end if it still lives, with its children."""
    log, spill = folder / "events.jsonl", folder / "tmp"
    spill.mkdir(exist_ok=True)
    given = ["--port", "0", "--admin-token", ADMIN, "--log", str(log), *options]
    process = subprocess.Popen(
        command(*given),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(spill)},
        preexec_fn=preexec,
    )
    server = Process(process, log, spill)
    reader = threading.Thread(target=_read, args=(server,), daemon=True)
    reader.start()
    try:
        if healthy:
            wait_until(lambda: process.poll() is not None or len(server.said) > 1, 60)
            assert process.poll() is None, server.said
            wait_until(lambda: is_healthy(server.url), 90)
        yield server
    finally:
        with suppress(psutil.NoSuchProcess):
            for child in server.children():
                child.kill()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)
        reader.join(10)


def _read(server: Process) -> None:
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.said.append(line.rstrip("\n"))
