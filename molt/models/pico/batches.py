"""Token streams, and the batches a training reads from them.

A batch is a function of the number of its step: nothing here has a position to save or a state to restore.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from molt.models.pico import END_OF_TEXT_ID, WEIGHTS
from molt.models.pico.corpus import Split, corpus_folder, documents
from molt.models.pico.recipes import Recipe, Schedule
from molt.models.pico.tokenizer import load_tokenizer


def encode_split(split: Split, cache: Path | None = None) -> np.ndarray:
    """All documents of a split as one stream of token ids, each after an end-of-text token: (T,) uint16.

    The result is kept in `cache`, under a name that depends on the tokenizer and the corpus.
    """
    cache = cache or corpus_folder()
    sources = (WEIGHTS / "tokenizer.json").read_bytes() + (cache / "manifest.json").read_bytes()
    path = cache / f"tokens-{split}-{hashlib.sha256(sources).hexdigest()[:16]}.npy"
    if not path.is_file():
        tokenizer = load_tokenizer()
        encoded = (tokenizer.encode(text).ids for _, text in documents(split, cache))
        stream = np.concatenate([np.array([END_OF_TEXT_ID, *ids], np.uint16) for ids in encoded])
        scratch = path.with_name(f"{path.stem}.{os.getpid()}.npy")
        np.save(scratch, stream)
        scratch.replace(path)
    return np.load(path, mmap_mode="r")


def windows(tokens: np.ndarray, first: int, count: int, length: int, seed: int) -> torch.Tensor:
    """`count` windows, from number `first` on, of an endless shuffled reading: (count, length + 1) int64.

    Each epoch cuts the stream at another offset and takes the pieces in another order; neighbours in the
    stream share one token.
    """
    pieces = (len(tokens) - 1) // length - 1
    rows = []
    for number in range(first, first + count):
        random = np.random.default_rng([seed, length, number // pieces])
        offset = int(random.integers(length))
        piece = int(random.permutation(pieces)[number % pieces])
        start = offset + piece * length
        rows.append(tokens[start : start + length + 1].astype(np.int64))
    return torch.from_numpy(np.stack(rows))


def batch(tokens: np.ndarray, step: int, schedule: Schedule, recipe: Recipe) -> torch.Tensor:
    """The token ids of one step: (B, length + 1) int64, where B times length is the recipe's batch."""
    last_from = schedule.last_phase_from(recipe)
    if last_from is None or step < last_from:
        count = recipe.tokens_per_step // recipe.length
        return windows(tokens, step * count, count, recipe.length, recipe.seed)
    count = recipe.tokens_per_step // recipe.length_last
    return windows(tokens, (step - last_from) * count, count, recipe.length_last, recipe.seed)
