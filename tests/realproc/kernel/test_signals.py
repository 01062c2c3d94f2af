"""Every signal behind the one interface; the late ones are marked."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
from pathlib import Path

import pytest

from molt.errors import InputError
from molt.units import MIB, MS_NS
from realproc.kernel import limited_group
from realproc.kernel.signals import SIGNALS, KernelFile, Meter, best_signal, from_environment
from tests.realproc.conftest import Fake

LIMIT_BYTES = 64 * MIB
LATE = {"psi", "vmpressure-low", "vmpressure-medium", "vmpressure-critical"}


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", sorted(SIGNALS.keys() - {"systemd"}))
def test_every_signal_observes_or_says_why_not(fake: Fake, version: str, name: str) -> None:
    group = limited_group.make(fake(version), "run", LIMIT_BYTES)
    only = "v2" if name == "high" else "v1" if name in (LATE | {"threshold"}) - {"psi"} else version
    if version != only:
        with pytest.raises(InputError, match=f"signal {name} needs a {only} memory control group"):
            SIGNALS[name](group, LIMIT_BYTES // 2)
        return
    try:
        signal = SIGNALS[name](group, LIMIT_BYTES // 2)
    except InputError as error:
        assert name == "psi"  # not every kernel has it, or allows it
        pytest.skip(str(error))
    seen = signal.read()
    assert (seen.usage_bytes, seen.limit_bytes) == (14000, LIMIT_BYTES)
    assert signal.late == (name in LATE)
    assert (signal.fileno() is None) == (signal.interval_ns is not None)
    signal.close()


def test_a_threshold_is_not_alone(fake: Fake) -> None:
    """Huge pages jump: half-way and three quarters of the way to the limit it wakes again."""
    group = limited_group.make(fake("v1"), "run", 100)
    thresholds = []
    real_write = limited_group.write

    def record(file: Path, text: str) -> None:
        thresholds.append(int(text.split()[-1]))
        real_write(file, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limited_group, "write", record)
        SIGNALS["threshold"](group, 60).close()
    assert thresholds == [60, 80, 90]


def test_the_best_signal_goes_by_usage(fake: Fake) -> None:
    assert not best_signal(limited_group.make(fake("v1"), "one", LIMIT_BYTES), MIB).late
    group = limited_group.make(fake("v2"), "two", LIMIT_BYTES)
    assert not best_signal(group, MIB).late
    assert (group.folder / "memory.high").read_text() == str(MIB)


def test_polling_has_an_interval(fake: Fake) -> None:
    group = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    for milliseconds in (10, 100):
        assert SIGNALS[f"poll-{milliseconds}ms"](group, 0).interval_ns == milliseconds * MS_NS


def test_a_trigger_that_is_refused_is_named(tmp_path: Path) -> None:
    """A folder cannot be written to."""
    (tmp_path / "usage").write_text("1")
    with pytest.raises(InputError, match="Is a directory"):
        KernelFile(Meter(tmp_path / "usage", 1), tmp_path, b"some 1 2\0", late=True)


# --- what a service manager asks to be watched ---


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({}, "MEMORY_PRESSURE_WATCH: not set"),
        ({"MEMORY_PRESSURE_WATCH": "/dev/null"}, "switched off"),
        ({"MEMORY_PRESSURE_WATCH": "/nonexistent/file"}, "/nonexistent/file: No such file"),
        ({"MEMORY_PRESSURE_WATCH": "/"}, "neither a file, nor a FIFO, nor a socket"),
        ({"MEMORY_PRESSURE_WATCH": "/", "MEMORY_PRESSURE_WRITE": "?"}, "MEMORY_PRESSURE_WRITE: not base64"),
        ({"MEMORY_PRESSURE_WATCH": __file__}, "a file signals nothing until a trigger is written"),
    ],
)
def test_what_cannot_be_watched_is_refused(fake: Fake, environment: dict[str, str], complaint: str) -> None:
    group = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    with pytest.raises(InputError, match=complaint):
        from_environment(group, environment=environment)


def watch(path: Path, greeting: bytes = b"") -> dict[str, str]:
    return {
        "MEMORY_PRESSURE_WATCH": str(path),
        "MEMORY_PRESSURE_WRITE": base64.b64encode(greeting).decode(),
    }


def ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_file_gets_its_trigger(fake: Fake, tmp_path: Path) -> None:
    group = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    (tmp_path / "pressure").write_text("")
    signal = from_environment(group, environment=watch(tmp_path / "pressure", b"some 1 2\0"))
    assert (tmp_path / "pressure").read_bytes() == b"some 1 2\0"
    assert (signal.late, signal.poll_mask) == (True, select.POLLPRI)
    signal.close()


def test_a_fifo_wakes_with_every_write(fake: Fake, tmp_path: Path) -> None:
    """Writers come and go; the greeting is not written, as we would read it ourselves."""
    group = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    os.mkfifo(tmp_path / "fifo")
    signal = from_environment(group, environment=watch(tmp_path / "fifo", b"hello"))
    descriptor = signal.fileno()
    assert descriptor is not None
    for _ in range(2):
        assert not ready(descriptor)
        (tmp_path / "fifo").write_bytes(b"x" * 5000)
        assert ready(descriptor)
        assert signal.read().usage_bytes == 14000
    assert not ready(descriptor)
    signal.close()


def test_a_socket_is_greeted_and_may_hang_up(fake: Fake, tmp_path: Path) -> None:
    """After that it is looked at now and then, rather than being readable for ever."""
    group = limited_group.make(fake("v1"), "run", LIMIT_BYTES)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen(1)
        signal = from_environment(group, environment=watch(tmp_path / "socket", b"hello"))
        other, _ = server.accept()
        assert other.recv(100) == b"hello"
        descriptor = signal.fileno()
        assert descriptor is not None
        other.sendall(b"pressure")
        assert ready(descriptor)
        signal.read()
        assert (ready(descriptor), signal.interval_ns) == (False, None)
        other.close()
        signal.read()
        assert (signal.fileno(), signal.interval_ns) == (None, 100 * MS_NS)
        signal.close()
