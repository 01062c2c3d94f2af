"""What is published is what a run wrote, and the numbers of every page are those of the published summaries."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from molt.errors import InputError
from reports import campaign, demo_page, eval_page, prove_page, results_page, server_page
from reports.from_run import write_reports
from reports.publish import (
    DOCS,
    PUBLISHED,
    README,
    command,
    main,
    pages,
    publish,
    readme_table,
    run_command,
    with_tables,
)
from tests.reports.story import Story


def test_the_readme_has_the_published_numbers() -> None:
    """No number of the table is typed: making it again changes nothing."""
    text = README.read_text(encoding="utf-8")
    assert "| killed by the OS |" in text
    assert with_tables(text) == text


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_page_has_the_published_results(page: Path) -> None:
    """Whatever stands between markers is made again from what is published, and each marker is of a known kind."""
    text = page.read_text(encoding="utf-8")
    for renewed in (with_tables, eval_page.with_tables, demo_page.with_sessions):
        assert renewed(text) == text
    starts = re.findall(r"^<!-- (\w+): .*-->$", text, re.MULTILINE)
    assert set(starts) <= {"published", "evaluated", "session"}
    assert len(starts) == len(re.findall(r"^<!-- end -->$", text, re.MULTILINE))


def test_publishing_renews_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README and a page in a folder of the docs get what is published; a page without markers stays as it was."""
    (tmp_path / "docs" / "guides").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    outdated = "<!-- published: spike_mid_answer -->\nold\n<!-- end -->\n"
    with_markers = [tmp_path / "README.md", tmp_path / "docs" / "guides" / "page.md"]
    for path in with_markers:
        path.write_text(outdated, encoding="utf-8")
    plain = tmp_path / "docs" / "plain.md"
    plain.write_text("no markers\n", encoding="utf-8")
    monkeypatch.setattr("reports.publish.README", tmp_path / "README.md")
    monkeypatch.setattr("reports.publish.DOCS", tmp_path / "docs")
    assert run_command("", ["anything"], lambda paths, published: [], with_tables) == 0
    assert all("| killed by the OS |" in path.read_text(encoding="utf-8") for path in with_markers)
    assert plain.read_text(encoding="utf-8") == "no markers\n"


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


@pytest.fixture
def complete_run(run_dir: Path) -> Path:
    """The run folder with an end in every log."""
    Story().end(10).write(run_dir / "idle")
    return run_dir


def test_publishing_copies_the_pages_of_a_run(complete_run: Path, tmp_path: Path) -> None:
    run_dir = complete_run
    write_reports(run_dir)
    name = publish(run_dir, tmp_path / "published")
    summary = json.loads((tmp_path / "published" / f"{name}.json").read_text(encoding="utf-8"))
    assert summary == json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert all(policy in readme_table(summary) for policy in summary["policies"])


def test_a_run_with_real_processes_lies_beside_the_campaigns(complete_run: Path, tmp_path: Path) -> None:
    """And does not take the place of the simulated run of the same scenario; its options are those it was given."""
    run_dir = complete_run
    for log in run_dir.glob("*/events.jsonl"):
        header, *records = log.read_text(encoding="utf-8").splitlines()
        real = {"real": {"rate_bytes_per_s": 2**30, "huge": True}}
        counted = {"kind": "kernel", "seq": 10**6, "at_ns": 0}
        lines = (json.dumps(json.loads(header) | real), *records[:-1], json.dumps(counted), records[-1])
        log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_reports(run_dir)
    name = publish(run_dir, tmp_path / "published")
    assert [path.name for path in (tmp_path / "published").iterdir()] == ["real"]
    page = (tmp_path / "published" / "real" / f"{name}.md").read_text(encoding="utf-8")
    options = "--policy hold --policy idle --policy molt --rate 1GiB --huge"
    assert f"`python -m realproc.run scenarios/{name}.yaml {options}`" in page


def test_an_incomplete_run_is_not_published(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of its policies was interrupted: a page that compares it with the others would mislead."""
    write_reports(run_dir)
    assert main(["--out", str(tmp_path / "published"), str(run_dir)]) == 2
    assert "incomplete: the log of idle has no end" in capsys.readouterr().err
    assert not (tmp_path / "published").exists()


def test_an_installed_package_is_never_written_into(
    complete_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that publishes says so in one line; with --out its pages go there, and nowhere else."""
    installed = tmp_path / "site-packages"
    (installed / "reports" / "published").mkdir(parents=True)
    monkeypatch.setattr("reports.publish.README", installed / "README.md")
    monkeypatch.setattr("reports.publish.PUBLISHED", installed / "reports" / "published")
    write_reports(complete_run)
    campaign_file = tmp_path / "pairs.jsonl"
    campaign_file.write_bytes((PUBLISHED / "real" / "campaign-qwen.jsonl").read_bytes())
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "session.json").write_bytes((PUBLISHED / "demo-pico.json").read_bytes())
    calls = {
        main: complete_run,
        eval_page.main: PUBLISHED / "drift-pico.json",
        prove_page.main: PUBLISHED / "prove.json",
        demo_page.main: tmp_path / "demo",
        campaign.main: campaign_file,
    }
    for command_main, given in calls.items():
        assert command_main([str(given)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("is no checkout of Molt, so nothing is published there; say --out FOLDER")
        assert command_main([str(given), "--out", str(tmp_path / "mine")]) == 0
        assert capsys.readouterr().err.endswith(": published\n")
    assert not list((installed / "reports" / "published").iterdir())
    made = {path.name for path in (tmp_path / "mine").iterdir()}
    assert made >= {"story.md", "drift-pico.md", "prove.md", "demo-pico.md", "pairs.md", "pairs.svg"}
    with pytest.raises(InputError, match="no checkout"):
        server_page.main([])
    with pytest.raises(InputError, match="no checkout"):
        results_page.main([])


def test_with_a_folder_of_its_own_nothing_else_is_written(complete_run: Path, tmp_path: Path) -> None:
    """Not the README, not the docs, not the pictures in them."""
    write_reports(complete_run)
    before = {path: path.stat().st_mtime_ns for path in (*pages(), *(DOCS / "images").iterdir())}
    assert main([str(complete_run), "--out", str(tmp_path / "mine")]) == 0
    assert {path: path.stat().st_mtime_ns for path in (*pages(), *(DOCS / "images").iterdir())} == before


@pytest.mark.parametrize("words", [["--out"], ["--folder", "x"]])
def test_options_that_are_none_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("molt: --")


def test_a_name_that_leads_elsewhere_is_refused(complete_run: Path, tmp_path: Path) -> None:
    write_reports(complete_run)
    path = complete_run / "summary.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"story"', '"../../story"'), encoding="utf-8")
    with pytest.raises(InputError, match="no name for a file"):
        publish(complete_run, tmp_path / "published")


def test_without_a_run_it_says_how_it_is_used() -> None:
    assert main([]) == 2


@pytest.mark.parametrize("text", ["no JSON", None])
def test_a_folder_without_a_summary_is_refused_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    assert main([str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"molt: {tmp_path / 'summary.json'}: ")
    assert printed.count("\n") == 1
