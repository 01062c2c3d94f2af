"""Pages of ``molt eval`` are made of their JSON alone, and what is published is what they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.evals.result import HandoffTable, read
from reports.eval_page import TITLES, main, name_of, page, publish, with_tables
from reports.publish import DOCS, PUBLISHED

TABLES = sorted(path for path in PUBLISHED.glob("*-*.json") if path.stem.startswith(tuple(TITLES)))


def test_some_tables_are_published() -> None:
    assert "handoff-pico.json" in {path.name for path in TABLES}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_published_page_is_what_its_json_makes(path: Path) -> None:
    table = read(path)
    assert name_of(table, path) == path.stem
    assert path.with_suffix(".md").read_text(encoding="utf-8") == page(table, path.stem)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_published_page_names_its_command_commit_machine_and_seed(path: Path) -> None:
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    for word in ("`molt eval ", "- commit: ", "- machine: ", "- versions: ", "- seed: "):
        assert word in text


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_gates_come_first_and_all_passed(path: Path) -> None:
    table = read(path)
    gates = getattr(table, "gates", [])
    assert all(gate.passed for gate in gates)
    if gates:
        text = path.with_suffix(".md").read_text(encoding="utf-8")
        assert text.index("## Gates") < text.index("->")
        assert "FAIL" not in text


def test_a_handoff_table_has_every_row_it_must() -> None:
    table = read(PUBLISHED / "handoff-pico.json")
    assert isinstance(table, HandoffTable)
    for route in table.routes:
        names = " / ".join(row.name for row in route.rows)
        for word in (
            "own cache",
            "no history",
            "zero cache",
            "another document",
            "noise",
            "K shuffled",
            "V shuffled",
        ):
            assert word in names, f"{route.source} -> {route.dest} lacks {word}"
        for word in ("last 32 tokens only", "full mechanism", "always small", "restart: re-read"):
            assert word in names, f"{route.source} -> {route.dest} lacks {word}"
        if route.route == "project":
            for word in (
                "one source layer",
                "no first island",
                "no last island",
                "RoPE sandwich",
                "native K",
                "mapped K",
            ):
                assert word in names, f"{route.source} -> {route.dest} lacks {word}"
        else:
            assert "carry as it is" in names
            assert "diagonal re-alignment" in names


def test_the_guide_has_the_published_figures() -> None:
    """No number of these tables is typed: making them again changes nothing."""
    text = (DOCS / "guides" / "measure-handoff-quality.md").read_text(encoding="utf-8")
    assert "<!-- evaluated: handoff-pico " in text
    assert with_tables(text) == text


def test_publishing_writes_both_files(tmp_path: Path) -> None:
    (name,) = publish([PUBLISHED / "handoff-pico.json"], tmp_path)
    assert (tmp_path / f"{name}.json").read_bytes() == (PUBLISHED / f"{name}.json").read_bytes()
    assert (tmp_path / f"{name}.md").read_bytes() == (PUBLISHED / f"{name}.md").read_bytes()


def test_a_word_after_table_and_ladder_stays_in_the_name(tmp_path: Path) -> None:
    table = read(PUBLISHED / "handoff-pico.json")
    names = {
        stem: name_of(table, tmp_path / f"{stem}.json")
        for stem in ("handoff-pico-up", "handoff-pico", "handoff-picolino", "out")
    }
    assert names == dict.fromkeys(names, "handoff-pico") | {"handoff-pico-up": "handoff-pico-up"}


def test_no_file_and_a_wrong_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}", encoding="utf-8")
    assert main([str(wrong)]) == 2
    assert "not a table of molt eval" in capsys.readouterr().err.splitlines()[-1]
