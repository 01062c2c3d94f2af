"""The image of a rung: every byte of its weights in one order, the same in memory as on disk.

- Four-byte values come first, then two-byte, then one-byte ones, so that everything is aligned without gaps.
- Matrices that read the same input (``QKV``, ``GATE_UP``) are neighbours: one view over them is one larger matrix, and
  one product instead of several.
- A tied head is the embedding; it has no place of its own.

On disk an image is a plain safetensors file with transformers' names whose data begins at a page boundary, so
that it can be mapped into memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from molt.formats.weights_file import DTYPE_BYTES, Stored, read_header
from molt.models.model_config import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

PAGE_BYTES = 4096
EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"
FINAL_NORM = "model.norm"
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one tensor: ``offset`` counts bytes from the beginning of the image."""

    name: str
    dtype: str  # safetensors' names: F32, I32, BF16, I8
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def layer_name(layer: int, part: str) -> str:
    """The name of a part of a layer, as transformers has it."""
    return f"model.layers.{layer}.{part}"


def parameters(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every parameter by its name in transformers, with its shape, in order; a tied head is left out."""
    table: dict[str, tuple[int, ...]] = {f"{EMBEDDING}.weight": (shape.vocab, shape.hidden)}
    for layer in range(shape.layers):
        table |= {layer_name(layer, name): extents for name, extents in _layer(shape).items()}
    table[f"{FINAL_NORM}.weight"] = (shape.hidden,)
    if not shape.tied:
        table[f"{HEAD}.weight"] = (shape.vocab, shape.hidden)
    return table


def layout(shape: ModelShape, precision: str) -> tuple[Slot, ...]:
    """The slots of a rung's image at a precision (``fp32``, ``bf16`` or ``int8``), in order."""
    tensors = [
        tensor
        for name, extents in parameters(shape).items()
        for tensor in _stored_as(name, extents, precision)
    ]
    tensors.sort(key=lambda tensor: (-DTYPE_BYTES[tensor[1]], tensor[1]))  # stable: neighbours stay so
    slots, offset = [], 0
    for name, dtype, extents in tensors:
        slots.append(Slot(name, dtype, extents, offset))
        offset += slots[-1].nbytes
    return tuple(slots)


def image_bytes(shape: ModelShape, precision: str) -> int:
    """Bytes of an image."""
    return sum(slot.nbytes for slot in layout(shape, precision))


def scale_name(weight: str) -> str:
    """The name of a matrix's row scales, from that of the matrix."""
    return f"{weight.removesuffix('.weight')}.scale"


def offset_name(weight: str) -> str:
    """The name of what an int8 matrix adds for the zero of a token (see ``matrix``), from that of the matrix."""
    return f"{weight.removesuffix('.weight')}.offset"


def write(path: Path, slots: tuple[Slot, ...], read: Callable[[str], Tensor]) -> None:
    """Write an image, tensor by tensor: ``read`` gives each in the type and shape of its slot.

    The file appears at ``path`` when it is complete and on disk, not before.
    """
    from torch import uint8

    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(_header(slots))
            for slot in slots:
                tensor = read(slot.name)
                assert tuple(tensor.shape) == slot.shape, f"{slot.name}: {tuple(tensor.shape)}"
                data = tensor.contiguous().reshape(-1).view(uint8).numpy()
                assert data.nbytes == slot.nbytes, f"{slot.name}: {data.nbytes} bytes, not {slot.nbytes}"
                file.write(data.data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def data_begin(path: Path, slots: tuple[Slot, ...]) -> int | None:
    """Where the data of an image begins in a file, in bytes; ``None`` if the file holds no such image.

    Raises ``LadderError`` if the file is damaged.
    """
    stored = read_header(path)
    begin = min((one.offset for one in stored.values()), default=0)
    expected = {slot.name: Stored(path, slot.dtype, slot.shape, begin + slot.offset) for slot in slots}
    return begin if stored == expected and begin % PAGE_BYTES == 0 else None


def _header(slots: tuple[Slot, ...]) -> bytes:
    """A safetensors header, padded with spaces to whole pages (together with its eight bytes of length)."""
    entries = {
        slot.name: {
            "dtype": slot.dtype,
            "shape": list(slot.shape),
            "data_offsets": [slot.offset, slot.offset + slot.nbytes],
        }
        for slot in slots
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    return len(text).to_bytes(8, "little") + text


def _stored_as(
    name: str, extents: tuple[int, ...], precision: str
) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    match precision, extents:
        case "fp32", _:
            return ((name, "F32", extents),)
        case "bf16", _:
            return ((name, "BF16", extents),)
        case "int8", (rows, _):
            return (
                (name, "I8", extents),
                (scale_name(name), "F32", (rows,)),
                (offset_name(name), "I32", (rows,)),
            )
        case "int8", _:
            return ((name, "F32", extents),)
    raise AssertionError(f"no such precision: {precision}")


def _layer(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    q, k, v = QKV
    gate, up = GATE_UP
    groups = (
        ({q: queries, k: keys, v: keys}, shape.hidden, shape.qkv_bias),
        ({"self_attn.o_proj": shape.hidden}, queries, shape.o_bias),
        ({gate: shape.ff, up: shape.ff}, shape.hidden, shape.mlp_bias),
        ({"mlp.down_proj": shape.hidden}, shape.ff, shape.mlp_bias),
    )
    table: dict[str, tuple[int, ...]] = {}
    for rows, columns, has_bias in groups:
        table |= {f"{name}.weight": (count, columns) for name, count in rows.items()}
        if has_bias:
            table |= {f"{name}.bias": (count,) for name, count in rows.items()}
    if shape.qk_norm:
        table |= {"self_attn.q_norm.weight": (shape.head_dim,), "self_attn.k_norm.weight": (shape.head_dim,)}
    return table | {
        "input_layernorm.weight": (shape.hidden,),
        "post_attention_layernorm.weight": (shape.hidden,),
    }
