"""The page of all results is made of the published JSON files alone, and what is in ``docs`` is what they make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports import results_page
from reports.publish import DOCS, PUBLISHED
from reports.results_page import main, page

PAGE = (DOCS / "results.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_published_files_make() -> None:
    assert page() == PAGE, "outdated: python -m reports.results_page"


def test_every_table_has_its_page_and_its_command() -> None:
    """One table a heading, and below it a link to a file that is there, and a command."""
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert len(sections) > 20
    for section in sections:
        assert len(re.findall(r"^\|[-:| ]+\|$", section, re.MULTILINE)) == 1, section
        found = re.search(r"^From \[.+\]\(\.\./(\S+)\), made by `(\S+ .+)`\.$", section, re.MULTILINE)
        assert found is not None, section
        assert (DOCS.parent / found[1]).exists()


def test_every_kind_of_table_names_its_control() -> None:
    for chapter in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        assert "control" in chapter.partition("###")[0], chapter.splitlines()[0]


def test_every_campaign_has_a_line() -> None:
    for file in (PUBLISHED / "real").glob("*.jsonl"):
        assert f"[{file.stem}](../reports/published/real/{file.stem}.md)" in PAGE


def test_the_command_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results_page, "PAGE", tmp_path / "results.md")
    assert main([]) == 0
    assert (tmp_path / "results.md").read_text(encoding="utf-8") == PAGE
    assert main(["anything"]) == 2
    assert "usage" in capsys.readouterr().err
