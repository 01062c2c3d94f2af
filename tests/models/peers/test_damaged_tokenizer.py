"""A tokenizer that the library cannot read is one line that names the file, wherever it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from molt.errors import LadderError
from molt.models.tokenizer_file import frame, framed, read_tokenizer, text_ids
from molt.paths import IMPORT_ROOT
from tests.models.peers.test_shared_tokenizer import begins, plain, rewritten, written
from tests.models.peers.texts import TEXTS


def rename(content: dict[str, Any]) -> None:
    """A merge then names an entry that is not there."""
    vocab = content["model"]["vocab"]
    vocab["renamed"] = vocab.pop("he")


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an entry renamed": rename,
    "no model": lambda content: content.pop("model"),
    "another kind of model": lambda content: content["model"].update(type="Markov"),
    "a pattern that is none": lambda content: content["pre_tokenizer"]["pretokenizers"][0].update(
        pattern={"Regex": "("}
    ),
    "a template without its token": lambda content: content.update(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    ),
    "a negative id": lambda content: content["model"]["vocab"].update(he=-1),
    "a list": lambda content: content.update(added_tokens={"a": 1}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_tokenizer_is_one_line(damage: str, tmp_path: Path) -> None:
    path = rewritten(written(tmp_path / "t"), DAMAGE[damage])
    with pytest.raises(LadderError) as caught:
        read_tokenizer(path)
    assert str(caught.value).startswith(f"{path}: not a tokenizer: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[]", b"{}", json.dumps({"version": "1.0"}).encode()])
def test_a_file_that_is_none_is_one_line(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(raw)
    with pytest.raises(LadderError) as caught:
        read_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_the_library_is_asked_in_one_place_only() -> None:
    """Everywhere else a damaged file would be a traceback."""
    packages = ("molt", "sim", "realproc", "reports")
    asking = [
        path.relative_to(IMPORT_ROOT).as_posix()
        for package in packages
        for path in (IMPORT_ROOT / package).rglob("*.py")
        if "Tokenizer.from_file(" in path.read_text(encoding="utf-8")
    ]
    assert asking == ["molt/models/tokenizer_file.py"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("begin", [None, "<|endoftext|>", "<|im_end|>"])
def test_a_text_is_framed_as_the_tokenizer_frames_it(text: str, begin: str | None) -> None:
    """Unless it begins with that token already, which then is there once."""
    tokenizer: Tokenizer = plain()
    if begin is not None:
        begins(begin)(tokenizer)
    bare = tokenizer.encode(text, add_special_tokens=False).ids
    wanted = tokenizer.encode(text).ids if begin is None or not text.startswith(begin) else bare
    assert list(text_ids(tokenizer, text)) == wanted


def test_a_frame_has_two_sides() -> None:
    assert framed([5, 6], (1,), (2, 3)) == (1, 5, 6, 2, 3)
    assert framed([1, 5, 2, 3], (1,), (2, 3)) == (1, 5, 2, 3)
    assert framed([], (1,), (2,)) == (1, 2)
    assert frame(plain()) == ((), ())
