"""What would make results wrong on this machine, and what to do about it.

``molt doctor`` and ``python -m realproc.doctor`` are the same. A check is a pure function of one ``Diagnosis``; it says
what was found, why it matters and the remedy. Without a reading of what it is about, a check says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from molt.formats import provenance
from molt.formats.log import plain
from molt.units import SECOND_NS, show_size
from realproc.doctor.diagnosis import Diagnosis, Finding, Severity, diagnose
from realproc.doctor.ladder_needs import CONTEXT_CELLS
from realproc.doctor.page import show

BUSY_SHARE = 0.7
"""Load per core from which other work distorts timings."""

DISK_BYTES_MIN = 10 * 2**30
INT8_FLAGS = frozenset(("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"))
SELF_SCALING_DRIVERS = ("intel_pstate", "amd-pstate-epp")  # their "powersave" raises the clock under load


def findings(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """The findings of all checks, the worst first."""
    order = list(Severity)
    found = (finding for check in CHECKS for finding in check(diagnosis))
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity), reverse=True))


# --- timings ---


def check_load(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Other work on the cores."""
    load, cores = diagnosis.machine.load_1min, diagnosis.cores
    if load is None or cores is None:
        return
    found = f"load {load:.2f} on {cores} cores"
    if load < BUSY_SHARE * cores:
        yield Finding(Severity.OK, "load", found)
        return
    yield Finding(
        Severity.WRONG,
        "load",
        found,
        "Other work takes the cores away: measured times and profiles come out too long, and differ each time.",
        "Stop the other work, wait a minute and look again before measuring or calibrating.",
    )


def check_governor(diagnosis: Diagnosis) -> Iterator[Finding]:
    """A processor kept slow on purpose."""
    governor, driver = diagnosis.machine.processor.governor, diagnosis.machine.processor.driver
    if governor is None:
        return
    if governor != "powersave":
        yield Finding(Severity.OK, "clock", f"governor {governor}")
        return
    scales = driver in SELF_SCALING_DRIVERS
    yield Finding(
        Severity.NOTE if scales else Severity.WRONG,
        "clock",
        f"governor powersave ({driver or 'unknown driver'})",
        "The clock rises only after a while under load, so short steps are measured too slow."
        if scales
        else "The cores stay at their lowest clock: every time is measured too long.",
        "As root: cpupower frequency-set -g performance",
    )


def check_battery(diagnosis: Diagnosis) -> Iterator[Finding]:
    """A battery that runs down."""
    on_battery = diagnosis.machine.processor.on_battery
    if on_battery:
        yield Finding(
            Severity.WRONG,
            "power",
            "running on battery",
            "The clock is held down and falls further as the battery empties: times are not comparable.",
            "Plug the machine in before measuring.",
        )
    elif on_battery is not None:
        yield Finding(Severity.OK, "power", "not running on battery")


def check_autogroup(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Whether niceness keeps other sessions back."""
    autogroup = diagnosis.machine.processor.autogroup
    if autogroup:
        yield Finding(
            Severity.NOTE,
            "niceness",
            "counts within a session only",
            "The kernel divides time among sessions first: a program under nice in another terminal, or in its own "
            "job, takes as much time from a measurement as any other.",
            "sysctl kernel.sched_autogroup_enabled=0, or stop the other work",
        )
    elif autogroup is not None:
        yield Finding(Severity.OK, "niceness", "counts everywhere")


def check_instructions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Instructions that make INT8 fast."""
    flags = diagnosis.machine.processor.flags
    if flags is None:
        return
    if has := sorted(INT8_FLAGS.intersection(flags)):
        yield Finding(Severity.OK, "INT8", f"instructions {', '.join(has)}")
        return
    yield Finding(
        Severity.NOTE,
        "INT8",
        "no instructions for 8-bit products (AVX-512 VNNI, AVX-VNNI, AMX, Arm dot product)",
        "INT8 rungs are slower here, perhaps slower than the same model in fp32; they still take less memory.",
        "Calibrate on this machine (molt calibrate LADDER) instead of using a profile from another.",
    )


def check_wait_policy(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Threads that spin while they wait."""
    environment, torch = diagnosis.machine.environment, diagnosis.torch
    now = torch.wait_policy if torch else None
    policy = (environment or {}).get("OMP_WAIT_POLICY", now)
    if policy is None:
        return
    if policy.lower() != "passive":
        yield Finding(
            Severity.WRONG,
            "waiting threads",
            f"OMP_WAIT_POLICY={policy}",
            "Threads spin between two steps and take the cores from other tenants and from the rest of their own"
            " process: where cores are shared, every step is several times slower.",
            "export OMP_WAIT_POLICY=passive",
        )
    elif environment is not None and "OMP_WAIT_POLICY" not in environment:
        yield Finding(
            Severity.NOTE,
            "waiting threads",
            "OMP_WAIT_POLICY is not set; Molt sets it to passive",
            "That works only where Molt is imported before torch: a script that imports torch first gets threads"
            " that spin.",
            "export OMP_WAIT_POLICY=passive, or import molt.engine before torch",
        )
    else:
        yield Finding(Severity.OK, "waiting threads", f"OMP_WAIT_POLICY={policy}")


def check_threads(diagnosis: Diagnosis) -> Iterator[Finding]:
    """More threads than there is processor time for."""
    torch, cores, quota = diagnosis.torch, diagnosis.cores, diagnosis.machine.groups.quota_cores
    if torch is None:
        return
    found = f"torch uses {_count(torch.threads, 'thread')}"
    if cores is not None and torch.threads > cores:
        yield Finding(
            Severity.WRONG,
            "threads",
            f"{found}, this process has {_count(cores, 'core')}",
            "Threads wait for each other at every step: times are too long and spread widely.",
            f"export OMP_NUM_THREADS={cores}",
        )
    elif quota is not None and torch.threads > quota:
        yield Finding(
            Severity.WRONG,
            "threads",
            f"{found}, the control group grants the time of {quota:.3g} cores",
            "When the quota of a period is used up, the whole process stands still until the next: steps stall for"
            " tens of milliseconds.",
            f"export OMP_NUM_THREADS={max(1, int(quota))}, or raise the quota",
        )
    else:
        yield Finding(Severity.OK, "threads", found)


# --- memory ---


def check_room(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Less free memory than a ladder takes."""
    free = diagnosis.free_bytes
    for ladder in diagnosis.ladders:
        if free is None or ladder.needed_bytes is None:
            continue
        found = f"{ladder.name} takes up to {show_size(ladder.needed_bytes)}, {show_size(free)} are free"
        if ladder.needed_bytes <= free:
            yield Finding(Severity.OK, "room", found)
            continue
        yield Finding(
            Severity.WRONG,
            "room",
            found,
            f"With real models, two neighbouring rungs and caches of {CONTEXT_CELLS} tokens do not fit: the system"
            " swaps or kills, whatever the policy does.",
            "Close other programs, raise the limit of the control group, or use a smaller ladder.",
        )


def check_own_limit(diagnosis: Diagnosis) -> Iterator[Finding]:
    """A control group that is tighter than the machine."""
    limit, total = diagnosis.machine.groups.limit_bytes, diagnosis.machine.memory.total_bytes
    if total is None or diagnosis.machine.groups.memory is None:
        return
    if limit is None or limit >= total:
        yield Finding(
            Severity.OK, "own limit", "the control group of this process has no limit below the machine's"
        )
        return
    yield Finding(
        Severity.NOTE,
        "own limit",
        f"the control group of this process may use {show_size(limit)} of {show_size(total)}",
        "The kernel kills at this limit, while programs that ask for the machine's memory see more.",
        "Keep every budget below it, or raise the limit (of the container, the service or the group).",
    )


def check_swap(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Swap: it decides how memory runs out."""
    swap = diagnosis.machine.memory.swap_bytes
    if swap is None:
        return
    if swap:
        yield Finding(
            Severity.NOTE,
            "swap",
            f"{show_size(swap)} of swap",
            "A process over its limit is swapped out long before it is killed: tokens get slow instead, the bytes in"
            " memory understate what is used, and kills come late or never.",
            "For a comparison of kills: swapoff -a as root, or memory.swap.max=0 in the group; else say so in results.",
        )
    else:
        yield Finding(
            Severity.NOTE,
            "swap",
            "no swap",
            "Memory runs out from one moment to the next: a kill comes within milliseconds of the kernel's first sign"
            " of pressure. A machine with swap slows down first.",
            "None is needed; say in results that there was none.",
        )


def check_overcommit(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Strict accounting of promised memory."""
    mode = diagnosis.machine.memory.overcommit
    if mode is None:
        return
    if mode != 2:
        yield Finding(Severity.OK, "overcommit", f"vm.overcommit_memory={mode}")
        return
    yield Finding(
        Severity.WRONG,
        "overcommit",
        "vm.overcommit_memory=2",
        "Memory is refused when it is asked for instead of a process being killed when it is used: processes fail with"
        " errors where others are killed, and mapped weights count in full.",
        "As root: sysctl vm.overcommit_memory=0",
    )


def check_huge_pages(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Transparent huge pages: fast to give back, coarse to count."""
    match diagnosis.machine.memory.transparent:
        case "always":
            yield Finding(
                Severity.WRONG,
                "huge pages",
                "transparent_hugepage=always",
                "Every process is rounded up to huge pages: allocators take more than they asked for, so bytes and"
                " moments of pressure in real processes are inexact.",
                "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            )
        case "madvise":
            yield Finding(Severity.OK, "huge pages", "transparent_hugepage=madvise")
        case mode:
            yield Finding(
                Severity.NOTE,
                "huge pages",
                f"transparent_hugepage={mode}" if mode else "no transparent huge pages",
                "Weights lie in small pages, and taking and giving back their memory is many times slower.",
                "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                if mode
                else "Without a kernel that has them, there is none; a profile of this machine accounts for it.",
            )


# --- real processes ---


def check_limits(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Control groups whose memory can be limited."""
    if diagnosis.limits.settable:
        yield Finding(Severity.OK, "limits", f"memory limits can be set below {diagnosis.limits.detail}")
        return
    why = "Real processes can only be run without control groups (--no-cgroup): with a declared budget and no kills."
    if diagnosis.machine.groups.memory is None:
        where = (
            "control groups are mounted without it"
            if diagnosis.machine.groups.layout != "none"
            else "no control groups here"
        )
        yield Finding(
            Severity.NOTE,
            "limits",
            f"no memory controller ({where})",
            why,
            "On Linux, boot with cgroup_enable=memory; in a container, mount /sys/fs/cgroup. Elsewhere there is none.",
        )
        return
    yield Finding(
        Severity.NOTE,
        "limits",
        f"no memory limit can be set ({diagnosis.limits.detail})",
        why,
        "Run as root, or in a group of your own: systemd-run --user --scope -p Delegate=yes COMMAND. In a container,"
        " mount /sys/fs/cgroup writable.",
    )


def check_pressure(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The kernel's stall information, and how soon it can wake a process."""
    pressure = diagnosis.machine.pressure
    if pressure is None:
        yield Finding(
            Severity.NOTE,
            "pressure",
            "no pressure stall information",
            "Pressure cannot be seen coming; watching usage against the limit is earlier in any case.",
            "On Linux, boot with psi=1. Elsewhere there is none.",
        )
    elif not pressure.windows_ns:
        yield Finding(
            Severity.NOTE,
            "pressure",
            f"no trigger can be set on it ({pressure.refusal})",
            "Pressure can be read but does not wake Molt; watching usage against the limit is earlier in any case.",
            "Run as root, or use Linux 6.5 or later.",
        )
    elif min(pressure.windows_ns) >= 2 * SECOND_NS:
        yield Finding(
            Severity.NOTE,
            "pressure",
            f"triggers only with windows of {_windows(pressure.windows_ns)}",
            "The kernel looks ten times a window, so pressure is reported 0.2 s late at best: often after the kill.",
            "Watch usage against the limit instead. Shorter windows take the capability CAP_SYS_RESOURCE.",
        )
    else:
        yield Finding(Severity.OK, "pressure", f"triggers with windows of {_windows(pressure.windows_ns)}")


# --- software and files ---


def check_torch(diagnosis: Diagnosis) -> Iterator[Finding]:
    """torch itself."""
    if diagnosis.torch is None:
        yield Finding(
            Severity.WRONG,
            "torch",
            "torch cannot be imported",
            "Only --engine modelled works, which computes with costs and no model.",
            "pip install torch (a CPU build is enough)",
        )
    elif not diagnosis.torch.onednn:
        yield Finding(
            Severity.NOTE,
            "torch",
            f"torch {diagnosis.torch.version} was built without oneDNN",
            "Its matrix products are slower than those of the usual builds.",
            "Calibrate on this machine, and name the build in results.",
        )
    else:
        yield Finding(Severity.OK, "torch", f"torch {diagnosis.torch.version}")


def check_ladders(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Weights that are not here."""
    absent = [ladder.name for ladder in diagnosis.ladders if ladder.missing is not None]
    if not absent:
        yield Finding(Severity.OK, "ladders", "all are present")
        return
    yield Finding(
        Severity.NOTE,
        "ladders",
        f"not present: {', '.join(absent)}",
        "Scenarios can only be run on present ladders; --json lists what is missing of the others.",
        "molt ladders fetch LADDER, where there is a network",
    )


def check_disk(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Room for weights on disk."""
    cache = diagnosis.cache
    if cache.folder is None:
        yield Finding(
            Severity.NOTE,
            "disk",
            "this user has no home folder",
            "There is no place for weights: only the embedded ladder, and ladders of folders, can be used.",
            "export MOLT_CACHE=FOLDER, or HOME",
        )
        return
    if cache.free_bytes is None:
        return
    found = f"{show_size(cache.free_bytes)} free for {cache.folder}"
    if cache.free_bytes >= DISK_BYTES_MIN:
        yield Finding(Severity.OK, "disk", found)
        return
    yield Finding(
        Severity.NOTE,
        "disk",
        found,
        "Weights of a ladder are gigabytes: fetching one may fail half-way.",
        "Make room, or set HF_HOME to a folder on a larger disk.",
    )


CHECKS: tuple[Callable[[Diagnosis], Iterator[Finding]], ...] = (
    check_load,
    check_governor,
    check_battery,
    check_autogroup,
    check_wait_policy,
    check_threads,
    check_room,
    check_own_limit,
    check_overcommit,
    check_huge_pages,
    check_swap,
    check_limits,
    check_pressure,
    check_instructions,
    check_torch,
    check_ladders,
    check_disk,
)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _windows(windows_ns: tuple[int, ...]) -> str:
    return ", ".join(f"{window_ns / SECOND_NS:g}" for window_ns in windows_ns) + " s"


# --- the command ---


def as_json(diagnosis: Diagnosis) -> str:
    """Everything, for programs."""
    document = {
        "versions": provenance.versions(),
        **plain(diagnosis),
        "findings": plain(findings(diagnosis)),
    }
    return json.dumps(document, indent=2, sort_keys=True)


def command(
    json_output: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check this machine: what it offers, what would falsify results on it, and the remedy for each."""
    diagnosis = diagnose()
    if json_output:
        print(as_json(diagnosis))
    else:
        show(diagnosis, findings(diagnosis))
