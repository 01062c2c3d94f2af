"""What is published is what a run wrote, and the README's numbers are those of the published summaries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.from_run import write_reports
from reports.publish import PUBLISHED, README, main, publish, readme_table, with_tables


def test_the_readme_has_the_published_numbers() -> None:
    """No number of the table is typed: making it again changes nothing."""
    text = README.read_text(encoding="utf-8")
    assert "| killed by the OS |" in text
    assert with_tables(text) == text


def test_every_published_page_names_its_command_commit_machine_and_logs() -> None:
    for page in PUBLISHED.glob("*.md"):
        if "policies" not in json.loads(page.with_suffix(".json").read_text(encoding="utf-8")):
            continue  # no run of a scenario, but a table, a session or a proof, which have tests of their own
        text = page.read_text(encoding="utf-8")
        for word in (f"python -m sim.run scenarios/{page.stem}.yaml", "commit", "machine", "sha256", "seed"):
            assert word in text, f"{page.name} does not name its {word}"
        assert f"{page.stem}.html" in text
        assert (PUBLISHED / f"{page.stem}.html").exists()


def test_publishing_copies_the_pages_of_a_run(run_dir: Path, tmp_path: Path) -> None:
    write_reports(run_dir)
    name = publish(run_dir, tmp_path / "published")
    summary = json.loads((tmp_path / "published" / f"{name}.json").read_text(encoding="utf-8"))
    assert summary == json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert all(policy in readme_table(summary) for policy in summary["policies"])


def test_without_a_run_it_says_how_it_is_used() -> None:
    assert main([]) == 2


@pytest.mark.parametrize("text", ["no JSON", None])
def test_a_folder_without_a_summary_is_refused_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    assert main([str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"molt: {tmp_path / 'summary.json'}: ")
    assert told.count("\n") == 1
