"""Tokenizers as data: whether two rungs read text as the same tokens.

Rungs may only hand an attention state to each other if token id n is the same piece of text for both and text
is cut into pieces in the same way. So vocabularies (added tokens and their flags included), merges, normaliser,
pre-tokenizer, post-processor and decoder must be equal. What changes no token may differ: truncation, padding, offsets,
the rows that a model's embedding has beyond the vocabulary.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molt.errors import LadderError
from molt.formats.manifest import known_vocabulary
from molt.formats.weights_file import read_json
from molt.formats.yaml_file import show

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """What a ``tokenizer.json`` says of its entries: spelling by token id, and the merges in order.

    ``rules`` is everything else that changes the tokens of a text or the text of tokens, in one form: by the name of
    its part, with defaults written out.
    """

    path: Path
    spellings: Mapping[int, str]
    merges: tuple[tuple[str, ...], ...]
    rules: Mapping[str, Any]

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


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file; ``LadderError`` with one line if the library cannot read it."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
        frame(tokenizer)  # some damage shows with the first text
        return tokenizer
    except (
        BaseException
    ) as error:  # the library raises nothing narrower, and what it did not expect as a panic
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise LadderError(f"{path}: not a tokenizer: {' '.join(str(error).split())}") from None


def frame(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the tokenizer adds before and after every text."""
    bare, framed = (tokenizer.encode("a", add_special_tokens=added).ids for added in (False, True))
    for position in range(len(framed) - len(bare) + 1):
        if framed[position : position + len(bare)] == bare:
            return tuple(framed[:position]), tuple(framed[position + len(bare) :])
    return tuple(tokenizer.encode("").ids), ()


def framed(ids: Sequence[int], before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a text with those around it; what the text already spells there is not added again."""
    begin = () if before and tuple(ids[: len(before)]) == tuple(before) else before
    end = () if after and tuple(ids[-len(after) :]) == tuple(after) else after
    return (*begin, *ids, *end)


def text_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a whole text in which special tokens may be spelled."""
    return framed(tokenizer.encode(text, add_special_tokens=False).ids, *frame(tokenizer))


def same_bytes(ours: Path, theirs: Path) -> bool:
    """Whether two tokenizers are the same file, or copies of it."""
    return ours == theirs or filecmp.cmp(ours, theirs, shallow=False)


def read_tokens(path: Path) -> Tokens:
    """The entries of a tokenizer, cached while the file is unchanged; ``LadderError`` if it is damaged."""
    stat = path.stat()
    return _read_tokens(path, stat.st_size, stat.st_mtime_ns)


def difference(ours: Tokens, theirs: Tokens) -> str | None:
    """The first entry or rule in which two tokenizers differ, in words; ``None`` if they are the same."""
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
    if (place := _first_difference(ours.rules, theirs.rules)) is not None:
        name, one, other = place
        return f"{name} is {_shown(one)} in {ours.path} but {_shown(other)}"
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
        is_sound = is_sound and all(type(text) is str for text in spellings.values())
        is_sound = is_sound and all(type(part) is str for merge in merges for part in merge)
        rules = _rules(content)
    except (KeyError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise LadderError(f"{path}: no vocabulary of texts and token ids in it")
    return Tokens(path, spellings, merges, rules)


def _merge(merge: Any) -> tuple[str, ...]:
    """Older files write a merge as ``"a b"``, newer ones as ``["a", "b"]``."""
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


# --- rules in one form


_MODEL_DEFAULTS: Mapping[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
_ABSENT = object()


def _rules(content: Mapping[str, Any]) -> dict[str, Any]:
    model = {key: value for key, value in content["model"].items() if key not in ("vocab", "merges")}
    added = {
        f"added token {token['id']}": {flag: token.get(flag, False) for flag in _FLAGS}
        for token in content.get("added_tokens") or ()
    }
    return {
        "normalizer": _parts(content.get("normalizer"), "normalizers"),
        "pre_tokenizer": _parts(content.get("pre_tokenizer"), "pretokenizers"),
        "post_processor": _post_processors(content.get("post_processor")),
        "decoder": [_without(one, "ByteLevel") for one in _parts(content.get("decoder"), "decoders")],
        "model": {**_MODEL_DEFAULTS, **{key: _option(key, value) for key, value in model.items()}},
        **added,
    }


def _option(name: str, value: Any) -> Any:
    """An option of the model; an empty affix and a dropout of 0 are none."""
    return None if value == "" or (name == "dropout" and value == 0) else value


def _parts(stage: Any, inner: str) -> list[Any]:
    """The steps of a stage in order, sequences written out; where offsets point changes no token."""
    if stage is None:
        return []
    if stage["type"] == "Sequence":
        return [part for one in stage[inner] for part in _parts(one, inner)]
    defaults = {"use_regex": True} if stage["type"] == "ByteLevel" else {}
    return [defaults | {key: value for key, value in stage.items() if key != "trim_offsets"}]


def _post_processors(stage: Any) -> list[Any]:
    """What is added to the tokens of one text; ``ByteLevel`` only moves offsets there."""
    steps = [step for step in _parts(stage, "processors") if step["type"] != "ByteLevel"]
    return [_template(step) if step["type"] == "TemplateProcessing" else step for step in steps]


def _template(step: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: token["ids"] for name, token in step["special_tokens"].items()}
    pieces = [
        ids[piece["SpecialToken"]["id"]] if "SpecialToken" in piece else "text" for piece in step["single"]
    ]
    return {"type": step["type"], "single": pieces}


def _without(step: Any, kind: str) -> Any:
    """A step of that kind without its options, which it does not use."""
    return {"type": kind} if step["type"] == kind else step


def _first_difference(one: Any, other: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """The first place in which two rules differ, and both values."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            inner = f"{place}.{key}" if place else str(key)
            if found := _first_difference(one.get(key, _ABSENT), other.get(key, _ABSENT), inner):
                return found
        return None
    if isinstance(one, list) and isinstance(other, list):
        for position, pair in enumerate(zip_longest(one, other, fillvalue=_ABSENT)):
            if found := _first_difference(*pair, f"{place}[{position}]"):
                return found
        return None
    return None if one == other and type(one) is type(other) else (place, one, other)


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else show(value)
