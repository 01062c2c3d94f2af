"""How the rungs of the embedded ladder are built and trained: geometry, hyper-parameters, learning rate."""

from dataclasses import dataclass
from typing import Any

from transformers import Qwen2Config

from molt.models.pico import END_OF_TEXT_ID
from molt.models.pico.tokenizer import VOCABULARY


@dataclass(frozen=True)
class Shape:
    """The geometry of a rung (Qwen2 architecture, tied embeddings)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocabulary: int = VOCABULARY
    positions: int = 2048
    rope_base: float = 10_000.0

    def config(self) -> Qwen2Config:
        """The same as a transformers configuration."""
        geometry: dict[str, Any] = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.ff,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.positions,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_base},
            "tie_word_embeddings": True,
        }
        ends: dict[str, Any] = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": END_OF_TEXT_ID}
        return Qwen2Config(architectures=["Qwen2ForCausalLM"], **geometry, **ends)


@dataclass(frozen=True)
class Recipe:
    """How a rung is trained. Fractions are of all steps; lengths and batches are in tokens.

    `momentum` is Muon's, `betas` are AdamW's; they share the learning rate and the weight decay.
    """

    shape: Shape
    learning_rate: float
    tokens_per_step: int = 4096
    length: int = 512
    length_last: int = 2048
    last_fraction: float = 0.15
    decay_fraction: float = 0.25
    warmup_steps: int = 40
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.97)
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 20_260


RECIPES = {
    "tier0": Recipe(
        Shape(layers=7, hidden=256, heads=4, kv_heads=2, head_dim=64, ff=768), learning_rate=3e-3
    ),
    "tier1": Recipe(
        Shape(layers=4, hidden=192, heads=6, kv_heads=2, head_dim=32, ff=512), learning_rate=3e-3
    ),
}


@dataclass(frozen=True)
class Schedule:
    """Where the decay begins and where training ends, in steps; both None while that is undecided."""

    decay_from: int | None = None
    end: int | None = None

    @classmethod
    def ending_at(cls, steps: int, recipe: Recipe) -> "Schedule":
        return cls(decay_from=steps - round(steps * recipe.decay_fraction), end=steps)

    @classmethod
    def decaying_from(cls, step: int, recipe: Recipe) -> "Schedule":
        return cls(decay_from=step, end=max(step + 1, round(step / (1 - recipe.decay_fraction))))

    def learning_rate(self, step: int, recipe: Recipe) -> float:
        """Linear warm-up, plateau, then `1 - sqrt(x)` down to zero (Hägele et al. 2024, arXiv 2405.18392)."""
        rate = recipe.learning_rate * min(1.0, (step + 1) / recipe.warmup_steps)
        if self.decay_from is None or self.end is None or step < self.decay_from:
            return rate
        return rate * (1 - ((step - self.decay_from) / (self.end - self.decay_from)) ** 0.5)

    def last_phase_from(self, recipe: Recipe) -> int | None:
        """The first step of the long sequences, None while undecided."""
        return None if self.end is None else self.end - round(self.end * recipe.last_fraction)
