"""A diagnosis for people: what the machine offers, what would make results wrong, what is good to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from molt.units import show_size
from realproc.doctor.diagnosis import Cache, Diagnosis, Finding, Severity
from realproc.kernel.machine import Machine
from reports.formatting import printable

UNAVAILABLE = "not available here"
SHOWN_FLAGS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
HEADINGS = {
    Severity.WRONG: ("What would make results wrong", "bold red"),
    Severity.NOTE: ("What to keep in mind", "bold yellow"),
}


def show(diagnosis: Diagnosis, findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print a diagnosis, by default on stdout."""
    console = console or Console(highlight=False)
    _section(console, "This machine", "bold")
    console.print(_facts(facts(diagnosis)))
    _section(console, "Ladders", "bold")
    console.print(_facts(_ladders(diagnosis)))
    for severity, (heading, style) in HEADINGS.items():
        chosen = [finding for finding in findings if finding.severity is severity]
        if chosen:
            _section(console, heading, style)
        for finding in chosen:
            console.print(_text(f"{finding.about}: {finding.found}"))
            console.print(Padding(_text(finding.why), (0, 0, 0, 4)))
            console.print(Padding(_text(f"→ {finding.remedy}"), (0, 0, 0, 4)))
    fine = [finding.about for finding in findings if finding.severity is Severity.OK]
    if fine:
        _section(console, "Fine", "bold green")
        console.print(Padding(Text(", ".join(dict.fromkeys(fine))), (0, 0, 0, 2)))


def facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What the machine offers, as names and values; ``UNAVAILABLE`` where nothing is known."""
    machine, torch = diagnosis.machine, diagnosis.torch
    return [
        ("system", machine.system),
        *_processor(machine),
        *_memory(machine),
        *_groups(diagnosis),
        ("torch", f"{torch.version}, kernels {torch.capability}" if torch else UNAVAILABLE),
        (
            "torch threads",
            f"{torch.threads} in a step, {torch.interop_threads} between steps" if torch else UNAVAILABLE,
        ),
        ("OMP_WAIT_POLICY", _wait_policy(diagnosis)),
        ("accelerators", _devices(diagnosis)),
        ("cache folder", _cache(diagnosis.cache)),
    ]


def _processor(machine: Machine) -> list[tuple[str, str]]:
    processor = machine.processor
    flags = None if processor.flags is None else [flag for flag in SHOWN_FLAGS if flag in processor.flags]
    governor = processor.governor and f"{processor.governor} ({processor.driver or 'unknown driver'})"
    return [
        ("processor", processor.name or UNAVAILABLE),
        ("cores", f"{_or(processor.cores)}, of which this process may use {_or(processor.cores_allowed)}"),
        (
            "instructions",
            UNAVAILABLE if flags is None else ", ".join(flags) or "none of those that matter here",
        ),
        ("clock governor", governor or UNAVAILABLE),
        ("load, 1 min", _or(machine.load_1min)),
    ]


def _memory(machine: Machine) -> list[tuple[str, str]]:
    memory = machine.memory
    total, available = _size(memory.total_bytes), _size(memory.available_bytes)
    pool = "" if memory.reserved_huge_pages is None else f"; {memory.reserved_huge_pages} in the pool"
    size = "" if memory.huge_page_bytes is None else f" of {show_size(memory.huge_page_bytes)}"
    return [
        ("memory", UNAVAILABLE if memory.total_bytes is None else f"{total}, {available} available"),
        ("swap", "none" if memory.swap_bytes == 0 else _size(memory.swap_bytes)),
        ("overcommit", UNAVAILABLE if memory.overcommit is None else f"mode {memory.overcommit}"),
        ("huge pages", f"{memory.transparent}{size}{pool}" if memory.transparent else UNAVAILABLE),
    ]


def _groups(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    groups, pressure, trial = diagnosis.machine.groups, diagnosis.machine.pressure, diagnosis.limits
    layout = f"{groups.layout}, memory controller {groups.memory or 'absent'}"
    quota = "no quota" if groups.quota_cores is None else f"{groups.quota_cores:.3g} cores of processor time"
    own = "no memory limit" if groups.limit_bytes is None else f"{show_size(groups.limit_bytes)} of memory"
    windows = ", ".join(f"{window_ns / 1e9:g} s" for window_ns in pressure.windows_ns) if pressure else ""
    return [
        ("control groups", UNAVAILABLE if groups.layout == "none" else layout),
        ("own group", UNAVAILABLE if groups.layout == "none" else f"{own}, {quota}"),
        ("limits", "can be set (tried)" if trial.settable else f"cannot be set: {trial.detail}"),
        (
            "pressure (PSI)",
            f"yes; windows that may be asked for: {windows or 'none'}" if pressure else UNAVAILABLE,
        ),
    ]


def _wait_policy(diagnosis: Diagnosis) -> str:
    environment, torch = diagnosis.machine.environment, diagnosis.torch
    before = UNAVAILABLE if environment is None else environment.get("OMP_WAIT_POLICY", "not set")
    return (
        f"{before} at the start, {torch.wait_policy or 'not set'} in Molt"
        if torch
        else f"{before} at the start"
    )


def _devices(diagnosis: Diagnosis) -> str:
    if diagnosis.torch is None:
        return UNAVAILABLE
    devices = (
        f"{device.name}, {show_size(device.memory_bytes)}" if device.memory_bytes else device.name
        for device in diagnosis.torch.devices
    )
    return "; ".join(devices) or "none"


def _ladders(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [
        (
            ladder.name,
            "not present"
            if ladder.missing is not None
            else f"present, {ladder.rungs} rungs, takes up to {_size(ladder.needed_bytes)}",
        )
        for ladder in diagnosis.ladders
    ]


def _facts(pairs: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=17)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(_text(f"  {name}"), _text(value))
    return table


def _text(text: str) -> Text:
    return Text(printable(text))


def _section(console: Console, heading: str, style: str) -> None:
    console.print(Text(f"\n{heading}", style=style))


def _cache(cache: Cache) -> str:
    if cache.folder is None:
        return "none: this user has no home folder"
    return f"{cache.folder}, {_size(cache.free_bytes)} free"


def _size(size_bytes: int | None) -> str:
    return UNAVAILABLE if size_bytes is None else show_size(size_bytes)


def _or(number: float | None) -> str:
    return UNAVAILABLE if number is None else f"{number:g}"
