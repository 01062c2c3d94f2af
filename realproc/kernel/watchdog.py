"""The process that clears up after a run, however that ends; ``guard.py`` starts it.

It reads one JSON object a line from its standard input: first the ``Charge``, then ``{"child": pid}`` for each process
of the run outside of the group. It answers ``ready``, and ``breach`` with a reason if it has had to stop the run: the
machine had less memory left than it must keep. The end of its input means that the supervisor has gone, however that
happened: the watchdog kills what is left of the run, removes the group, and ends.

It has a session of its own and ignores the signals of a terminal, so that Ctrl-C does not end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from molt.units import show_size
from realproc.kernel import limited_group

WATCHDOG_LOOK_S = 0.1
"""How often it looks at the memory of the machine."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What the watchdog guards: the folders where the group of the run may be, and the bytes that must stay free."""

    folders: tuple[str, ...]
    keep_free_bytes: int

    def as_line(self) -> bytes:
        """The first line of the watchdog's input."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    """Watch until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = _lines(sys.stdin.fileno())
    charge = Charge(**json.loads(next(line for line in lines if line)))
    children: list[psutil.Process] = []
    _say("ready")
    is_reported = False
    for line in lines:
        if line:
            with contextlib.suppress(psutil.NoSuchProcess):
                children.append(psutil.Process(json.loads(line)["child"]))
        if (available_bytes := psutil.virtual_memory().available) < charge.keep_free_bytes:
            clear_up(charge, children, within_s=1.0)
            if not is_reported:
                is_reported = True
                _say(
                    f"breach the machine had {show_size(available_bytes)} of memory left, less than the "
                    f"{show_size(charge.keep_free_bytes)} it must keep"
                )
    clear_up(charge, children, within_s=30.0)


def clear_up(charge: Charge, children: list[psutil.Process], within_s: float) -> None:
    """Kill every process of the run and remove its group, in whichever folder it is."""
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()  # psutil first checks that the id has not passed to another process
    for folder in charge.folders:
        limited_group.remove(Path(folder), within_s)


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines of the input as they come, and an empty one at least every ``WATCHDOG_LOOK_S``; ends with the input."""
    pending = b""
    while True:
        if select.select([descriptor], [], [], WATCHDOG_LOOK_S)[0]:
            if not (some := os.read(descriptor, 4096)):
                return
            *whole, pending = (pending + some).split(b"\n")
            yield from whole
        else:
            yield b""


def _say(text: str) -> None:
    """Send a line to the supervisor, unless it has gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), text.encode() + b"\n")


if __name__ == "__main__":
    main()
