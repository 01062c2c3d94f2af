"""The manifest of a converted model's folder: written last, it says which files there are and what they were.

Presence is a matter of names and sizes and costs microseconds; whether the bytes are still those that were
written is a matter of reading them all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from molt.errors import LadderError
from molt.formats.json_file import read_json

MANIFEST = "molt.json"
MANIFEST_FORMAT = 2
"""Raised when a conversion writes something else than before from the same file."""
READ_FORMATS = (1, 2)
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One file as it was written."""

    size_bytes: int
    mtime_ns: int
    sha256: str


def write_manifest(
    folder: Path, names: Sequence[str], vocabulary: int, advance: Callable[[int], None] = lambda _: None
) -> None:
    """Record the files of ``folder``, and the entries of its tokenizer; ``advance`` is given the bytes read.

    The folder is complete from the moment this returns.
    """
    files = {name: _entry(folder / name, advance) for name in names}
    content = {"format": MANIFEST_FORMAT, "vocabulary": vocabulary, "files": files}
    partial = folder / f"{MANIFEST}.partial"
    with partial.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / MANIFEST)


def known_vocabulary(folder: Path) -> int | None:
    """Entries of the tokenizer of a converted model; ``None`` for another folder."""
    if not (folder / MANIFEST).is_file():
        return None
    content = read_json(folder / MANIFEST)
    vocabulary = content.get("vocabulary") if isinstance(content, dict) else None
    return vocabulary if type(vocabulary) is int and vocabulary > 0 else None


def read_manifest(folder: Path) -> Mapping[str, Entry]:
    """The files of ``folder`` by name; ``LadderError`` if the manifest is missing, damaged or of another format."""
    path = folder / MANIFEST
    content = read_json(path)
    try:
        if content["format"] not in READ_FORMATS:
            valid = ", ".join(map(str, READ_FORMATS))
            raise LadderError(f"{path}: format {content['format']!r} is not read; valid: {valid}")
        return {
            Path(name).name: Entry(int(entry["bytes"]), int(entry["mtime_ns"]), str(entry["sha256"]))
            for name, entry in content["files"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, LadderError):
            raise
        raise LadderError(f"{path}: no table of files in it") from None


def is_current(folder: Path) -> bool:
    """Whether the files of ``folder`` are what would be written today; ``LadderError`` as in ``read_manifest``."""
    read_manifest(folder)
    return bool(read_json(folder / MANIFEST)["format"] == MANIFEST_FORMAT)


def recorded_sha256(folder: Path, name: str) -> str | None:
    """SHA-256 (hex) of a file that has the size and the time with which it was written; else ``None``."""
    if not (folder / MANIFEST).is_file():
        return None
    entry, stat = read_manifest(folder).get(name), (folder / name).stat()
    is_as_written = entry is not None and (entry.size_bytes, entry.mtime_ns) == (
        stat.st_size,
        stat.st_mtime_ns,
    )
    return entry.sha256 if entry is not None and is_as_written else None


def check_sizes(folder: Path) -> None:
    """Raise ``LadderError`` unless every file of the manifest is there in its size."""
    for name, entry in read_manifest(folder).items():
        path = folder / name
        if not path.is_file():
            raise LadderError(f"{path}: missing")
        if path.stat().st_size != entry.size_bytes:
            raise LadderError(f"{path}: {path.stat().st_size} bytes, not the {entry.size_bytes} written")


def total_bytes(folder: Path) -> int:
    """Bytes of all files of the manifest; ``LadderError`` as in ``read_manifest``."""
    return sum(entry.size_bytes for entry in read_manifest(folder).values())


def check_contents(folder: Path, advance: Callable[[int], None]) -> None:
    """Raise ``LadderError`` unless every file is byte for byte what was written; ``advance`` counts bytes read."""
    check_sizes(folder)
    for name, entry in read_manifest(folder).items():
        if (found := sha256(folder / name, advance)) != entry.sha256:
            raise LadderError(
                f"{folder / name}: altered: sha256 {found[:16]}, written was {entry.sha256[:16]}"
            )


def _entry(path: Path, advance: Callable[[int], None]) -> dict[str, int | str]:
    stat = path.stat()
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256(path, advance)}


def sha256(path: Path, advance: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 (hex) of a file; ``advance`` is given the bytes read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
