"""What this machine offers, read from the kernel's files.

Rules of this module:

- Everything is read below ``root``, so that a test can make up a whole machine. Only for the real root is the system
  asked for what its files do not have (macOS has none of them).
- What is missing or makes no sense is ``None``, never an exception.
- Sizes are bytes, windows nanoseconds.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from realproc.kernel.control_groups import ControlGroups, as_count, read_count, read_groups, read_text

REAL_ROOT = Path("/")
WATCHED_VARIABLES = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "MKL_NUM_THREADS")
_AUTOGROUP = {"0": False, "1": True}
WINDOWS_NS = tuple(tenths * 100_000_000 for tenths in (5, 10, 20, 40, 100))
"""Windows of a pressure trigger that are tried; the kernel allows 0.5 s to 10 s at most."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor; ``cores_allowed`` are those this process may run on, ``flags`` its instruction-set extensions.

    ``autogroup``: time is divided among sessions first, so that niceness counts only within a session.
    """

    name: str | None = None
    cores: int | None = None
    cores_allowed: int | None = None
    flags: tuple[str, ...] | None = None
    governor: str | None = None
    driver: str | None = None
    on_battery: bool | None = None
    autogroup: bool | None = None


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Memory, and how the kernel hands it out.

    ``swap_bytes`` is the size of the swap. ``transparent`` is the mode of transparent huge pages,
    ``reserved_huge_pages`` the number of pages in the pool that programs must ask for explicitly.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    swap_free_bytes: int | None = None
    overcommit: int | None = None
    transparent: str | None = None
    huge_page_bytes: int | None = None
    reserved_huge_pages: int | None = None


@dataclass(frozen=True, slots=True)
class Pressure:
    """Stall information of memory: the share of the last ten seconds in which something waited, in percent.

    ``windows_ns`` are the windows for which a trigger was accepted, ``refusal`` what the kernel said to the others.
    """

    some_avg10: float | None = None
    windows_ns: tuple[int, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """One reading of everything. ``environment`` has the watched variables as they were when the process started."""

    system: str
    processor: Processor
    memory: MachineMemory
    groups: ControlGroups
    pressure: Pressure | None
    load_1min: float | None
    environment: dict[str, str] | None


def read_machine(root: Path = REAL_ROOT) -> Machine:
    """Everything that can be read below ``root``."""
    machine = Machine(
        system=f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        processor=read_processor(root),
        memory=read_memory(root),
        groups=read_groups(root),
        pressure=read_pressure(root),
        load_1min=read_load(root),
        environment=read_environment(root),
    )
    return completed(machine) if root == REAL_ROOT else machine


def read_processor(root: Path = REAL_ROOT) -> Processor:
    """The first processor of ``/proc/cpuinfo``, and how its speed is governed."""
    text = read_text(root / "proc/cpuinfo") or ""
    pairs = [(key.strip(), value.strip()) for key, colon, value in _partitioned(text) if colon]
    first = dict(reversed(pairs))
    flags = first.get("flags", first.get("Features"))  # x86, Arm
    scaling = root / "sys/devices/system/cpu/cpu0/cpufreq"
    return Processor(
        name=first.get("model name") or None,
        cores=sum(key == "processor" for key, _ in pairs) or None,
        cores_allowed=_cores_allowed(root),
        flags=tuple(sorted(set(flags.split()))) if flags else None,
        governor=read_text(scaling / "scaling_governor") or None,
        driver=read_text(scaling / "scaling_driver") or None,
        on_battery=_on_battery(root),
        autogroup=_AUTOGROUP.get(read_text(root / "proc/sys/kernel/sched_autogroup_enabled") or ""),
    )


def read_memory(root: Path = REAL_ROOT) -> MachineMemory:
    """``/proc/meminfo``, overcommit and huge pages."""
    info = {
        key: value.split()
        for key, colon, value in _partitioned(read_text(root / "proc/meminfo") or "")
        if colon
    }

    def size(key: str) -> int | None:
        words = info.get(key, [])
        number = as_count(words[0]) if len(words) == 2 and words[1] == "kB" else None
        return None if number is None else number * 1024

    reserved = info.get("HugePages_Total", [])
    modes = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", modes)
    return MachineMemory(
        total_bytes=size("MemTotal"),
        available_bytes=size("MemAvailable"),
        swap_bytes=size("SwapTotal"),
        swap_free_bytes=size("SwapFree"),
        overcommit=read_count(root / "proc/sys/vm/overcommit_memory"),
        transparent=chosen[1] if chosen else None,
        huge_page_bytes=size("Hugepagesize"),
        reserved_huge_pages=as_count(reserved[0]) if len(reserved) == 1 else None,
    )


def read_pressure(root: Path = REAL_ROOT) -> Pressure | None:
    """Stall information, and for which windows a trigger may be set: found by setting it. ``None`` without any."""
    file = root / "proc/pressure/memory"
    match = re.search(r"^some avg10=([0-9]+\.[0-9]+) ", read_text(file) or "", re.MULTILINE)
    if match is None:
        return None
    allowed, refusal = [], None
    for window_ns in WINDOWS_NS:
        try:
            set_trigger(file, window_ns)
            allowed.append(window_ns)
        except OSError as error:
            refusal = error.strerror or type(error).__name__
    return Pressure(float(match[1]), tuple(allowed), refusal)


def set_trigger(file: Path, window_ns: int) -> None:
    """Try to set a trigger at a tenth of the window; it goes when the file is closed, at once. Raises ``OSError``."""
    window_us = window_ns // 1000
    handle = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(handle, f"some {window_us // 10} {window_us}\0".encode())
    finally:
        os.close(handle)


def read_load(root: Path = REAL_ROOT) -> float | None:
    """Load average of the last minute."""
    match = re.match(r"[0-9]+\.[0-9]+(?= )", read_text(root / "proc/loadavg") or "")
    return float(match[0]) if match else None


def read_environment(root: Path = REAL_ROOT) -> dict[str, str] | None:
    """The watched variables as they were when the process started, without later changes."""
    text = read_text(root / "proc/self/environ")
    if text is None:
        return None
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs if name in WATCHED_VARIABLES}


def completed(machine: Machine) -> Machine:
    """The machine, completed from the system where its files say nothing."""
    processor, memory = machine.processor, machine.memory
    virtual, swap = psutil.virtual_memory(), _swap_total()
    return replace(
        machine,
        processor=replace(
            processor,
            name=processor.name or platform.processor() or None,
            cores=processor.cores or os.cpu_count(),
            cores_allowed=processor.cores_allowed or os.cpu_count(),
            on_battery=_battery_of_system() if processor.on_battery is None else processor.on_battery,
        ),
        memory=replace(
            memory,
            total_bytes=virtual.total if memory.total_bytes is None else memory.total_bytes,
            available_bytes=virtual.available if memory.available_bytes is None else memory.available_bytes,
            swap_bytes=swap if memory.swap_bytes is None else memory.swap_bytes,
        ),
        load_1min=_load_of_system() if machine.load_1min is None else machine.load_1min,
    )


# --- details ---


def _partitioned(text: str) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in text.splitlines()]


def _cores_allowed(root: Path) -> int | None:
    """Cores in ``Cpus_allowed_list`` of the process, such as ``0-3,8``."""
    text = read_text(root / "proc/self/status") or ""
    match = re.search(r"^Cpus_allowed_list:\s*([0-9,-]+)$", text, re.MULTILINE)
    ranges = [part.split("-") for part in match[1].split(",")] if match else []
    ends = [(as_count(part[0]), as_count(part[-1])) for part in ranges]
    return sum(last - first + 1 for first, last in ends if first is not None and last is not None) or None


def _on_battery(root: Path) -> bool | None:
    """Whether a battery is running down; ``None`` where no power supply is listed."""
    supplies = sorted((root / "sys/class/power_supply").glob("*/status"))
    states = [read_text(status) for status in supplies if read_text(status.parent / "type") == "Battery"]
    return "Discharging" in states if states else None


def _battery_of_system() -> bool | None:
    sensors = getattr(psutil, "sensors_battery", None)
    try:
        battery = sensors() if sensors else None
    except (OSError, RuntimeError):
        return None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _swap_total() -> int | None:
    try:
        return psutil.swap_memory().total
    except (OSError, RuntimeError):
        return None


def _load_of_system() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
