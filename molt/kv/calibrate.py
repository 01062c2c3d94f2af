"""From documents to the sums a map is fitted on: every model reads the same windows of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from molt.errors import InputError
from molt.kv.features import to_rows
from molt.kv.resident import Resident
from molt.kv.ridge import Statistics
from molt.kv.transplant import Islands

WINDOW_TOKENS = 384
WINDOW_TOKENS_MIN = 32
WINDOWS_PER_DOCUMENT_MAX = 4
"""A long document gives a few windows only: rows of one document resemble each other."""

HELDOUT_EVERY = 10

Document = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to fit on and others to judge by; ``sources`` names where they come from."""

    fit: tuple[Document, ...]
    heldout: tuple[Document, ...]
    sources: tuple[str, ...]


def folder_corpus(folder: Path) -> Corpus:
    """The text files of a folder; every tenth, in order of name, is held out.

    Raises ``InputError`` if there are not at least two readable ones.
    """
    documents = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            documents.append((path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    if len(documents) < 2:
        raise InputError(
            f"{folder}: {len(documents)} UTF-8 text files, at least 2 are needed to fit and to hold out"
        )
    heldout = documents[::HELDOUT_EVERY]
    fit = [document for number, document in enumerate(documents) if number % HELDOUT_EVERY]
    return Corpus(tuple(fit), tuple(heldout), (folder.name,))


def windows(
    documents: Iterable[Document], tokenizer: Tokenizer, length: int = WINDOW_TOKENS
) -> Iterator[list[int]]:
    """The first few windows of ``length`` tokens of each document; a remainder counts if it is not tiny."""
    for _, text in documents:
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: WINDOWS_PER_DOCUMENT_MAX * length]
        for start in range(0, len(ids), length):
            if len(ids) - start >= WINDOW_TOKENS_MIN:
                yield ids[start : start + length]


@torch.inference_mode()
def rows_of(models: Sequence[Resident], ids: Sequence[int], native_layers: int) -> Tensor:
    """One row per token with every model side by side, (t, w) float32: content of its cell, input of a layer.

    That layer is the first one that a map would have to give. The first tokens are left out: they are
    outliers, and a transplant never maps them.
    """
    skipped = Islands().first
    sides = []
    for model in models:
        below = model.empty_cache(len(ids))
        inputs = model.read_below(below, ids, range(len(ids)), native_layers)  # (T, hidden)
        sides += [to_rows(model.read_afresh(ids).export(skipped), model.rope), inputs[skipped:]]
    return torch.cat(sides, dim=1)


@torch.inference_mode()
def collect(
    models: Sequence[Resident],
    native_layers: int,
    texts: Iterable[Sequence[int]],
    rows_max: int,
    progress: Callable[[int], None] = lambda rows: None,
) -> Statistics:
    """Statistics of at most ``rows_max`` rows (whole windows); ``progress`` is told the rows so far.

    Raises ``InputError`` if the texts give no row at all.
    """
    statistics: Statistics | None = None
    for ids in texts:
        rows = rows_of(models, ids, native_layers)
        if statistics is None:
            statistics = Statistics(origin=rows.mean(0))
        statistics.add(rows)
        progress(statistics.rows)
        if statistics.rows >= rows_max:
            break
    if statistics is None:
        raise InputError("the documents are too short: not one window of text to calibrate on")
    return statistics
