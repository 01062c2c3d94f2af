"""The examples of the documentation are run, and the links in it lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(path: Path, language: str) -> list[str]:
    """Fenced code blocks of a language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def commands(path: Path) -> list[str]:
    """Lines of the shell blocks, without comments and continuation."""
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a documented command with this interpreter's ``molt`` and ``python``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        shlex.split(command),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PATH": path},
    )


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder from which the scenarios can be reached as in a checkout."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    return tmp_path


def test_the_tutorial_policy_works_as_written(workplace: Path) -> None:
    """The code of the tutorial is saved under the name it gives, and its command is run to the letter."""
    page = ROOT / "docs" / "guides" / "writing-a-policy.md"
    (code,) = blocks(page, "python")
    (workplace / "cliff_policy.py").write_text(code, encoding="utf-8")
    (command,) = commands(page)
    done = run(command, workplace)
    assert done.returncode == 0, done.stderr
    assert "cliff" in done.stdout


def test_the_commands_of_the_readme_work(workplace: Path) -> None:
    """Every ``molt`` and ``python -m`` command of the README, in order, in one folder."""
    for command in commands(ROOT / "README.md"):
        if command.startswith(("molt ", "python -m ")):
            done = run(command, workplace)
            assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_files_named_in_the_documentation_exist(page: Path) -> None:
    """A path in backquotes or in a link that looks like one of ours is there."""
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:molt|sim|realproc|reports|scenarios|tests|docs)/[\w./-]+)`", text))
    named |= set(re.findall(r"\]\(((?!https?:)[\w./-]+)\)", text))
    missing = [name for name in named if not (ROOT / name).exists() and not (page.parent / name).exists()]
    assert missing == []
