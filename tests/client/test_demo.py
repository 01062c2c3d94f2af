"""``molt demo``: the session that plays by itself."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from molt.client.chat import Screen
from molt.client.demo import (
    BEGINNING,
    CUT_AFTER_TOKENS,
    LINE_CHARS_MAX,
    QUESTION,
    BudgetCut,
    Session,
    TimedLever,
    TimedToken,
    annotated,
    budget_between,
    demo,
    play,
    server,
    to_json,
)
from molt.client.http_client import Client, ServerError
from molt.errors import InputError
from tests.client.fake_server import ADMIN, MIB, SWITCH, WORDS, FakeServer, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving(FakeServer(pace=0.02)) as server:
        yield server


def played(fake: FakeServer, admin: str = ADMIN) -> tuple[Session, str]:
    """A session with a server, and what was shown of it on the way."""
    out = io.StringIO()
    with Client(fake.url) as client:
        screen = Screen(Console(file=out))
        session = play(client, admin, command="molt demo", max_tokens=24, screen=screen)
    return session, out.getvalue()


def test_the_budget_is_cut_after_eight_tokens_and_the_answer_goes_on(fake: FakeServer) -> None:
    session, _ = played(fake)
    before = [item for item in session.items if isinstance(item, TimedToken | BudgetCut)]
    cut = before.index(next(item for item in before if isinstance(item, BudgetCut)))
    assert cut == CUT_AFTER_TOKENS
    assert fake.budget == before[cut].budget_bytes  # type: ignore[union-attr]
    rungs = [item.rung for item in before if isinstance(item, TimedToken)]
    assert rungs[:cut] == ["tier0"] * cut
    assert rungs[-1] == "tier1"
    assert "".join(item.text for item in before if isinstance(item, TimedToken)) == "".join(WORDS[:24])
    assert session.holds


def test_what_is_shown_is_what_is_saved(fake: FakeServer) -> None:
    session, shown = played(fake)
    question, first, *rest = shown.splitlines()
    saved_first, *saved = annotated(session).splitlines()
    assert question == f"› {QUESTION}"
    assert first == saved_first
    assert "".join(rest) == "".join(saved), "all but the line ends"


def test_the_form_of_the_session() -> None:
    switch = {"event": "switch", **SWITCH}
    session = Session(
        ladder="pico",
        command="molt demo",
        commit="0",
        machine={},
        versions={},
        load=0.5,
        question="?",
        items=(
            TimedLever(at_ms=1, molt={"event": "admit", "rung": "tier0"}),
            TimedToken(at_ms=3122, text=" An operating system", rung="tier0"),
            BudgetCut(at_ms=3200, budget_bytes=2651 * MIB),
            TimedToken(at_ms=3300, text=" processes", rung="tier0"),
            TimedLever(at_ms=3500, molt=switch),
            TimedToken(at_ms=3600, text=" to free up resources", rung="tier1"),
        ),
        finish_reason="length",
        summary={
            "tokens": 40,
            "prompt_tokens": 17,
            "rungs": {"tier0": 9, "tier1": 31},
            "switches": [switch],
            "switch_ms": 260.4,
            "killed": False,
        },
    )
    assert annotated(session) == (
        "[start on tier0 · 17 prompt tokens · TTFT 3122 ms]\n"
        " An operating system\n"
        "[budget cut to 2.59GiB]\n"
        " processes\n"
        "⇆ tier0 → tier1 (project, 260 ms, 79 % FLOPs saved, pressure 0.81)\n"
        " to free up resources\n"
        "[done: 40 tokens · rungs used tier0, tier1 · 1 switch costing 260 ms · killed=False]\n"
    )
    assert Session.model_validate_json(to_json(session)) == session


def test_lines_are_cut_at_spaces_and_nothing_is_lost(fake: FakeServer) -> None:
    session, _ = played(fake)
    words = [line for line in annotated(session).splitlines() if line[0] not in "[⇆"]
    assert max(map(len, words)) <= LINE_CHARS_MAX
    assert "".join(words) == "".join(WORDS[:24])


@pytest.mark.parametrize("summary", [{"killed": True, "switches": [1]}, {"killed": False, "switches": []}])
def test_a_session_without_what_it_is_to_show_does_not_hold(
    fake: FakeServer, summary: dict[str, object]
) -> None:
    session, _ = played(fake)
    assert not session.model_copy(update={"summary": summary}).holds


def test_a_cut_that_is_refused_is_an_error(fake: FakeServer) -> None:
    with pytest.raises(ServerError, match="admin token required"):
        played(fake, admin="wrong")


def test_the_budget_lies_between_two_rungs() -> None:
    assert budget_between([24, 6, 2]) == 15
    with pytest.raises(InputError, match="at least two rungs"):
        budget_between([24])


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="nosuch"), server("nosuch", tmp_path / "events.jsonl"):
        pass


def test_tokens_of_other_servers_are_not_those_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that was given is not printed, and the demo reads its server's from what it prints."""
    monkeypatch.setenv("MOLT_TOKEN", "the-users")
    monkeypatch.setenv("MOLT_ADMIN_TOKEN", "the-administrators")
    with server("pico", tmp_path / "events.jsonl") as (url, admin):
        assert admin != "the-administrators"
        with Client(url) as client:
            client.post("/admin/budget", {"budget": "30MiB"}, admin)


def test_a_ladder_that_is_not_there_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ladder is named 'nosuch'"):
        demo("nosuch", tmp_path / "out", 40)
    assert not any(tmp_path.iterdir())


def test_the_demo_plays_on_the_real_server(tmp_path: Path) -> None:
    """Exit status 0 means: the answer is whole, nothing was killed, and the model was changed on the way."""
    command = [
        sys.executable,
        "-c",
        "from molt.cli.main import main; main()",
        "demo",
        "--out",
        str(tmp_path / "demo"),
    ]
    for _ in range(2):  # a second time into the same folder
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    session = Session.model_validate_json((tmp_path / "demo" / "session.json").read_text(encoding="utf-8"))
    assert session.holds
    assert session.question == BEGINNING
    assert sum(isinstance(item, TimedToken) for item in session.items) == session.summary["tokens"] == 40
    assert set(session.summary["rungs"]) == {"tier0", "tier1"}
    text = (tmp_path / "demo" / "session.txt").read_text(encoding="utf-8")
    assert text == annotated(session)
    assert "⇆ tier0 → tier1 (project, " in done.stdout
    log = (tmp_path / "demo" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(log[0])["ladder"]["name"] == "pico"
