"""From a GGUF file to a folder as transformers has it, tensor by tensor.

Memory never holds more than one parameter and a piece of another. ``manifest.py`` says when the folder is
complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt.errors import LadderError
from molt.formats.manifest import MANIFEST, write_manifest
from molt.models import image
from molt.models.chat_template import TEMPLATE
from molt.models.fetching import gguf_tokenizer
from molt.models.fetching.gguf_file import read_gguf
from molt.models.fetching.gguf_model import GgufModel, open_model
from molt.models.model_config import ModelShape, read_shape
from molt.models.source import StoredPrecision
from molt.models.tokenizer_file import FILE as TOKENIZER
from molt.models.tokenizer_file import read_tokens

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_FILE, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"


def begin(source: Path, folder: Path) -> tuple[GgufModel, ModelShape]:
    """Read the header of ``source`` and write all but the weights to ``folder``, which is incomplete from here on.

    Raises ``LadderError`` if the file is damaged, or no model that is supported.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    for left_over in folder.glob(f".{WEIGHTS_FILE}.*"):  # of a process that was killed
        left_over.unlink()
    model = open_model(read_gguf(source))
    _write_json(folder / CONFIG, dict(model.config))
    try:
        shape = read_shape(folder)
    except LadderError as error:
        raise LadderError(f"{source}: its keys make a model that cannot be used: {error}") from None
    model.check(image.parameters(shape))
    gguf_tokenizer.write_tokenizer(model.gguf, folder / TOKENIZER)
    if (size := read_tokens(folder / TOKENIZER).size) > shape.vocab:
        raise LadderError(f"{source}: {size} tokens, but an embedding of {shape.vocab} rows")
    ids = {key: model.config[key] for key in ("bos_token_id", "pad_token_id") if key in model.config}
    _write_json(folder / GENERATION, ids | {"eos_token_id": gguf_tokenizer.end_ids(model.gguf)})
    if template := gguf_tokenizer.chat_template(model.gguf):
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    return model, shape


def write_weights(
    model: GgufModel, shape: ModelShape, folder: Path, stored: StoredPrecision, advance: Callable[[int], None]
) -> None:
    """Write the weights to ``folder``; ``advance`` counts bytes written.

    Raises ``LadderError`` if a tensor is damaged, ``OSError`` if the disk cannot be written.
    """
    import torch

    dtype = torch.bfloat16 if stored == "bf16" else torch.float32

    def read(name: str) -> Tensor:
        tensor = torch.from_numpy(model.read(name)).to(dtype)
        advance(tensor.nbytes)
        return tensor

    image.write(folder / WEIGHTS_FILE, image.layout(shape, stored), read)


def seal(folder: Path, advance: Callable[[int], None]) -> None:
    """Write the manifest that makes ``folder`` complete; ``advance`` counts bytes read."""
    names = [WEIGHTS_FILE, CONFIG, GENERATION, TOKENIZER]
    names += [TEMPLATE] if (folder / TEMPLATE).is_file() else []
    write_manifest(folder, names, read_tokens(folder / TOKENIZER).size, advance)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
