"""Signals: events that say that memory is getting short, each behind the same interface.

Rules of this module:

- A signal is opened when it is made, waited for by its descriptor or its interval, and read. Reading acknowledges it,
  and gives a ``UsageReading``: usage and limit at a time of the monotonic clock.
- A signal only wakes. Whether a budget is reported is decided in ``realproc/supervisor/headroom.py``, by usage and
  never by a level of pressure.
- ``late`` marks the signals that come when it is too late to act on a machine without swap: those that measure how
  badly reclaim does, or how long tasks have stalled already. They are negative controls.
- ``SIGNALS`` has all of them by name.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from molt.errors import InputError
from molt.units import MS_NS
from realproc.kernel.limited_group import HINT, GroupV1, GroupV2, MemoryGroup

PSI_FILE = Path("/proc/pressure/memory")
PSI_STALL_NS = 20 * MS_NS
PSI_WINDOW_NS = 2000 * MS_NS
"""The one window, with its multiples, that may be asked for without privileges."""


@dataclass(frozen=True, slots=True)
class UsageReading:
    """Usage and limit at a time of ``time.monotonic_ns``."""

    at_ns: int
    usage_bytes: int
    limit_bytes: int


class Meter:
    """The usage of a group, read in a microsecond from a file that stays open."""

    def __init__(self, usage_file: Path, limit_bytes: int) -> None:
        self._file = os.open(usage_file, os.O_RDONLY)
        self._limit_bytes = limit_bytes

    @classmethod
    def of(cls, group: MemoryGroup) -> Meter:
        """The meter of a group, with the limit that it has now."""
        return cls(group.usage_file, group.limit_bytes)

    def read(self) -> UsageReading:
        """Usage now. ``OSError`` if the group is gone."""
        usage_bytes = int(os.pread(self._file, 32, 0))
        return UsageReading(time.monotonic_ns(), usage_bytes, self._limit_bytes)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Signal(Protocol):
    """Something to wait for."""

    @property
    def late(self) -> bool:
        """Whether it is a negative control."""

    @property
    def interval_ns(self) -> int | None:
        """How often to read where there is no descriptor; ``None`` where there is one."""

    def fileno(self) -> int | None:
        """The descriptor to wait for, if any."""

    @property
    def poll_mask(self) -> int:
        """What to wait for there: ``select.POLLIN`` or ``select.POLLPRI``."""

    def read(self) -> UsageReading:
        """Acknowledge the event, so that the next one wakes again, and take a reading."""

    def close(self) -> None:
        """Stop signalling."""


class Polling:
    """No event at all: look at usage at an interval."""

    late = False
    poll_mask = 0

    def __init__(self, meter: Meter, interval_ns: int) -> None:
        self._meter = meter
        self.interval_ns: int | None = interval_ns

    def fileno(self) -> int | None:
        return None

    def read(self) -> UsageReading:
        return self._meter.read()

    def close(self) -> None:
        self._meter.close()


class EventCounter:
    """An eventfd that the kernel counts up: v1's usage thresholds (in time) and its pressure levels (late)."""

    interval_ns: int | None = None
    poll_mask = select.POLLIN

    def __init__(self, meter: Meter, event: int, *, late: bool) -> None:
        self._meter, self._event, self.late = meter, event, late

    def fileno(self) -> int | None:
        return self._event

    def read(self) -> UsageReading:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        return self._meter.read()

    def close(self) -> None:
        os.close(self._event)
        self._meter.close()


class KernelFile:
    """A file that the kernel notifies on: v2's ``memory.events``, or a PSI file with a trigger (late)."""

    interval_ns: int | None = None
    poll_mask = select.POLLPRI

    def __init__(self, meter: Meter, file: Path, trigger: bytes = b"", *, late: bool) -> None:
        self._meter, self.late = meter, late
        self._file = _open_with(file, os.O_RDWR if trigger else os.O_RDONLY, trigger)
        os.pread(self._file, 4096, 0)  # acknowledges what came before

    def fileno(self) -> int | None:
        return self._file

    def read(self) -> UsageReading:
        os.pread(self._file, 4096, 0)  # acknowledges: the next event is one that comes after this
        return self._meter.read()

    def close(self) -> None:
        os.close(self._file)
        self._meter.close()


class Messages:
    """A FIFO or a socket on which any byte means pressure; the content is ignored.

    When the other side has closed, it would be readable for ever: from then on usage is polled every 100 ms.
    """

    poll_mask = select.POLLIN

    def __init__(self, meter: Meter, descriptor: int, *, late: bool) -> None:
        self._meter, self._descriptor, self.late = meter, descriptor, late
        self._ended = False

    @property
    def interval_ns(self) -> int | None:
        return 100 * MS_NS if self._ended else None

    def fileno(self) -> int | None:
        return None if self._ended else self._descriptor

    def read(self) -> UsageReading:
        with contextlib.suppress(BlockingIOError):
            while not self._ended:
                self._ended = not os.read(self._descriptor, 4096)
        return self._meter.read()

    def close(self) -> None:
        os.close(self._descriptor)
        self._meter.close()


# --- each by its own name ---


def usage_threshold(group: MemoryGroup, wake_bytes: int) -> Signal:
    """v1: wakes when usage crosses ``wake_bytes``, and again half-way and three quarters of the way to the limit.

    Huge pages make usage jump, so a single threshold could be crossed while the first event is still being handled.
    """
    group = _v1(group, "threshold")
    above = max(0, group.limit_bytes - wake_bytes)
    thresholds = {wake_bytes, wake_bytes + above // 2, wake_bytes + above * 3 // 4}
    return EventCounter(Meter.of(group), group.usage_event(*sorted(thresholds)), late=False)


def memory_high(group: MemoryGroup, wake_bytes: int) -> Signal:
    """v2: sets ``memory.high`` to ``wake_bytes``; wakes when usage meets it, and the kernel slows down growth above."""
    if not isinstance(group, GroupV2):
        raise InputError(f"signal high needs a v2 memory control group, this one is {group.version}; {HINT}")
    group.set_high(wake_bytes)
    return KernelFile(Meter.of(group), group.events_file, late=False)


def polling(interval_ms: int) -> Callable[[MemoryGroup, int], Signal]:
    """Looks at usage at an interval; ignores ``wake_bytes``."""
    return lambda group, wake_bytes: Polling(Meter.of(group), interval_ms * MS_NS)


def psi_trigger(group: MemoryGroup, wake_bytes: int) -> Signal:
    """Wakes when tasks of the machine have stalled on memory for 20 ms in 2 s. Late."""
    trigger = f"some {PSI_STALL_NS // 1000} {PSI_WINDOW_NS // 1000}\0".encode()
    return KernelFile(Meter.of(group), PSI_FILE, trigger, late=True)


def pressure_level(level: str) -> Callable[[MemoryGroup, int], Signal]:
    """v1's ``low``, ``medium`` or ``critical``, which come milliseconds before the kill, all at once. Late."""

    def signal(group: MemoryGroup, wake_bytes: int) -> Signal:
        group = _v1(group, f"vmpressure-{level}")
        return EventCounter(Meter.of(group), group.pressure_event(level), late=True)

    return signal


def from_environment(
    group: MemoryGroup, wake_bytes: int = 0, environment: Mapping[str, str] = os.environ
) -> Signal:
    """The signal that a service manager names in ``$MEMORY_PRESSURE_WATCH`` and ``$MEMORY_PRESSURE_WRITE``.

    The protocol is systemd's (https://systemd.io/MEMORY_PRESSURE/): a PSI file, a FIFO or an ``AF_UNIX`` stream
    socket, and bytes in base64 to write to a file or a socket once it is open. A file is late: as a rule it is PSI;
    a FIFO or a socket is as early as its writer. ``InputError``: unset, switched off (``/dev/null``), or not usable.
    """
    watch = environment.get("MEMORY_PRESSURE_WATCH", "")
    if watch in ("", "/dev/null"):
        raise InputError(f"MEMORY_PRESSURE_WATCH: {'switched off' if watch else 'not set'}: nothing to watch")
    try:
        greeting = base64.b64decode(environment.get("MEMORY_PRESSURE_WRITE", ""), validate=True)
    except binascii.Error as error:
        raise InputError(f"MEMORY_PRESSURE_WRITE: not base64: {error}") from None
    file = Path(watch)
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise InputError(f"MEMORY_PRESSURE_WATCH: {watch}: {error.strerror}") from None
    if stat.S_ISREG(mode):
        if not greeting:
            raise InputError(
                "MEMORY_PRESSURE_WRITE: not set: a file signals nothing until a trigger is written to it"
            )
        return KernelFile(Meter.of(group), file, greeting, late=True)
    if stat.S_ISFIFO(mode):  # open for writing too: without it, every writer that closes would end it
        return Messages(Meter.of(group), _open_with(file, os.O_RDWR, b""), late=False)
    if stat.S_ISSOCK(mode):
        return Messages(Meter.of(group), _connected(file, greeting), late=False)
    raise InputError(f"MEMORY_PRESSURE_WATCH: {watch}: neither a file, nor a FIFO, nor a socket")


SIGNALS: Mapping[str, Callable[[MemoryGroup, int], Signal]] = {
    "threshold": usage_threshold,
    "high": memory_high,
    "poll-10ms": polling(10),
    "poll-100ms": polling(100),
    "psi": psi_trigger,
    "systemd": from_environment,
    **{f"vmpressure-{level}": pressure_level(level) for level in ("low", "medium", "critical")},
}
"""Every signal by name; called with a group and the usage at which to wake, which some ignore."""


def best_signal(group: MemoryGroup, wake_bytes: int) -> Signal:
    """The signal that wakes at a usage on this kind of group."""
    return SIGNALS["threshold" if group.version == "v1" else "high"](group, wake_bytes)


# --- details ---


def _v1(group: MemoryGroup, name: str) -> GroupV1:
    if not isinstance(group, GroupV1):
        raise InputError(
            f"signal {name} needs a v1 memory control group, this one is {group.version}; {HINT}"
        )
    return group


def _open_with(file: Path, flags: int, greeting: bytes) -> int:
    """Open a file and write to it; ``InputError`` names it."""
    try:
        handle = os.open(file, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    try:
        if greeting:
            os.write(handle, greeting)
    except OSError as error:
        os.close(handle)
        words = greeting.rstrip(b"\0").decode("ascii", "replace")
        raise InputError(f"{file}: {words!r} is not accepted: {error.strerror}; {HINT}") from None
    return handle


def _connected(file: Path, greeting: bytes) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(file))
            connection.sendall(greeting)
        except OSError as error:
            raise InputError(f"MEMORY_PRESSURE_WATCH: {file}: {error.strerror}") from None
        connection.setblocking(False)
        return connection.detach()
