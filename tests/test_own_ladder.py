"""A ladder of the user's own, of 512 positions, from end to end: with what the guide says, and without packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from molt.client.demo import Session, server
from molt.client.http_client import AnswerSummary, Client
from tests import own_ladder

ROOT = Path(__file__).resolve().parent.parent
SCENARIO = """name: mine
ladder: mine.yaml
horizon: 20s
kill_after: 500ms
hardware: {profile: mine.json, slowdown: 10}
trace:
  steps:
    - {at: 0s, budget: 250% of large}
    - {at: 200ms, budget: 170% of small}
policies: [hold, restart, molt]
tenants:
  - name: chat
    kind: foreground
    arrives: 0s
    prompt: {text: "Memory is taken back from programs."}
    max_tokens: 200
    stop: never
"""


def molt(folder: Path, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``molt`` in a folder, where nothing but Python is to be found."""
    done = subprocess.run(
        [sys.executable, "-c", "from molt.cli.main import main; main()", *words],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def environment(folder: Path) -> dict[str, str]:
    """Neither apt nor dpkg, nor a cache of an earlier day."""
    (folder / "bin").mkdir(exist_ok=True)
    return {
        **os.environ,
        "PATH": str(folder / "bin"),
        "MOLT_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ladder, its maps and its profile, made by the commands of the guide; the path has a space."""
    folder = tmp_path_factory.mktemp("own ladder")
    ladder = own_ladder.make(folder)
    (folder / "texts").mkdir()
    for page in (ROOT / "docs").glob("*/*.md"):
        (folder / "texts" / f"{page.parent.name}-{page.name}").write_text(
            page.read_text(encoding="utf-8"), encoding="utf-8"
        )
    molt(folder, "fit", "mine.yaml", "--documents", "texts", "--rows", "300", "--out", "maps/mine")
    with ladder.open("a", encoding="utf-8") as file:
        file.write("maps: {folder: maps/mine}\n")
    molt(folder, "calibrate", "mine.yaml", "--out", "mine.json")
    return folder


def test_the_remedies_name_what_is_to_be_typed(tmp_path: Path) -> None:
    """Before there are maps and a profile: the file, and not the name inside of it."""
    own_ladder.make(tmp_path)
    needs_map = molt(tmp_path, "eval", "residuals", "mine.yaml", status=2)
    assert needs_map.stderr.strip().endswith("fit maps with: molt fit mine.yaml")
    for words in (("demo", "--ladder", "mine.yaml"), ("serve", "--ladder", "mine.yaml", "--port", "0")):
        (line,) = molt(tmp_path, *words, status=2).stderr.splitlines()
        assert line.startswith("molt: profile 'mine': no such profile")
        assert "--profile mine.json" in line
    assert not (tmp_path / "runs").exists(), "refused before anything is written"


def test_without_documents_python_itself_is_read(tmp_path: Path) -> None:
    own_ladder.make(tmp_path)
    done = molt(tmp_path, "fit", "mine.yaml", "--rows", "100")
    assert "taking the library of Python" in done.stderr
    assert sorted(path.name for path in (tmp_path / "maps" / "mine").iterdir()) == [
        "large--small.safetensors",
        "small--large.safetensors",
    ]


def test_the_profile_and_the_maps_are_used(mine: Path) -> None:
    """A simulation with real steps, in which the cache goes through the map."""
    (mine / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    molt(mine, "sim", "scenario.yaml", "--out", "run")
    log = (mine / "run" / "molt" / "events.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in log.splitlines()]
    assert [r["route"] for r in records if r.get("type") == "Switched"][:1] == ["project"]
    assert [r for r in records if r.get("type") == "TenantFinished"]
    assert molt(mine, "replay", "run/molt/events.jsonl").stdout.count("all identical")
    assert "answers finished" in molt(mine, "report", "run").stdout


def test_the_handoff_is_judged(mine: Path) -> None:
    words = ("eval", "handoff", "mine.yaml", "--documents", "2", "--context", "64", "--continuation", "8")
    assert "saved: runs/handoff-mine.json" in molt(mine, *words).stderr
    assert "saved: runs/handoff-mine-2.json" in molt(mine, *words).stderr, "nothing is overwritten"


def test_answers_are_served(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(mine).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(mine)
    with server("mine.yaml", mine / "served.jsonl", "mine.json") as (url, _), Client(url) as client:
        served = client.served()
        assert tuple(served.rungs) == ("large", "small", "small-int8")
        messages = [{"role": "user", "content": "Why?"}]
        *_, last = client.answer(served, messages, kind="foreground", max_tokens=16)
        assert isinstance(last, AnswerSummary)
        assert last.fields["tokens"] <= 16


def test_the_demo_is_played(mine: Path) -> None:
    molt(mine, "demo", "--ladder", "mine.yaml", "--profile", "mine.json")
    text = (mine / "runs" / "demo-mine" / "session.json").read_text(encoding="utf-8")
    session = Session.model_validate_json(text)
    assert session.holds
    assert session.command == "molt demo --ladder mine.yaml --profile mine.json"
