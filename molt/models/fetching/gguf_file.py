"""GGUF files: metadata and tensors, read with every count, length and offset checked against the file first.

The header is read here rather than by ``gguf.GGUFReader``, which trusts the file and takes seconds
for a large vocabulary. The arithmetic of the quantised types is that package's. Nothing is mapped: a tensor is
read when it is asked for, in pieces, so a file cut short meanwhile is an error and no crash.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from molt.errors import LadderError
from molt.formats.yaml_file import show

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SPLIT_COUNT = "split.count"
GGUF_HEADER_BYTES_MAX = 256 * 1024 * 1024
KEYS_MAX = 10_000
TENSORS_MAX = 100_000
ARRAY_MAX = 4_000_000
DIMENSIONS_MAX = 4
ALIGNMENT_DEFAULT = 32
PIECE_VALUES = 1 << 22

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a type stores values: ``block_bytes`` for every ``block`` values of a row."""

    name: str
    block: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits per value, scales included."""
        return 8 * self.block_bytes / self.block


TYPES: Mapping[int, Quantisation] = {
    0: Quantisation("F32", 1, 4),
    1: Quantisation("F16", 1, 2),
    2: Quantisation("Q4_0", 32, 18),
    3: Quantisation("Q4_1", 32, 20),
    6: Quantisation("Q5_0", 32, 22),
    7: Quantisation("Q5_1", 32, 24),
    8: Quantisation("Q8_0", 32, 34),
    10: Quantisation("Q2_K", 256, 84),
    11: Quantisation("Q3_K", 256, 110),
    12: Quantisation("Q4_K", 256, 144),
    13: Quantisation("Q5_K", 256, 176),
    14: Quantisation("Q6_K", 256, 210),
    30: Quantisation("BF16", 1, 2),
}
"""The types that are read, by their number in the file."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: ``shape`` with rows first, as torch has it; ``offset`` in bytes from the beginning of the file."""

    name: str
    shape: tuple[int, ...]
    kind: Quantisation
    offset: int

    @property
    def values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file."""
        return self.values // self.kind.block * self.kind.block_bytes


@dataclass(frozen=True, eq=False, slots=True)
class GgufFile:
    """A file whose header was read and whose tensors all lie within it."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file.

    Raises ``LadderError`` if the file is missing, truncated or damaged, or has a tensor of a type not read here.
    """
    try:
        with path.open("rb") as file:
            return _Header(path, file, path.stat().st_size).read()
    except OSError as error:
        raise LadderError(f"{path}: {error.strerror or error}") from None


def read_rows(gguf: GgufFile, tensor: GgufTensor, first: int, count: int) -> np.ndarray:
    """Rows ``first`` to ``first + count`` of a tensor in float32, ``(count, columns)``; a vector is one row.

    Raises ``LadderError`` if the file cannot be read or a value is not finite.
    """
    import numpy as np
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    columns = tensor.shape[-1]
    row_bytes = columns // tensor.kind.block * tensor.kind.block_bytes
    with gguf.path.open("rb") as file:
        file.seek(tensor.offset + first * row_bytes)
        raw = file.read(count * row_bytes)
    if len(raw) != count * row_bytes:
        raise LadderError(f"{gguf.path}: {tensor.name}: the file was cut short while it was read")
    data = np.frombuffer(raw, np.uint8).reshape(count, row_bytes)
    with np.errstate(all="ignore"):  # what is not finite is refused below
        rows = dequantize(data, GGMLQuantizationType[tensor.kind.name]).reshape(count, columns)
    if not np.isfinite(rows).all():
        raise LadderError(
            f"{gguf.path}: {tensor.name}: a value in rows {first} to {first + count} is not finite"
        )
    return rows


def read_values(gguf: GgufFile, tensor: GgufTensor) -> np.ndarray:
    """A whole tensor in float32, in its shape; beside it only ``PIECE_VALUES`` values are held at a time.

    Raises ``LadderError`` as ``read_rows`` does.
    """
    import numpy as np

    columns = tensor.shape[-1]
    rows = tensor.values // columns
    step = max(1, PIECE_VALUES // columns)
    whole = np.empty((rows, columns), np.float32)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        whole[first : first + count] = read_rows(gguf, tensor, first, count)
    return whole.reshape(tensor.shape)


# --- the header ---


class _Header:
    """Reads forward through the header; ``place`` names where it is, for messages."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file = path, file
        self.size = size
        self.end = min(size, GGUF_HEADER_BYTES_MAX)
        self.place = "header"

    def read(self) -> GgufFile:
        if self.take(4) != MAGIC:
            raise LadderError(f"{self.path}: no GGUF file: it does not begin with {MAGIC.decode()}")
        version = self.number("I")
        if version and not version & 0xFFFF:  # a small number, its bytes in the other order
            raise self.refuse("big-endian; only little-endian files are read")
        if version not in VERSIONS:
            valid = ", ".join(map(str, VERSIONS))
            raise self.refuse(f"version {version} is not read; valid: {valid}")
        tensor_count = self.count("tensors", TENSORS_MAX)
        key_count = self.count("keys", KEYS_MAX)
        metadata: dict[str, object] = {}
        for _ in range(key_count):
            self.place = "a key"
            key = self.text()
            self.place = f"key {show(key)}"
            if key in metadata:
                raise self.refuse("a second time")
            metadata[key] = self.value(self.number("I"))
        self.place = SPLIT_COUNT
        if (parts := metadata.get(SPLIT_COUNT, 1)) not in (0, 1):
            raise self.refuse(
                f"{show(parts)}: one part of a model in {show(parts)} files; join them first: llama-gguf-split --merge"
            )
        raw = [self.tensor() for _ in range(tensor_count)]
        return GgufFile(self.path, metadata, self.placed(raw, metadata))

    def placed(self, raw: list[GgufTensor], metadata: Mapping[str, object]) -> dict[str, GgufTensor]:
        """The tensors by name, their offsets from the beginning of the file, all inside it and none in another."""
        self.place = "general.alignment"
        alignment = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.refuse(f"{show(alignment)} is no power of two")
        begin = -(-self.file.tell() // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for tensor in raw:
            self.place = f"tensor {show(tensor.name)}"
            if tensor.name in tensors:
                raise self.refuse("a second time")
            if tensor.offset % alignment:
                raise self.refuse(f"offset {tensor.offset} is no multiple of the alignment {alignment}")
            moved = GgufTensor(tensor.name, tensor.shape, tensor.kind, begin + tensor.offset)
            if moved.offset + moved.stored_bytes > self.size:
                raise self.refuse(
                    f"ends at byte {moved.offset + moved.stored_bytes}, but the file has {self.size}: "
                    f"truncated, or damaged"
                )
            tensors[tensor.name] = moved
        in_order = sorted(tensors.values(), key=lambda one: one.offset)
        for before, after in pairwise(in_order):
            if before.offset + before.stored_bytes > after.offset:
                self.place = f"tensor {show(after.name)}"
                raise self.refuse(f"begins inside {show(before.name)}")
        return tensors

    def tensor(self) -> GgufTensor:
        self.place = "a tensor's name"
        name = self.text()
        self.place = f"tensor {show(name)}"
        dimensions = self.number("I")
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise self.refuse(f"{dimensions} dimensions; valid: 1 to {DIMENSIONS_MAX}")
        shape = tuple(reversed([self.number("Q") for _ in range(dimensions)]))
        number = self.number("I")
        if number not in TYPES:
            names = ", ".join(kind.name for kind in TYPES.values())
            raise self.refuse(f"type {_type_name(number)} is not read; valid: {names}")
        kind = TYPES[number]
        if min(shape) < 1 or math.prod(shape) // kind.block * kind.block_bytes > self.size:
            raise self.refuse(f"shape {list(shape)} is none a file of {self.size} bytes can hold")
        if shape[-1] % kind.block:
            raise self.refuse(
                f"rows of {shape[-1]} values are no multiple of the {kind.block} of {kind.name}"
            )
        return GgufTensor(name, shape, kind, self.number("Q"))

    def value(self, kind: int) -> object:
        match kind:
            case 8:
                return self.text()
            case 9:
                return self.array()
            case _ if kind in SCALARS:
                return self.number(SCALARS[kind])
        raise self.refuse(f"values of type {kind} are unknown")

    def array(self) -> tuple[object, ...]:
        kind = self.number("I")
        count = self.count("values", ARRAY_MAX)
        if kind == STRING:
            return tuple(self.text() for _ in range(count))
        if kind not in SCALARS:
            raise self.refuse(f"an array of values of type {kind}, which is not read")
        layout = f"<{count}{SCALARS[kind]}"
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> str:
        raw = self.take(self.number("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.refuse(f"{show(raw)} is no UTF-8") from None

    def count(self, what: str, most: int) -> int:
        count = self.number("Q")
        if count > most:
            raise self.refuse(f"{count} {what}, more than the {most} that are read")
        return count

    def number(self, code: str) -> int:
        (number,) = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
        return number

    def take(self, count: int) -> bytes:
        if count > self.end - self.file.tell():
            left = self.end - self.file.tell()
            raise self.refuse(f"truncated or damaged: {count} bytes are announced, {left} are left")
        raw = self.file.read(count)
        if len(raw) != count:
            raise self.refuse("the file was cut short while it was read")
        return raw

    def refuse(self, reason: str) -> LadderError:
        return LadderError(f"{self.path}: {self.place}: {reason}")


def _type_name(number: int) -> str:
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType(number).name
    except ValueError:
        return str(number)
