"""All that the doctor reads, and the form of its findings."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from enum import StrEnum

from molt.paths import find_cache_folder
from realproc.doctor.ladder_needs import LadderNeed, ladder_needs
from realproc.doctor.torch_facts import TorchFacts, read_torch
from realproc.kernel.control_groups import LimitTrial, try_limit
from realproc.kernel.machine import Machine, read_machine


class Severity(StrEnum):
    """Fine; good to know when results are read; or enough to make them wrong."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``why`` and ``remedy`` are empty where all is well."""

    severity: Severity
    about: str
    found: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder that downloaded models go to (``None``: this user has no home), and the free bytes of its disk."""

    folder: str | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One reading of all that the checks use."""

    machine: Machine
    limits: LimitTrial
    torch: TorchFacts | None
    ladders: tuple[LadderNeed, ...]
    cache: Cache

    @property
    def cores(self) -> int | None:
        """Cores this process may use."""
        return self.machine.processor.cores_allowed or self.machine.processor.cores

    @property
    def free_bytes(self) -> int | None:
        """Memory that is free before the kernel kills: of the machine, or of the own control group if that has less."""
        both = (self.machine.memory.available_bytes, self.machine.groups.room_bytes)
        return min((size for size in both if size is not None), default=None)


def diagnose() -> Diagnosis:
    """Read the real machine. The load is read first, before the reading adds to it."""
    machine = read_machine()
    return Diagnosis(machine, try_limit(machine.groups), read_torch(), ladder_needs(), read_cache())


def read_cache() -> Cache:
    """Where fetched and converted weights are kept; the folder need not exist yet."""
    folder = find_cache_folder()
    if folder is None:
        return Cache(None, None)
    existing = next(
        (place for place in (folder, *folder.absolute().parents) if os.path.exists(place)), folder
    )
    try:
        return Cache(str(folder), shutil.disk_usage(existing).free)
    except OSError:
        return Cache(str(folder), None)
