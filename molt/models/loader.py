"""Loads one rung: a decoder whose every byte is accounted for.

- Only safetensors are read, and no code that comes with a model is run.
- The weights lie in one arena. Where a prepared image of the rung exists, it is read in one go, or mapped;
  otherwise each tensor is read in blocks of rows straight into its place, in its final form (converted, or
  quantised), so the peak is the loaded rung plus one block.
- Anonymous weights are memory of the process: what the prediction says is what the OS sees. Mapped ones are
  the file's own pages.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from molt.errors import LadderError
from molt.formats.weights_file import Stored, stored_tensors, weight_files
from molt.models import image
from molt.models.arena import Arena
from molt.models.decoder import Decoder, Layer
from molt.models.image import (
    EMBEDDING,
    FINAL_NORM,
    GATE_UP,
    HEAD,
    QKV,
    Slot,
    layer_name,
    offset_name,
    scale_name,
)
from molt.models.ladder_file import RungSpec, check_stored
from molt.models.matrix import FloatMatrix, Int8Matrix, Matrix, quantise_rows, row_offsets
from molt.models.rope import rope_of
from molt.paths import cache_folder, find_cache_folder
from molt.work import Work, finished

BLOCK_BYTES = 256 * 1024  # small enough to stay in the processor's cache while it is quantised
READ_BYTES = 2 * 1024 * 1024  # a huge page; larger reads were measured to be no faster
CPU = torch.device("cpu")
DTYPES = {
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I8": torch.int8,
}


@dataclass(frozen=True, eq=False, slots=True)
class LoadedWeights:
    """A rung in memory: ``weight_bytes`` of weights.

    ``arena`` is where they lie, on a processor; drop the rung and they go back to the system. On another device
    they are that device's allocator's.
    """

    spec: RungSpec
    decoder: Decoder
    weight_bytes: int
    arena: Arena | None


def load(rung: RungSpec, device: torch.device = CPU) -> LoadedWeights:
    """Load a rung's weights in one go; see ``loading``."""
    return finished(loading(rung, device))


def loading(rung: RungSpec, device: torch.device = CPU) -> Work[LoadedWeights]:
    """Load a rung's weights from its folder, or from its image if one was prepared.

    Raises ``LadderError`` if the files are missing, damaged or of another shape than the rung's, if the rung is
    to be mapped and has no image, or if the device cannot compute at its precision.
    """
    if rung.precision == "int8" and device.type != "cpu":
        raise LadderError(f"{rung.name}: int8 is computed on the processor only, not on {device.type}")
    arena: Arena | None
    slots = image.layout(rung.shape, rung.precision)
    if rung.residency == "mapped":
        arena = Arena.mapped(*mapped_image(rung), _end(slots))
    else:
        arena = Arena.anonymous(_end(slots))
        if (prepared := find_image(rung)) is None:
            yield from _fill(arena, rung, slots)
        else:
            yield from _read(arena, *prepared)
    memory = arena.tensor(0, torch.uint8, (arena.nbytes,))
    if device.type != "cpu":
        memory, arena = memory.to(device), None
    return LoadedWeights(rung, _decoder(memory, rung, slots), _end(slots), arena)


def prepare(rung: RungSpec) -> Path:
    """Write the image of a rung, if there is none yet; returns its file.

    Needs as much memory as the rung does. Raises ``LadderError`` as ``load`` does.
    """
    with suppress(LadderError):  # a damaged image is made again
        if (prepared := find_image(rung)) is not None:
            return prepared[0]
    slots = image.layout(rung.shape, rung.precision)
    arena = Arena.anonymous(_end(slots))
    finished(_fill(arena, rung, slots))
    tensors = _tensors(arena, slots)
    path = _image_path(rung)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.write(path, slots, tensors.__getitem__)
    return path


def find_image(rung: RungSpec) -> tuple[Path, int] | None:
    """The file of a rung's image and where its data begins in it, if there is one.

    The model's own file is one if it was written in that order and precision.
    """
    slots = image.layout(rung.shape, rung.precision)
    own = weight_files(rung.folder)
    written = [] if find_cache_folder() is None else [_image_path(rung)]
    for path in (*own[: len(own) == 1], *written):
        if os.path.isfile(path) and (begin := image.data_begin(path, slots)) is not None:
            return path, begin
    return None


def mapped_image(rung: RungSpec) -> tuple[Path, int]:
    """The image of a rung that is to be mapped, as ``find_image``; raises ``LadderError`` if there is none."""
    if (prepared := find_image(rung)) is None:
        raise LadderError(
            f"{rung.folder}: {rung.name} is to be mapped, but no image of it at {rung.precision} was prepared: "
            "molt ladders fetch does"
        )
    return prepared


def _image_path(rung: RungSpec) -> Path:
    """Named after the files it is made of: when one of them changes, so does the name."""
    digest = hashlib.sha256()
    for path in weight_files(rung.folder):
        stat = path.resolve().stat()
        digest.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return cache_folder() / "images" / f"{digest.hexdigest()[:24]}-{rung.precision}.safetensors"


# --- filling an arena


def _read(arena: Arena, path: Path, begin: int) -> Work[None]:
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        done, memory = 0, arena.memory
        while done < len(memory):
            count = file.readinto(memory[done : done + READ_BYTES])
            if not count:
                raise LadderError(f"{path}: truncated while it was read")
            done += count
            yield


def _fill(arena: Arena, rung: RungSpec, slots: tuple[Slot, ...]) -> Work[None]:
    stored = stored_tensors(rung.folder)
    check_stored(rung.shape, stored, rung.folder)
    if rung.shape.tied and f"{HEAD}.weight" in stored:
        yield from _check_same(stored[f"{HEAD}.weight"], stored[f"{EMBEDDING}.weight"])
    tensors = _tensors(arena, slots)
    for name in image.parameters(rung.shape):
        weight = tensors[name]
        for first, block in _blocks(stored[name]):
            part = slice(first, first + len(block))
            if weight.dtype == torch.int8:
                weight[part], row_scale = quantise_rows(block.float())
                tensors[scale_name(name)][part] = row_scale[:, 0]
                tensors[offset_name(name)][part] = row_offsets(weight[part])
            else:
                weight[part] = block
            yield


def _blocks(stored: Stored) -> Iterator[tuple[int, Tensor]]:
    """The stored tensor in blocks of whole rows, each with the number of its first row.

    A block is only valid until the next one is asked for.
    """
    rows = stored.shape[0]
    row_bytes = stored.stored_bytes // rows
    step = max(1, min(rows, BLOCK_BYTES // row_bytes))
    buffer = torch.empty(step * row_bytes, dtype=torch.uint8)
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.offset)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            part = buffer[: count * row_bytes]
            if file.readinto(part.numpy().data) != len(part):
                raise LadderError(f"{stored.path}: truncated while it was read")
            yield first, part.view(DTYPES[stored.dtype]).view(count, *stored.shape[1:])


def _check_same(head: Stored, embedding: Stored) -> Work[None]:
    """Refuse a folder that ties head and embedding but stores two different matrices."""
    is_alike = (head.dtype, head.shape) == (embedding.dtype, embedding.shape)
    pairs = zip(_blocks(head), _blocks(embedding), strict=False)
    while is_alike and (pair := next(pairs, None)) is not None:
        (_, one), (_, other) = pair
        is_alike = torch.equal(one, other)
        yield
    if not is_alike:
        raise LadderError(
            f"{head.path}: {HEAD}.weight differs from {EMBEDDING}.weight, but config.json ties them"
        )


# --- from an arena to a decoder


def _end(slots: tuple[Slot, ...]) -> int:
    return slots[-1].offset + slots[-1].nbytes


def _tensors(arena: Arena, slots: tuple[Slot, ...]) -> dict[str, Tensor]:
    return {slot.name: arena.tensor(slot.offset, DTYPES[slot.dtype], slot.shape) for slot in slots}


def _decoder(memory: Tensor, rung: RungSpec, slots: tuple[Slot, ...]) -> Decoder:
    view = _View(memory, {slot.name: slot for slot in slots})
    embedding = view.matrix(EMBEDDING)
    return Decoder(
        shape=rung.shape,
        rope=rope_of(rung.shape, memory.device),
        embedding=embedding,
        layers=tuple(_layer(view, number) for number in range(rung.shape.layers)),
        norm=view.vector(f"{FINAL_NORM}.weight"),
        head=embedding if rung.shape.tied else view.matrix(HEAD),
    )


def _layer(view: _View, number: int) -> Layer:
    def name(part: str) -> str:
        return layer_name(number, part)

    return Layer(
        input_norm=view.vector(name("input_layernorm.weight")),
        qkv=view.matrix(*map(name, QKV)),
        query_norm=view.find(name("self_attn.q_norm.weight")),
        key_norm=view.find(name("self_attn.k_norm.weight")),
        output=view.matrix(name("self_attn.o_proj")),
        post_norm=view.vector(name("post_attention_layernorm.weight")),
        gate_up=view.matrix(*map(name, GATE_UP)),
        down=view.matrix(name("mlp.down_proj")),
    )


@dataclass(frozen=True, eq=False, slots=True)
class _View:
    """Tensors of an image in memory by name; neighbours in one."""

    memory: Tensor  # (bytes,) uint8
    slots: dict[str, Slot]

    def matrix(self, *names: str) -> Matrix:
        """One matrix over the rows of several neighbours."""
        weight = self._joined(*(f"{name}.weight" for name in names))
        has_bias = f"{names[0]}.bias" in self.slots
        bias = self._joined(*(f"{name}.bias" for name in names)) if has_bias else None
        if weight.dtype != torch.int8:
            return FloatMatrix(weight, bias)
        scale, offset = (self._joined(*map(part, names)) for part in (scale_name, offset_name))
        return Int8Matrix(weight, scale, offset, bias)

    def vector(self, name: str) -> Tensor:
        return self._joined(name)

    def find(self, name: str) -> Tensor | None:
        return self._joined(name) if name in self.slots else None

    def _joined(self, *names: str) -> Tensor:
        parts = [self.slots[name] for name in names]
        for one, other in pairwise(parts):
            assert one.offset + one.nbytes == other.offset, f"{one.name} and {other.name} are no neighbours"
        part = self.memory[parts[0].offset : parts[-1].offset + parts[-1].nbytes]
        return part.view(DTYPES[parts[0].dtype]).view(-1, *parts[0].shape[1:])
