"""From documents to the sums a map is fitted on: every model prefills the same windows of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from molt.errors import InputError
from molt.fitting.checkpoint import Checkpoint
from molt.fitting.sums import BlockSums
from molt.kv.features import columns_per_layer, to_rows
from molt.kv.loaded_rung import LoadedRung
from molt.kv.transplant import Islands

WINDOW_TOKENS = 384
WINDOW_TOKENS_MIN = 32
WINDOWS_PER_DOCUMENT_MAX = 4
"""A long document gives a few windows only: rows of one document resemble each other."""

HELDOUT_EVERY = 10
NO_WINDOW = "the documents are too short: not one window of text to calibrate on"

Document = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to fit on and others to judge by; ``sources`` names where they come from."""

    fit: tuple[Document, ...]
    heldout: tuple[Document, ...]
    sources: tuple[str, ...]


def folder_texts(folder: Path) -> tuple[Document, ...]:
    """The UTF-8 text files of a folder, by name; others are passed over."""
    documents = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            documents.append((path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return tuple(documents)


def folder_corpus(folder: Path) -> Corpus:
    """The text files of a folder; every tenth, in order of name, is held out.

    Raises ``InputError`` if there are not at least two readable ones.
    """
    documents = folder_texts(folder)
    if len(documents) < 2:
        raise InputError(
            f"{folder}: {len(documents)} UTF-8 text files, at least 2 are needed to fit and to hold out"
        )
    heldout = documents[::HELDOUT_EVERY]
    fit = [document for number, document in enumerate(documents) if number % HELDOUT_EVERY]
    return Corpus(tuple(fit), tuple(heldout), (folder.name,))


def windows(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    length: int = WINDOW_TOKENS,
    most: int = WINDOWS_PER_DOCUMENT_MAX,
) -> Iterator[list[int]]:
    """The first windows of ``length`` tokens of each document, ``most`` of each; a remainder counts if it is
    not tiny."""
    for _, text in documents:
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: most * length]
        for start in range(0, len(ids), length):
            if len(ids) - start >= WINDOW_TOKENS_MIN:
                yield ids[start : start + length]


@torch.inference_mode()
def blocks_of(models: Sequence[LoadedRung], ids: Sequence[int], native_layers: int) -> list[Tensor]:
    """The cells that every model computes for some tokens, a row a token: blocks (t, w_b) float32.

    The blocks of a model are the content of its cells, layer by layer, and the input of the first layer that a
    map would have to give. The first tokens are left out: they are outliers, and a transplant never maps them.
    """
    skipped, blocks = Islands().first, []
    for model in models:
        below = model.empty_cache(len(ids))
        inputs = model.prefill_below(below, ids, range(len(ids)), native_layers)  # (T, hidden)
        rows = to_rows(model.prefill_afresh(ids).export(skipped), model.rope)
        blocks += [*rows.split(columns_per_layer(model.layout), dim=1), inputs[skipped:]]
    return blocks


@torch.inference_mode()
def collect(
    models: Sequence[LoadedRung],
    native_layers: int,
    texts: Iterable[Sequence[int]],
    rows_max: int,
    pairs: frozenset[tuple[int, int]],
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> BlockSums:
    """BlockSums of at most ``rows_max`` rows (whole windows); ``progress`` is called with the rows so far.

    Goes on from ``checkpoint`` where it holds something, and keeps it up to date. Raises ``InputError`` if the
    texts give no row at all.
    """
    statistics, read = (None, 0) if checkpoint is None else checkpoint.restore(pairs)
    for number, ids in enumerate(texts):
        if number < read:
            continue
        if statistics is not None and statistics.rows >= rows_max:
            break
        blocks = blocks_of(models, ids, native_layers)
        if statistics is None:
            statistics = BlockSums(tuple(block.mean(0) for block in blocks), pairs)
        statistics.add(blocks)
        progress(statistics.rows)
        read = number + 1
        if checkpoint is not None:
            checkpoint.keep(statistics, read)
    if statistics is None:
        raise InputError(NO_WINDOW)
    if checkpoint is not None:
        checkpoint.keep(statistics, read, at_once=True)
    return statistics
