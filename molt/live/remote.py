"""An engine in a process of its own, behind the same protocol. This process imports no tensor library.

Rules of this module:

- Only plain data goes through the pipe (``messages.py``); every answer says what the engine holds, which is kept here.
- The child is dead when it has ended, when it does not answer in time, or when it answers something else than was
  asked. All three raise ``EngineDied`` from the call under way, or from the next one; a child that lives is killed.
- ``start`` and every call are made by one thread, which stays until the end: the kernel ends the child with it.
- Nothing is left behind: what the child has on disk has no name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

from molt.core.engine_protocol import (
    Decoded,
    Destination,
    EngineDied,
    EngineKind,
    LoadError,
    Request,
    SpillError,
    SwitchError,
)
from molt.core.events import Handoff
from molt.errors import InputError
from molt.live import messages
from molt.live.messages import CALLS, REPLIES, Ended, MessageError, NumberedCall, Pipe, Reply, Silence
from molt.paths import IMPORT_ROOT
from molt.work import Unfinished

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
"""So that freed memory goes back to the system, and waiting threads leave the cores to others. What is set stays."""
END_S = 2.0
"""What a child that is to end, or has closed its pipe, may take to end."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an answer may take, in seconds, before the child counts as dead: to come up, and to any one call.

    A token may take minutes where mapped weights are read from disk again for each.
    """

    start_s: float = 300.0
    call_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start: see the options of ``molt.live.child``.

    ``group`` is the folder of a control group to enter, ``spill`` one on the disk to which caches are spilled.
    """

    ladder: str
    engine: EngineKind = EngineKind.REAL
    weights: Literal["anonymous", "mapped"] | None = None
    group: Path | None = None
    spill: Path | None = None
    device: str = "cpu"
    threads: int | None = None
    profile: str | None = None
    pace: float = 0.0

    def arguments(self) -> list[str]:
        """The command line of the child."""
        ladder = Path(self.ladder)
        is_file = ladder.suffix in (".yaml", ".yml") or len(ladder.parts) != 1
        options: dict[str, object] = {
            "parent": os.getpid(),
            "ladder": str(ladder.resolve()) if is_file else self.ladder,
            "engine": self.engine,
            "weights": self.weights,
            "group": self.group,
            "spill": self.spill and self.spill.resolve(),
            "device": self.device,
            "profile": self.profile,
            "pace": self.pace,
        }
        given = {f"--{name}": str(value) for name, value in options.items() if value is not None}
        return [sys.executable, "-m", "molt.live.child", *chain.from_iterable(given.items())]

    def environment(self) -> dict[str, str]:
        """The environment of the child: this process's, completed."""
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return {**ENVIRONMENT, **os.environ, **threads}


class RemoteEngine:
    """An engine over a child process; ``start`` brings it up, ``kill`` ends it."""

    def __init__(self, spec: ChildSpec, patience: Timeouts | None = None) -> None:
        self._spec = spec
        self._patience = patience or Timeouts()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._number = 0
        self._death: EngineDied | None = None
        self._hurry_s = float("inf")
        self._cache_bytes: dict[str, int] = {}
        self._settled: dict[str, int] = {}
        self._weight_bytes: dict[str, int] = {}

    # -- the process

    @property
    def pid(self) -> int | None:
        """Process id of the child, ``None`` while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Bring the child up, cold. Nothing to do if there is one.

        Raises ``InputError`` if it refuses what it was asked for, ``EngineDied`` if it does not come up.
        """
        if self._process is not None:
            return
        try:
            self._process = self._spawn()
        except OSError as error:
            raise EngineDied(f"it cannot be started: {error.strerror}") from error
        assert self._process.stdin is not None, "it has pipes"
        assert self._process.stdout is not None, "it has pipes"
        self._pipe = Pipe(self._process.stdout.fileno(), self._process.stdin.fileno())
        self._number = 0
        greeting = self._receive("start", self._patience.start_s)
        if greeting.failure is not None:
            raise InputError(greeting.reason)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603
            self._spec.arguments(),
            cwd=IMPORT_ROOT,
            env=self._spec.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # the Ctrl-C of a terminal is not for it
        )

    def check(self) -> None:
        """``EngineDied`` if the child has gone since the last call."""
        if self._death is None and self._process is not None and self._process.poll() is not None:
            self._lost("it ended between two calls")
        if self._death is not None:
            raise self._death

    def hurry(self, within_s: float) -> None:
        """From now on, give the child no longer than this in all. May be called by any thread."""
        self._hurry_s = time.monotonic() + within_s

    def kill(self) -> None:
        """End the child, and lose everything with it. Nothing to do if there is none."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        if process is not None:
            _end(process)
            for end in (process.stdin, process.stdout):
                assert end is not None, "it has pipes"
                end.close()
        self._death = None
        self._hurry_s = float("inf")
        for held in (self._cache_bytes, self._settled, self._weight_bytes):
            held.clear()

    # -- weights

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        reply = self._call(messages.LoadCall(rung, within_ns))
        self._weight_bytes[rung] = reply.held_bytes
        return self._due(reply.is_done, "load")

    def release(self, rung: str) -> int:
        reply = self._call(messages.ReleaseCall(rung))
        self._weight_bytes[rung] = reply.held_bytes
        return self._due(reply.freed_bytes, "release")

    def weight_bytes(self, rung: str) -> int:
        return self._weight_bytes.get(rung, 0)

    # -- generations

    def admit(self, tenant: str, request: Request, rung: str, capacity: int) -> None:
        self._about(tenant, messages.AdmitCall(tenant, request, rung, capacity))

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        reply = self._about(tenant, messages.PrefillCall(tenant, tokens, chunk, within_ns))
        if not self._due(reply.is_done, "prefill"):
            raise Unfinished

    def decode(self, tenant: str, count: int, heal: int = 0) -> Decoded:
        return self._due(self._about(tenant, messages.DecodeCall(tenant, count, heal)).decoded, "decode")

    def switch(self, tenant: str, destination: Destination, within_ns: int | None = None) -> Handoff | None:
        reply = self._about(tenant, messages.SwitchCall(tenant, destination, within_ns))
        if not self._due(reply.is_done, "switch"):
            raise Unfinished
        return reply.handoff

    def park(self, tenant: str) -> int:
        return self._due(self._about(tenant, messages.TenantCall(tenant, "park")).freed_bytes, "park")

    def grow(self, tenant: str, capacity: int) -> None:
        self._about(tenant, messages.GrowCall(tenant, capacity))

    def spill(self, tenant: str) -> int:
        return self._due(self._about(tenant, messages.TenantCall(tenant, "spill")).freed_bytes, "spill")

    def restore(self, tenant: str) -> None:
        self._about(tenant, messages.TenantCall(tenant, "restore"))

    def shed(self, tenant: str, keep_cells: int, rung: str) -> int:
        return self._due(self._about(tenant, messages.ShedCall(tenant, keep_cells, rung)).freed_bytes, "shed")

    def finish(self, tenant: str) -> None:
        """Forget a tenant. That the child is gone, and the tenant with it, shows in the next call."""
        with suppress(EngineDied):
            self._call(messages.TenantCall(tenant, "finish"))
        self._cache_bytes.pop(tenant, None)
        self._settled.pop(tenant, None)

    def cache_bytes(self, tenant: str) -> int:
        return self._cache_bytes.get(tenant, 0)

    def settled_cells(self, tenant: str) -> int:
        return self._settled[tenant]

    # -- detail

    def _about(self, tenant: str, call: messages.Call) -> Reply:
        reply = self._call(call)
        self._cache_bytes[tenant], self._settled[tenant] = reply.held_bytes, reply.settled
        return reply

    def _call(self, call: messages.Call) -> Reply:
        if self._death is not None:
            raise self._death
        self._number += 1
        reply = self._receive(call.call, self._patience.call_s, NumberedCall(self._number, call))
        match reply.failure:
            case None:
                return reply
            case "LoadError":
                raise LoadError(reply.reason)
            case "SwitchError":
                raise SwitchError(reply.reason)
            case "SpillError":
                raise SpillError(reply.reason)
        what = f"it answered {call.call} with {reply.failure}: {reply.reason}"
        raise self._lost(what, _tenant_of(call), is_alive=True)

    def _receive(self, what: str, within_s: float, asked: NumberedCall | None = None) -> Reply:
        """The reply to a call, or the greeting."""
        assert self._pipe is not None, "there is no child"
        tenant = None if asked is None else _tenant_of(asked.call)
        last_s = time.monotonic() + within_s

        def until_s() -> float:
            return min(last_s, self._hurry_s)

        try:
            if asked is not None:
                self._pipe.send(CALLS, asked, until_s)
            reply = self._pipe.receive(REPLIES, until_s)
        except Silence:
            raise self._lost(f"it did not answer {what} in time", tenant, is_alive=True) from None
        except Ended:
            raise self._lost(f"it ended during {what}", tenant) from None
        except MessageError as error:
            raise self._lost(f"its answer to {what} is none: {error}", tenant, is_alive=True) from None
        if reply.number != self._number:
            wrong = f"it answered call {reply.number}, not {self._number}, {what}"
            raise self._lost(wrong, tenant, is_alive=True)
        return reply

    def _due(self, value: T | None, call: str) -> T:
        """What an answer must have."""
        if value is None:
            raise self._lost(f"its answer to {call} lacks the result", is_alive=True)
        return value

    def _lost(self, what: str, tenant: str | None = None, *, is_alive: bool = False) -> EngineDied:
        """The child counts as dead, and is killed if it ``is_alive``; until ``kill``, every call says so.

        ``tenant`` is the one the call was for; the child has failed at it unless another process killed it.
        """
        process = self._process
        assert process is not None, "there is no child"
        if not is_alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        status = process.poll()
        how = "killed for it" if status is None else _spoken(status)
        was_killed = status is not None and status < 0
        process.kill()
        self._death = EngineDied(f"{what}: {how}", process.wait(), None if was_killed else tenant)
        return self._death


def _tenant_of(call: messages.Call) -> str | None:
    return getattr(call, "tenant", None)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spoken(status: int) -> str:
    """An exit status, or the signal that ended a process, in words."""
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"
