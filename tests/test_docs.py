"""The examples of the documentation are run, and the links in it lead somewhere."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from molt.models.ladder_file import read_ladder_file

ROOT = Path(__file__).resolve().parent.parent
DOCS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
TUTORIAL = ROOT / "docs" / "guides" / "writing-a-policy.md"
NOT_RUN = {
    "curl": "run by tests/server/test_documentation.py",
    "make": "installs",
    "molt calibrate": "needs an idle machine",
    "molt chat": "needs a server",
    "molt demo": "run by tests/client/test_demo.py",
    "molt fit": "takes long",
    "molt ladders fetch": "needs a network",
    "molt real": "needs a control group",
    "molt serve": "run by tests/server/test_documentation.py",
    "python -m benchmarks.device": "needs a GPU",
    "python -m realproc.run": "needs a control group",
    "python -m reports.agreement": "needs a run with real processes",
    "python -m reports.campaign": "needs a campaign",
    "python -m sim.run scenarios/spike_mid_answer.yaml --profile here.json": "needs a run with real processes",
}
"""Beginnings of documented commands that are not run here, and why; their options are checked all the same."""


def blocks(path: Path, language: str) -> list[str]:
    """Fenced code blocks of a language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def commands(path: Path) -> list[str]:
    """Lines of the shell blocks, without comments and continuation."""
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def is_run(command: str) -> bool:
    """Whether a command is run here: of ours, and not among those that cannot be."""
    return command.startswith(("molt ", "python -m ")) and not command.startswith(tuple(NOT_RUN))


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a documented command with this interpreter's ``molt`` and ``python``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        shlex.split(command),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PATH": path, "COLUMNS": "300"},
    )


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder from which the scenarios can be reached as in a checkout."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    return tmp_path


def test_the_tutorial_policy_works_as_written(workplace: Path) -> None:
    """The code of the tutorial is saved under the name it gives, and its command is run to the letter."""
    (code,) = blocks(TUTORIAL, "python")
    (workplace / "cliff_policy.py").write_text(code, encoding="utf-8")
    (command,) = commands(TUTORIAL)
    done = run(command, workplace)
    assert done.returncode == 0, done.stderr
    assert "cliff" in done.stdout


def test_the_commands_of_the_readme_work(workplace: Path) -> None:
    """Every ``molt`` and ``python -m`` command of the README, in order, in one folder."""
    ran = 0
    for command in commands(ROOT / "README.md"):
        if is_run(command):
            done = run(command, workplace)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            ran += 1
    assert ran > 0


@pytest.mark.parametrize("page", [page for page in GUIDES if page != TUTORIAL], ids=lambda page: page.stem)
def test_the_commands_of_a_guide_work(page: Path, workplace: Path) -> None:
    """Files that a guide spells out are saved under the names in their first lines; then its commands are run."""
    for text in blocks(page, "yaml"):
        name = re.match(r"# (\w+\.yaml)\n", text)
        assert name is not None, f"{page.name}: a file without its name in the first line"
        (workplace / name[1]).write_text(text, encoding="utf-8")
    for command in commands(page):
        if is_run(command):
            done = run(command, workplace)
            assert done.returncode == 0, f"{command}\n{done.stderr}"


@functools.cache
def _help(program: str) -> str:
    done = run(f"{program} --help", ROOT)
    assert done.returncode == 0, f"{program}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=lambda page: page.stem)
def test_options_of_commands_that_are_not_run_exist(page: Path) -> None:
    """Every ``--option`` of a documented ``molt`` or ``realproc`` command is in the help of that command."""
    for command in commands(page):
        if is_run(command) or not command.startswith(("molt ", "python -m realproc", "python -m sim")):
            continue
        program = re.match(r"(?:molt(?: (?:ladders|real) \w+| \w+)|python -m [\w.]+)", command)
        assert program is not None, command
        for option in re.findall(r"(?<= )--[\w-]+", command):
            assert option in _help(program[0]), command


def test_ladders_in_the_guides_are_ladders(tmp_path: Path) -> None:
    """Every ladder file in a guide is read as one, though its weights are not there."""
    texts = [text for page in GUIDES for text in blocks(page, "yaml") if "\nrungs:" in text]
    assert texts
    for text in texts:
        (tmp_path / "ladder.yaml").write_text(text, encoding="utf-8")
        _, ladder = read_ladder_file(tmp_path / "ladder.yaml")
        assert ladder.rungs


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_named_in_the_documentation_exist(page: Path) -> None:
    """A path in backquotes or in a link that looks like one of ours is there."""
    text = page.read_text(encoding="utf-8")
    folders = "molt|sim|realproc|reports|scenarios|tests|docs|benchmarks"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", text))
    named |= {name for name in re.findall(r"\]\(((?!https?:)[\w./-]+)(?:#[\w-]+)?\)", text) if name}
    missing = [name for name in named if not (ROOT / name).exists() and not (page.parent / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sections_that_links_name_exist(page: Path) -> None:
    """A link to a section of a page names a heading that is there."""
    text = page.read_text(encoding="utf-8")
    for name, section in re.findall(r"\]\(((?!https?:)[\w./-]*)#([\w-]+)\)", text):
        target = page if not name else page.parent / name
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert section in slugs, f"{name}#{section}"


def test_every_page_is_in_the_index() -> None:
    """``docs/README.md`` links to every page of the documentation."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", index))
    assert pages - {"README.md"} - linked == set()
