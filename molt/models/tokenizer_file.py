"""Tokenizers as data: whether two rungs read text as the same tokens.

Rungs may only hand an attention state to each other if token id n is the same piece of text for both and text
is cut into pieces in the same way. So vocabularies (added tokens included) and merges must be equal; how many
rows a model's embedding has beyond the vocabulary does not matter.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from molt.errors import LadderError
from molt.formats.manifest import known_vocabulary
from molt.formats.weights_file import read_json
from molt.formats.yaml_file import show

FILE = "tokenizer.json"


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """What a ``tokenizer.json`` says of its entries: spelling by token id, and the merges in order."""

    path: Path
    spellings: Mapping[int, str]
    merges: tuple[tuple[str, ...], ...]

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        return max(self.spellings) + 1


def find_tokenizer(folder: Path) -> Path:
    """The ``tokenizer.json`` of a model's folder or of its parent; ``LadderError`` if neither has one."""
    for place in (folder, folder.parent):
        if (place / FILE).is_file():
            return place / FILE
    raise LadderError(f"{folder}: no {FILE} there or in the folder above")


def vocabulary_size(path: Path) -> int:
    """One more than the largest token id; from the manifest beside a converted model, whose parsing takes longer."""
    return known_vocabulary(path.parent) or read_tokens(path).size


def same_bytes(ours: Path, theirs: Path) -> bool:
    """Whether two tokenizers are the same file, or copies of it."""
    return ours == theirs or filecmp.cmp(ours, theirs, shallow=False)


def read_tokens(path: Path) -> Tokens:
    """The entries of a tokenizer, cached while the file is unchanged; ``LadderError`` if it is damaged."""
    stat = path.stat()
    return _read_tokens(path, stat.st_size, stat.st_mtime_ns)


def difference(ours: Tokens, theirs: Tokens) -> str | None:
    """The first entry in which two tokenizers differ, in words; ``None`` if they are the same."""
    if ours.path == theirs.path:
        return None
    if ours.spellings != theirs.spellings:
        ids = sorted(ours.spellings.keys() | theirs.spellings.keys())
        first = next(one for one in ids if ours.spellings.get(one) != theirs.spellings.get(one))
        return f"token {first} is {_spelled(ours, first)} in {ours.path} but {_spelled(theirs, first)}"
    for position, (one, other) in enumerate(zip(ours.merges, theirs.merges, strict=False)):
        if one != other:
            return f"merge {position} is {show(' '.join(one))} in {ours.path} but {show(' '.join(other))}"
    if len(ours.merges) != len(theirs.merges):
        return f"there are {len(ours.merges)} merges in {ours.path} but {len(theirs.merges)}"
    return None


def _spelled(tokens: Tokens, token: int) -> str:
    return show(tokens.spellings[token]) if token in tokens.spellings else "absent"


@cache
def _read_tokens(path: Path, size: int, mtime_ns: int) -> Tokens:
    content = read_json(path)
    try:
        spellings = {token: text for text, token in content["model"]["vocab"].items()}
        spellings |= {added["id"]: added["content"] for added in content.get("added_tokens") or ()}
        merges = tuple(_merge(merge) for merge in content["model"].get("merges") or ())
        is_sound = bool(spellings) and all(type(token) is int and token >= 0 for token in spellings)
    except (KeyError, TypeError, AttributeError):
        is_sound = False
    if not is_sound:
        raise LadderError(f"{path}: no vocabulary of texts and token ids in it")
    return Tokens(path, spellings, merges)


def _merge(merge: Any) -> tuple[str, ...]:
    """Older files write a merge as ``"a b"``, newer ones as ``["a", "b"]``."""
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
