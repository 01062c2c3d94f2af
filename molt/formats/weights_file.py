"""Stored weights: what a folder's safetensors hold, known from the headers alone, and their identity.

No tensor library is needed here. A file is refused unless its tensors fill it exactly, so a truncated
download or a damaged header is found before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from molt.errors import LadderError
from molt.formats.json_file import read_json
from molt.formats.manifest import recorded_sha256
from molt.formats.yaml_file import show

DTYPE_BYTES = {
    "C64": 8,
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "U64": 8,
    "I32": 4,
    "U32": 4,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "F8_E4M3": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "BOOL": 1,
}
HEADER_BYTES_MAX = 100 * 1024 * 1024
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor on disk: ``offset`` counts bytes from the beginning of ``path``."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""
        return self.elements * DTYPE_BYTES[self.dtype]


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file, by name.

    Raises ``LadderError`` if the file is missing, truncated, or its header does not describe it exactly.
    Format: https://github.com/huggingface/safetensors#format
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, HEADER_BYTES_MAX):
                raise LadderError(f"{path}: truncated or no safetensors file ({size} bytes)")
            raw = file.read(length)
    except OSError as error:
        raise LadderError(f"{path}: {error.strerror or error}") from None
    try:
        entries = json.loads(raw.decode("utf-8"))
        entries.pop("__metadata__", None)
        tensors = {name: _stored(path, name, entry, 8 + length) for name, entry in entries.items()}
    except LadderError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise LadderError(f"{path}: the safetensors header is damaged") from None
    _check_filled(path, tensors, 8 + length, size)
    return tensors


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of a model's folder, by name, whether it is one file or several with an index."""
    tensors: dict[str, Stored] = {}
    for path in weight_files(folder):
        in_file = read_header(path)
        if twice := sorted(tensors.keys() & in_file.keys()):
            raise LadderError(f"{path}: {show(twice[0])} a second time, after {tensors[twice[0]].path.name}")
        tensors |= in_file
    return tensors


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a model's folder, in order of name.

    Raises ``LadderError`` if there are none, or if a file the index names is missing.
    """
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if (folder / INDEX).is_file():
        try:
            names = set(read_json(folder / INDEX)["weight_map"].values())
            paths = tuple(folder / Path(name).name for name in sorted(names))
        except (KeyError, TypeError, AttributeError):
            raise LadderError(f"{folder / INDEX}: weight_map is missing or no table of file names") from None
        if missing := [path for path in paths if not path.is_file()]:
            raise LadderError(f"{missing[0]}: named by {INDEX}, but missing")
        return paths
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise LadderError(
            f"{folder / pickles[0]}: a pickle, which could run code; only safetensors are loaded"
        )
    raise LadderError(f"{folder / SINGLE}: no such file" if folder.is_dir() else f"{folder}: no such folder")


def weights_sha256(folder: Path) -> str:
    """SHA-256 (hex) of a model's safetensors files, one after the other in order of name.

    Binds a fitted map to the parameters it was fitted for. Cached while no file changes; of a converted model
    that is as it was written, the manifest knows it.
    """
    if recorded := recorded_sha256(folder, SINGLE):
        return recorded
    return _sha256(weight_files(folder))


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of one file. Cached while it does not change."""
    return _sha256((path,))


def _sha256(paths: tuple[Path, ...]) -> str:
    stats = [(path, path.stat()) for path in paths]
    return _read_sha256(tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats))


@cache
def _read_sha256(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, _, _ in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _stored(path: Path, name: str, entry: dict[str, Any], data_begin: int) -> Stored:
    begin, end = entry["data_offsets"]
    if isinstance(entry["dtype"], str) and entry["dtype"] not in DTYPE_BYTES:
        raise LadderError(f"{path}: {show(name)} is {show(entry['dtype'])}, a type that is not read")
    stored = Stored(path, entry["dtype"], tuple(entry["shape"]), data_begin + begin)
    if any(type(extent) is not int or extent < 0 for extent in stored.shape):
        raise ValueError(stored.shape)
    if end - begin != stored.stored_bytes:
        raise LadderError(
            f"{path}: the safetensors header is damaged: {show(name)} is {stored.dtype} of {stored.elements} values, "
            f"but has {show(end - begin)} bytes"
        )
    return stored


def _check_filled(path: Path, tensors: dict[str, Stored], data_begin: int, size: int) -> None:
    """Tensors lie one after the other without gaps, and the file ends with the last."""
    position = data_begin
    for stored in sorted(tensors.values(), key=lambda one: (one.offset, one.stored_bytes)):
        if stored.offset != position:
            raise LadderError(f"{path}: the safetensors header is damaged")
        position += stored.stored_bytes
    if position != size:
        kind = "truncated" if size < position else "longer than its header says"
        raise LadderError(f"{path}: {kind}: {size} bytes, its header means {position}")
