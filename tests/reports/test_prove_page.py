"""The page of ``molt prove`` is made of its JSON alone, and what is published is what that makes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from reports.prove_page import main, page
from reports.publish import PUBLISHED

TEXT = (PUBLISHED / "prove.json").read_text(encoding="utf-8")


def test_the_published_page_is_what_its_json_makes() -> None:
    assert (PUBLISHED / "prove.md").read_text(encoding="utf-8") == page(TEXT)


def test_the_page_names_what_it_comes_from() -> None:
    of = json.loads(TEXT)
    made = page(TEXT)
    for fact in (
        of["command"],
        of["commit"],
        hashlib.sha256(TEXT.encode()).hexdigest(),
        f"{of['rule_machines']['steps']:,}",
    ):
        assert fact in made


def test_failures_are_said_first() -> None:
    of = json.loads(TEXT) | {"failures": ["molt fuzz --seeds 1 --start 7: killed"], "silent": ["fuzz: Heal"]}
    made = page(json.dumps(of))
    assert "**1 failures, 1 mechanisms that never fired.**" in made
    assert made.index("--start 7: killed") < made.index("## ")


def test_it_wants_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", None])
def test_anything_else_is_refused_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prove.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert main([str(path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"molt: {path}: ")
    assert printed.count("\n") == 1
