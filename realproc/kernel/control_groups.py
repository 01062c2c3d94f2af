"""The control groups of this process: their layout, what they allow, and whether a new limit can be set below them.

Rules of this module:

- Everything is read below ``root``, so that a test can make up a whole machine.
- A group is limited by each of its ancestors as well: the tightest limit counts.
- What is missing or makes no sense is ``None``, never an exception.
- ``try_limit`` removes the group that it makes, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

UNLIMITED_BYTES = 2**60
"""v1 has no word for "no limit": it writes the largest multiple of a page."""

TRIAL_NAME = "molt-doctor"
TRIAL_LIMIT_BYTES = 64 * 2**20

Layout = Literal["v1", "v2", "hybrid", "none"]
Version = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """What the control groups of this process allow.

    ``memory_folders`` are its memory group and the ancestors of that, inmost first. ``limit_bytes`` is the tightest
    limit among them, ``room_bytes`` the least left below one once clean file pages are dropped; ``None`` without
    a limit. ``quota_cores`` is the processor time allowed, in cores.
    """

    layout: Layout
    memory: Version | None
    memory_folders: tuple[str, ...]
    limit_bytes: int | None
    room_bytes: int | None
    quota_cores: float | None


@dataclass(frozen=True, slots=True)
class LimitTrial:
    """Whether a memory limit could be set on a new group; ``detail`` says where, or why not."""

    settable: bool
    detail: str


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy; ``controllers`` is empty for v2, whose groups name their own."""

    version: Version
    controllers: frozenset[str]
    inner: PurePosixPath
    point: Path


def read_groups(root: Path = Path("/")) -> ControlGroups:
    """The control groups of this process, from ``/proc/self`` and what is mounted."""
    mounts = list(_mounts(root))
    own = _own_paths(root)
    memory, chain = _memory_chain(mounts, own)
    limits = [(limit, _in_use(folder)) for folder in chain if (limit := _limit(folder, memory)) is not None]
    return ControlGroups(
        layout=_layout(mounts),
        memory=memory,
        memory_folders=tuple(map(str, chain)),
        limit_bytes=min((limit for limit, _ in limits), default=None),
        room_bytes=min((max(0, limit - used) for limit, used in limits if used is not None), default=None),
        quota_cores=_quota(mounts, own),
    )


def try_limit(groups: ControlGroups) -> LimitTrial:
    """Make a memory group, set its limit and remove it: below the own group, or the nearest ancestor that allows it.

    A v2 group can only limit children where ``cgroup.subtree_control`` hands the controller down; that file is read and
    never changed.
    """
    if groups.memory is None:
        return LimitTrial(False, "no memory controller")
    limit_file = "memory.max" if groups.memory == "v2" else "memory.limit_in_bytes"
    refused, kept = [], []
    for folder in map(Path, groups.memory_folders):
        if not limits_children(groups, folder):
            kept.append(f"{folder}: does not hand the memory controller down")
        elif reason := _refusal(folder, limit_file):
            refused.append(f"{folder}: {reason}")
        else:
            return LimitTrial(True, str(folder))
    return LimitTrial(False, (refused + kept)[0])


def limits_children(groups: ControlGroups, folder: Path) -> bool:
    """Whether groups below ``folder`` have the memory controller: in v2, where ``cgroup.subtree_control`` names it."""
    return groups.memory == "v1" or "memory" in (read_text(folder / "cgroup.subtree_control") or "").split()


def read_text(path: Path) -> str | None:
    """The text of a small file; ``None`` where there is none or it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_count(path: Path) -> int | None:
    """The non-negative number in a file; ``None`` for words such as ``max``, and for anything else."""
    return as_count(read_text(path))


def as_count(text: str | None) -> int | None:
    """A number of ASCII digits that fits a machine word, or ``None``."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,20}", text) else None


def read_table(path: Path) -> dict[str, int]:
    """The lines ``key number`` of a file; nothing where there is none."""
    rows = (line.split() for line in (read_text(path) or "").splitlines())
    return {row[0]: number for row in rows if len(row) == 2 and (number := as_count(row[1])) is not None}


def with_below(stat: Mapping[str, int], key: str) -> int | None:
    """A number of v1's ``memory.stat``, with that of groups below where it is given; v2's always have it."""
    return stat.get(f"total_{key}", stat.get(key))


def droppable_bytes(stat: Mapping[str, int], version: Version) -> int:
    """The file pages of a group that the kernel drops before it kills, by its ``memory.stat``.

    Active pages are dropped as inactive ones are. Those still to be written are not, at once; shared memory and pages
    locked in memory, which are in the cache and on neither list of file pages, never.
    """
    cache, dirty, writeback = (
        ("cache", "dirty", "writeback") if version == "v1" else ("file", "file_dirty", "file_writeback")
    )
    cached, lists = (
        with_below(stat, cache),
        [with_below(stat, f"{kind}_file") for kind in ("active", "inactive")],
    )
    bounds = [] if cached is None else [cached - (with_below(stat, "shmem") or 0)]
    if lists != [None, None]:
        bounds.append(sum(size or 0 for size in lists))
    kept = (with_below(stat, dirty) or 0) + (with_below(stat, writeback) or 0)
    return max(0, min(bounds, default=0) - kept)


# --- a trial ---


def _refusal(parent: Path, limit_file: str) -> str | None:
    """Why no group with a limit can be made below ``parent``; ``None`` if one was made, limited and removed."""
    folder = parent / f"{TRIAL_NAME}-{os.getpid()}"
    try:
        make_group(folder)
    except OSError as error:
        return error.strerror or type(error).__name__
    try:
        set_limit(folder / limit_file)
    except OSError as error:
        return f"{limit_file}: {error.strerror or type(error).__name__}"
    finally:
        with contextlib.suppress(OSError):
            remove_group(folder)
    return None


def make_group(folder: Path) -> None:
    """Make a control group; the kernel puts its files into it."""
    folder.mkdir()


def remove_group(folder: Path) -> None:
    """Remove an empty control group; its files go with it."""
    folder.rmdir()


def set_limit(file: Path) -> None:
    """Write the trial's limit to a file that must be there."""
    write(file, str(TRIAL_LIMIT_BYTES))


def write(file: Path, text: str) -> None:
    """Write to a file of the kernel, which must exist. Raises an ``OSError`` that names it."""
    handle = os.open(file, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(handle, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        os.close(handle)


# --- where the groups are ---

_CONTROLLERS = frozenset(("memory", "cpu", "cpuacct", "cpuset", "blkio", "pids", "devices", "freezer"))


def _mounts(root: Path) -> Iterator[_Mount]:
    """Hierarchies in ``/proc/self/mountinfo``: ``id parent dev inner point options … - type source options``."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 5 or len(types) < 3 or types[0] not in ("cgroup", "cgroup2"):
            continue
        version: Version = "v2" if types[0] == "cgroup2" else "v1"
        controllers = frozenset(types[2].split(",")) if version == "v1" else frozenset[str]()
        point = root / _unescaped(fields[4]).lstrip("/")
        yield _Mount(version, controllers, PurePosixPath(_unescaped(fields[3])), point)


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), path)


def _own_paths(root: Path) -> dict[str, PurePosixPath]:
    """Path of the own group for each v1 controller; that of v2 under ``""``."""
    paths: dict[str, PurePosixPath] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdigit() and colon and path.startswith("/"):
            paths.update(dict.fromkeys(controllers.split(","), PurePosixPath(path)))
    return paths


def _layout(mounts: list[_Mount]) -> Layout:
    v1 = any(mount.controllers & _CONTROLLERS for mount in mounts)  # systemd mounts one of v1 without any
    v2 = any(mount.version == "v2" for mount in mounts)
    return "hybrid" if v1 and v2 else "v1" if v1 else "v2" if v2 else "none"


def _chain(
    mounts: list[_Mount], own: dict[str, PurePosixPath], controller: str, version: Version
) -> list[Path]:
    """Folders of the own group of a controller and of its ancestors, as far as they are mounted."""
    for mount in mounts:
        key = controller if version == "v1" else ""
        if mount.version != version or key not in (mount.controllers or ("",)) or key not in own:
            continue
        path = own[key]
        inside = path.is_relative_to(mount.inner) and ".." not in path.parts
        folder = mount.point / path.relative_to(mount.inner) if inside else mount.point
        if not folder.is_dir():  # the group as seen from outside of a container
            folder = mount.point
        chain = [folder, *folder.parents]
        return [one for one in chain[: chain.index(mount.point) + 1] if one.is_dir()]
    return []


def _memory_chain(mounts: list[_Mount], own: dict[str, PurePosixPath]) -> tuple[Version | None, list[Path]]:
    if chain := _chain(mounts, own, "memory", "v1"):
        return "v1", chain
    chain = _chain(mounts, own, "memory", "v2")
    if any("memory" in (read_text(folder / "cgroup.controllers") or "").split() for folder in chain):
        return "v2", chain
    return None, []


# --- what they allow ---


def _limit(folder: Path, version: Version | None) -> int | None:
    limit = read_count(folder / ("memory.max" if version == "v2" else "memory.limit_in_bytes"))
    return None if limit is None or limit >= UNLIMITED_BYTES else limit


def _in_use(folder: Path) -> int | None:
    """Bytes charged to a group, without the file pages that the kernel drops before it kills."""
    version: Version = "v2" if (folder / "memory.current").exists() else "v1"
    used = read_count(folder / ("memory.current" if version == "v2" else "memory.usage_in_bytes"))
    if used is None:
        return None
    return max(0, used - droppable_bytes(read_table(folder / "memory.stat"), version))


def _quota(mounts: list[_Mount], own: dict[str, PurePosixPath]) -> float | None:
    pairs = [
        (read_count(folder / "cpu.cfs_quota_us"), read_count(folder / "cpu.cfs_period_us"))
        for folder in _chain(mounts, own, "cpu", "v1")
    ]
    for folder in _chain(mounts, own, "cpu", "v2"):
        words = (read_text(folder / "cpu.max") or "").split()
        pairs += [(as_count(words[0]), as_count(words[1]))] if len(words) == 2 else []
    return min((quota / period for quota, period in pairs if quota and period), default=None)
