"""A ladder as a user brings one: two random models saved by transformers, one tokenizer, a file that names them."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent
END = "<|endoftext|>"
VOCABULARY = 400


def make(folder: Path, positions: int = 512, maps: str | None = None) -> Path:
    """Write ``models/large``, ``models/small`` and ``mine.yaml`` below ``folder``; returns the ladder's file."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), eos_token=END)
    for seed, (name, layers, hidden) in enumerate((("large", 3, 64), ("small", 2, 48))):
        config = AutoConfig.for_model(
            "qwen2",
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            tie_word_embeddings=True,
        )
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / "models" / name)
        tokenizer.save_pretrained(folder / "models" / name)
    ladder = folder / "mine.yaml"
    text = "name: mine\nrungs:\n"
    for rung, precision, source in (
        ("large", "fp32", "large"),
        ("small", "fp32", "small"),
        ("small-int8", "int8", "small"),
    ):
        text += f"  - {{name: {rung}, precision: {precision}, source: {{folder: models/{source}}}}}\n"
    ladder.write_text(text + ("" if maps is None else f"maps: {{folder: {maps}}}\n"), encoding="utf-8")
    return ladder


def _tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 20,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([(ROOT / "README.md").read_text(encoding="utf-8")], trainer)
    return made
