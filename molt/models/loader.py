"""Loads one rung: a transformers model whose every byte is accounted for.

- Only safetensors are read, and no code that comes with a model is run.
- The model is built without storage, then each tensor is read in blocks of rows straight into its final form
  (converted, or quantised), so the peak is the loaded model plus one block.
- Weights lie in memory of the process, not in a file mapping: what the prediction says is what the OS sees.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from molt.errors import LadderError
from molt.models import int8, predict
from molt.models.ladder_file import RungSpec, check_stored
from molt.models.model_config import FAMILIES, read_config
from molt.models.weights_file import Stored, stored_tensors

BLOCK_BYTES = 1024 * 1024  # small enough to stay in the cache while it is quantised
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
PRECISION_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, eq=False, slots=True)
class LoadedRung:
    """A rung in memory: a transformers causal LM in eval mode, and the bytes its weights were measured at."""

    spec: RungSpec
    model: Any  # transformers names its classes late; see FAMILIES
    weight_bytes: int


def load(rung: RungSpec) -> LoadedRung:
    """Load a rung's weights from its folder.

    Raises ``LadderError`` if the files are missing, damaged or of another shape than the rung's, or if the
    loaded weights are not exactly as many bytes as predicted.
    """
    stored = stored_tensors(rung.folder)
    check_stored(rung.shape, stored, rung.folder)
    if rung.shape.tied and HEAD in stored:
        _check_same(stored[HEAD], stored[EMBEDDING])
    model = _without_storage(rung)
    model.load_state_dict(_state(rung, stored), strict=True, assign=True)
    model.requires_grad_(False).eval()
    measured, predicted = weight_bytes(model), predict.weight_bytes(rung.shape, rung.precision)
    if measured != predicted:
        raise LadderError(
            f"{rung.folder}: {rung.name} has {measured} bytes of weights, predicted {predicted}"
        )
    return LoadedRung(rung, model, measured)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters and stored buffers; memory shared between tensors counts once."""
    storages = {tensor.untyped_storage() for tensor in model.state_dict().values()}
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _without_storage(rung: RungSpec) -> Any:
    """The model on the meta device, except for its RoPE frequencies."""
    family = rung.shape.family
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    model_class = getattr(module, FAMILIES[family].causal_lm)
    try:
        config = model_class.config_class.from_dict(read_config(rung.folder))
        config.dtype = PRECISION_DTYPES[rung.precision]
        with torch.device("meta"):
            model = model_class(config)
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    except Exception as error:  # transformers checks settings that only it knows, in its own ways
        reason = " ".join(str(error).split())
        raise LadderError(f"{rung.folder / 'config.json'}: transformers refuses it: {reason}") from error
    if rung.precision == "int8":
        with torch.device("meta"):
            int8.replace_matrices(model)
    return model


def _state(rung: RungSpec, stored: dict[str, Stored]) -> dict[str, Tensor]:
    """The model's state by name, in its final precision; a tied head is the embedding's very tensors."""
    state: dict[str, Tensor] = {}
    for name in predict.parameters(rung.shape):
        if rung.precision == "int8" and len(stored[name].shape) == 2:
            state[name], state[_scale_name(name)] = _quantised(stored[name])
        else:
            state[name] = _converted(stored[name], PRECISION_DTYPES[rung.precision])
    if rung.shape.tied:
        state[HEAD] = state[EMBEDDING]
        if rung.precision == "int8":
            state[_scale_name(HEAD)] = state[_scale_name(EMBEDDING)]
    return state


def _scale_name(name: str) -> str:
    return f"{name.removesuffix('.weight')}.scale"


def _converted(stored: Stored, dtype: torch.dtype) -> Tensor:
    tensor = torch.empty(stored.shape, dtype=dtype)
    for first, block in _blocks(stored):
        tensor[first : first + len(block)] = block
    return tensor


def _quantised(stored: Stored) -> tuple[Tensor, Tensor]:
    rows = stored.shape[0]
    weight, scale = torch.empty(stored.shape, dtype=torch.int8), torch.empty(rows, dtype=torch.float32)
    for first, block in _blocks(stored):
        part = slice(first, first + len(block))
        weight[part], scale[part] = int8.quantise_rows(block.float())
    return weight, scale


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


def _check_same(head: Stored, embedding: Stored) -> None:
    """Refuse a folder that ties head and embedding but stores two different matrices."""
    is_alike = (head.dtype, head.shape) == (embedding.dtype, embedding.shape)
    pairs = zip(_blocks(head), _blocks(embedding), strict=False)
    if not is_alike or not all(torch.equal(one, other) for (_, one), (_, other) in pairs):
        raise LadderError(f"{head.path}: {HEAD} differs from {EMBEDDING}, but config.json ties them")
