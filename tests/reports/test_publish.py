"""What is published is what a run wrote, and the README's numbers are those of the published summaries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.from_run import write_reports
from reports.publish import PUBLISHED, README, command, main, publish, readme_table, with_tables


def test_the_readme_has_the_published_numbers() -> None:
    """No number of the table is typed: making it again changes nothing."""
    text = README.read_text(encoding="utf-8")
    assert "| killed by the OS |" in text
    assert with_tables(text) == text


def test_every_published_page_names_its_command_commit_machine_and_logs() -> None:
    for summary in PUBLISHED.rglob("*.json"):
        if "policies" not in json.loads(summary.read_text(encoding="utf-8")):
            continue  # no run of a scenario, but a table, a session or a proof, which have tests of their own
        module = "realproc.run" if summary.parent.name == "real" else "sim.run"
        text = summary.with_suffix(".md").read_text(encoding="utf-8")
        for word in (command(summary.stem, module), "commit", "machine", "sha256", "seed"):
            assert word in text, f"{summary.stem} does not name its {word}"
        assert f"{summary.stem}.html" in text
        assert summary.with_suffix(".html").exists()


def test_publishing_copies_the_pages_of_a_run(run_dir: Path, tmp_path: Path) -> None:
    write_reports(run_dir)
    name = publish(run_dir, tmp_path / "published")
    summary = json.loads((tmp_path / "published" / f"{name}.json").read_text(encoding="utf-8"))
    assert summary == json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert all(policy in readme_table(summary) for policy in summary["policies"])


def test_a_run_with_real_processes_lies_beside_the_campaigns(run_dir: Path, tmp_path: Path) -> None:
    """And does not take the place of the simulated run of the same scenario; its options are those it was given."""
    for log in run_dir.glob("*/events.jsonl"):
        header, *records = log.read_text(encoding="utf-8").splitlines()
        real = {"real": {"rate_bytes_per_s": 2**30, "huge": True}}
        end = {"kind": "kernel", "seq": 10**6, "at_ns": 0}
        lines = (json.dumps(json.loads(header) | real), *records, json.dumps(end))
        log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_reports(run_dir)
    name = publish(run_dir, tmp_path / "published")
    assert [path.name for path in (tmp_path / "published").iterdir()] == ["real"]
    page = (tmp_path / "published" / "real" / f"{name}.md").read_text(encoding="utf-8")
    options = "--policy hold --policy idle --policy molt --rate 1GiB --huge"
    assert f"`python -m realproc.run scenarios/{name}.yaml {options}`" in page


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
