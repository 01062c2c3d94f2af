"""The guard of a run: how much memory it may take, and that nothing of it stays behind.

Rules of this module:

- Before a run, its limit is compared with its ceiling and with what the machine must keep free; the run is refused
  rather than begun too large. During it, the kernel holds it to its limit, and the watchdog stops it when the machine
  has less left than it must keep.
- The watchdog starts before the group is made, and receives the folders where the group may be: at no moment could a
  killed supervisor leave something behind.
- Children outside of the group are reported to the guard (``child``) as soon as they exist; until then
  ``molt/live/parent_death.py`` ends them with the supervisor.
- Leaving the guard, by whatever exception, ends the run: children and group are gone when ``__exit__`` returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType

import psutil

from molt.errors import InputError
from molt.paths import IMPORT_ROOT
from molt.units import show_size
from realproc.kernel import limited_group
from realproc.kernel.control_groups import ControlGroups, read_groups
from realproc.kernel.limited_group import MemoryGroup
from realproc.kernel.watchdog import WATCHDOG_LOOK_S, Charge

GIB = 2**30
KEEP_FREE_SHARE = 8
"""The machine keeps an eighth: daemons such as earlyoom begin to kill at a tenth."""

WATCHDOG_START_LOOKS = 600
CLEAR_UP_S = 10.0


class BreachError(RuntimeError):
    """A run had to be stopped, or could not be guarded any longer."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The largest limit that a run may have, and what the machine must keep free meanwhile."""

    limit_max_bytes: int
    keep_free_bytes: int

    def check(self, limit_bytes: int, available_bytes: int) -> None:
        """``InputError`` if a run with this limit may not begin on a machine with so much available."""
        if limit_bytes > self.limit_max_bytes:
            raise InputError(
                f"a run limited to {show_size(limit_bytes)} is over its ceiling, {show_size(self.limit_max_bytes)}"
            )
        if limit_bytes + self.keep_free_bytes > available_bytes:
            raise InputError(
                f"a run limited to {show_size(limit_bytes)} would not leave {show_size(self.keep_free_bytes)} free: "
                f"{show_size(available_bytes)} are available; close other programs or take a smaller limit"
            )


def default_ceilings(total_bytes: int) -> Ceilings:
    """Half of the machine for the run, and an eighth of it, at least 1 GiB, kept free."""
    return Ceilings(total_bytes // 2, max(GIB, total_bytes // KEEP_FREE_SHARE))


class Guard:
    """A limited group, and a watchdog over it: ``with Guard(limit_bytes, ceilings) as guard:``.

    ``group`` exists inside of the ``with``. Entering raises ``InputError`` where the run may not begin, or no group can
    be made.
    """

    group: MemoryGroup

    def __init__(
        self, limit_bytes: int, ceilings: Ceilings | None = None, groups: ControlGroups | None = None
    ) -> None:
        self._limit_bytes = limit_bytes
        self._ceilings = ceilings or default_ceilings(psutil.virtual_memory().total)
        self._groups = groups or read_groups()
        self._children: list[psutil.Process] = []

    def __enter__(self) -> Guard:
        self._ceilings.check(self._limit_bytes, psutil.virtual_memory().available)
        name = f"molt-run-{os.getpid()}-{time.monotonic_ns()}"
        self._charge = Charge(
            folders=tuple(map(str, limited_group.candidate_folders(self._groups, name))),
            keep_free_bytes=self._ceilings.keep_free_bytes,
        )
        self._watchdog = start_watchdog(self._charge)
        try:
            self.group = limited_group.make(self._groups, name, self._limit_bytes)
        except BaseException:
            self._end_watchdog()
            raise
        return self

    @property
    def watchdog_pid(self) -> int:
        """The process id of the watchdog."""
        return self._watchdog.pid

    def child(self, pid: int) -> None:
        """End this process with the run, whether it is in the group or not."""
        self._children.append(psutil.Process(pid))
        self._send({"child": pid})

    def check(self) -> None:
        """``BreachError`` if the run had to be stopped, or the watchdog has gone. Costs microseconds."""
        output = self._watchdog.stdout
        assert output is not None, "the watchdog has a pipe"
        if select.select([output], [], [], 0)[0]:
            said = os.read(output.fileno(), 4096).decode()
            raise BreachError(said.removeprefix("breach ").strip() or "the watchdog of the run has gone")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for child in self._children:
                with contextlib.suppress(psutil.Error):  # it has gone; its id may be another process's
                    child.kill()
            gone = limited_group.remove(self.group.folder, CLEAR_UP_S)
        finally:
            self._end_watchdog()
        if not gone and error is None:
            raise BreachError(f"{self.group.folder}: could not be removed")

    def _send(self, line: dict[str, int]) -> None:
        assert self._watchdog.stdin is not None, "the watchdog has a pipe"
        try:
            self._watchdog.stdin.write(json.dumps(line).encode() + b"\n")
            self._watchdog.stdin.flush()
        except BrokenPipeError:
            raise BreachError("the watchdog of the run has gone") from None

    def _end_watchdog(self) -> None:
        """End the watchdog by the end of its input; it clears up what is left, and may take longer than this waits."""
        for pipe in (self._watchdog.stdin, self._watchdog.stdout):
            assert pipe is not None, "the watchdog has pipes"
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(CLEAR_UP_S)


def start_watchdog(charge: Charge) -> subprocess.Popen[bytes]:
    """Start a watchdog and wait until it is ready; ``BreachError`` if it does not start."""
    watchdog = subprocess.Popen(
        [sys.executable, "-m", "realproc.kernel.watchdog"],
        cwd=IMPORT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
    assert watchdog.stdin is not None, "it has pipes"
    assert watchdog.stdout is not None, "it has pipes"
    watchdog.stdin.write(charge.as_line())
    looks = range(WATCHDOG_START_LOOKS)  # rather than one long one, as a machine may stand still meanwhile
    ready = any(select.select([watchdog.stdout], [], [], WATCHDOG_LOOK_S)[0] for _ in looks)
    if not ready or watchdog.stdout.readline() != b"ready\n":
        watchdog.kill()
        raise BreachError("the watchdog of the run did not start")
    return watchdog
