"""Tiny random models as transformers saves them, and their logits by transformers and by Molt."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from molt.errors import LadderError
from molt.models.ladder_file import RungSpec, check_model
from tests.models.tiny import all_logits

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
IDS = tuple(7 * position % 96 for position in range(48))
TOLERANCE = 1e-4  # of the largest logit


def settings(family: str, **changes: Any) -> dict[str, Any]:
    """The settings of a tiny model of a family."""
    return SHAPE | ({"sliding_window": None} if family == "mistral" else {}) | changes


def save(
    folder: Path,
    family: str,
    *,
    stored: torch.dtype = torch.float32,
    shard_bytes: int | str = "1GB",
    **changes: Any,
) -> Path:
    """A random model, made and saved by transformers."""
    torch.manual_seed(len(family))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings(family, **changes)))
    with torch.no_grad():
        for name, values in model.named_parameters():
            is_matrix = values.dim() == 2
            values.normal_(0.0 if is_matrix or name.endswith("bias") else 1.0, 0.3)
    model.to(stored).save_pretrained(folder, max_shard_size=shard_bytes)
    return folder


def alter(folder: Path, **changes: Any) -> Path:
    """Write ``config.json`` again with other settings; ``...`` removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return folder


@torch.inference_mode()
def their_logits(folder: Path) -> torch.Tensor:
    """Logits (t, vocabulary) of transformers' model."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    model.load_state_dict(_weights(folder), strict=False)
    model.tie_weights()
    return model.eval()(torch.tensor([IDS])).logits[0]


@cache
def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """What transformers loads; of one folder the weights never change, only the settings beside them do."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


def our_logits(folder: Path) -> torch.Tensor:
    """Logits (t, vocabulary) of Molt's model; ``LadderError`` where it is refused."""
    return all_logits(RungSpec("tier0", "tier0", folder, "fp32", check_model(folder)), list(IDS))


def refusal(folder: Path) -> str | None:
    """The reason for which a model is refused; ``None`` for one whose logits are those of transformers.

    There is nothing in between: other logits are a failure.
    """
    try:
        ours = our_logits(folder)
    except LadderError as error:
        message = str(error)
        assert "\n" not in message
        return message
    theirs = their_logits(folder)
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    assert difference < TOLERANCE, f"{difference:.3g} in {(folder / 'config.json').read_text()}"
    return None
