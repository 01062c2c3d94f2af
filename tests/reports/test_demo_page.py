"""The page of a session is made of its JSON alone, and what is published is what it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.client.demo import Session, TimedLever, TimedToken, annotated, to_json
from reports.demo_page import main, page, publish, with_sessions
from reports.publish import DOCS, PUBLISHED

SESSIONS = sorted(PUBLISHED.glob("demo-*.json"))


def session_of(path: Path) -> Session:
    return Session.model_validate_json(path.read_bytes())


def test_the_guide_has_the_published_session() -> None:
    text = (DOCS / "guides" / "serve.md").read_text(encoding="utf-8")
    assert "<!-- session: demo-qwen2.5-coder -->" in text
    assert with_sessions(text) == text


def test_a_session_is_published() -> None:
    assert "demo-pico" in {path.stem for path in SESSIONS}


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_a_published_page_is_what_its_json_makes(path: Path) -> None:
    session = session_of(path)
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert text == page(session)
    assert session.holds
    for word in ("`molt demo ", "- commit: ", "- machine: ", "- versions: ", annotated(session)):
        assert word in text


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_the_summary_of_a_session_agrees_with_its_stream(path: Path) -> None:
    """Tokens by rung are counted again, and the switches of the stream are those of the summary."""
    session = session_of(path)
    counted: dict[str, int] = {}
    for item in session.items:
        if isinstance(item, TimedToken):
            counted[item.rung] = counted.get(item.rung, 0) + 1
    assert counted == session.summary["rungs"]
    levers = [item.molt for item in session.items if isinstance(item, TimedLever)]
    switches = [lever for lever in levers if lever["event"] == "switch"]
    assert [switch["ms"] for switch in switches] == [switch["ms"] for switch in session.summary["switches"]]


def test_what_shows_nothing_is_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_of(SESSIONS[0])
    (tmp_path / "session.json").write_text(to_json(session), encoding="utf-8")
    assert publish(tmp_path, tmp_path / "out") == SESSIONS[0].stem
    dull = session.model_copy(update={"summary": {**session.summary, "switches": []}})
    (tmp_path / "session.json").write_text(to_json(dull), encoding="utf-8")
    assert main([str(tmp_path)]) == 2
    (tmp_path / "session.json").write_text("{}", encoding="utf-8")
    assert main([str(tmp_path)]) == 2
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
