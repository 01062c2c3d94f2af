"""``molt chat`` and the client below it, against a server that speaks the wire."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from molt.client.chat import Conversation, Screen, closing, lever_line
from molt.client.http_client import (
    LEVERS,
    AnswerSummary,
    AnswerToken,
    Client,
    Lever,
    Part,
    ServerError,
    part_of,
    printable,
)
from tests.client.fake_server import SWITCH, FakeServer, lever, serving, token

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {
    "event": "summary",
    "tokens": 2,
    "rungs": {"tier0": 1, "tier1": 1},
    "switches": [SWITCH],
    "switch_ms": 260.4,
    "killed": False,
}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "molt": SUMMARY}
SCRIPT = (token("One", "tier0"), lever("switch", **SWITCH), token(" two", "tier1"), LAST, "[DONE]")


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving(FakeServer(pace=0.0)) as server:
        yield server


def parts(server: FakeServer, **asked: object) -> list[Part]:
    messages = [{"role": "user", "content": "?"}]
    with Client(server.url) as client:
        return list(client.answer(client.served(), messages, kind="foreground", max_tokens=5))


def plain_screen() -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, width=40)), out


# --- the client ---


def test_an_answer_is_tokens_levers_and_a_summary(fake: FakeServer) -> None:
    fake.script = SCRIPT
    first, switch, more, last = parts(fake)
    assert (first, more) == (AnswerToken("One", "tier0"), AnswerToken(" two", "tier1"))
    assert isinstance(switch, Lever)
    assert (switch.event, switch.fields["ms"]) == ("switch", 260.4)
    assert last == AnswerSummary("stop", SUMMARY)


def test_an_unknown_event_is_no_part(fake: FakeServer) -> None:
    """Events to come, comments, role chunks and the usage pass by."""
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    usage = {"choices": [], "usage": {"total_tokens": 3}}
    fake.script = (role, lever("rethought"), *SCRIPT[:-1], usage, "[DONE]")
    assert len(parts(fake)) == 4


def test_text_that_was_held_back_does_not_count_as_a_token(fake: FakeServer) -> None:
    late = token("late", "tier0")
    late["molt"]["event"] = "text"
    fake.script = (late, token("", "tier0"), LAST, "[DONE]")
    assert parts(fake)[:2] == [AnswerToken("late", "tier0", counts=False), AnswerToken("", "tier0")]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (SCRIPT[:2], "broke off"),
        (({"error": {"message": "shutting down", "type": "x", "code": "y"}}, "[DONE]"), "shutting down"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(
    fake: FakeServer, script: tuple[dict[str, object], ...], message: str
) -> None:
    fake.script = script
    with pytest.raises(ServerError, match=message):
        parts(fake)


def test_a_refusal_says_when_to_come_again(fake: FakeServer) -> None:
    fake.refuse = (503, {"retry-after": "2"})
    with pytest.raises(ServerError, match="the queue is full; try again in 2 s"):
        parts(fake)


def test_no_server_is_one_line() -> None:
    with pytest.raises(ServerError, match="molt serve"), Client("http://127.0.0.1:9") as client:
        client.served()


# --- what is shown ---


def test_a_switch_names_its_cost() -> None:
    assert lever_line(Lever("switch", SWITCH)) == (
        "⇆ tier0 → tier1 (project, 260 ms, 79 % FLOPs saved, pressure 0.81)"
    )
    assert lever_line(Lever("switch", {**SWITCH, "flops_saved": None, "pressure": None, "ms": 1.24})) == (
        "⇆ tier0 → tier1 (project, 1.2 ms)"
    )
    assert lever_line(Lever("park", {"pressure": {"budget_bytes": 100, "usage_bytes": 120}})) == (
        "· park (pressure 1.20)"
    )
    assert lever_line(Lever("resume", {"rung": "tier1"})) == "· resume on tier1"


def test_the_closing_line_sums_up() -> None:
    assert closing(AnswerSummary("stop", SUMMARY)) == (
        "[done: 2 tokens · rungs used tier0, tier1 · 1 switch costing 260 ms · killed=False]"
    )
    assert "no switch" in closing(AnswerSummary("stop", {**SUMMARY, "switches": [], "switch_ms": 0}))


def test_words_around_a_switch_keep_their_spaces(fake: FakeServer) -> None:
    """Without a terminal: no escape sequences, every lever on a line of its own, long text not broken."""
    fake.script = (token("One " * 20, "tier0"), *SCRIPT[1:])
    screen, out = plain_screen()
    for part in parts(fake):
        screen.show(part)
    first, second, third, fourth = out.getvalue().splitlines()
    assert first == "One " * 20
    assert second.startswith("⇆ tier0 → tier1")
    assert third == " two"
    assert fourth.startswith("[done")
    assert "\x1b" not in out.getvalue()


def test_rungs_look_different_in_a_terminal(fake: FakeServer) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, color_system="standard"), ["tier0", "tier1"])
    screen.show(AnswerToken("One", "tier0"))
    screen.show(AnswerToken("two", "tier1"))
    before, between = out.getvalue().split("One")
    assert before.startswith("\x1b[")
    assert before not in between.split("two")[0].removeprefix("\x1b[0m")


def test_a_model_cannot_command_the_terminal() -> None:
    assert printable("a\x1b[31mb\r\x07c\n\td é 🙂") == "a�[31mb��c\n\td é 🙂"
    out = io.StringIO()
    Screen(Console(file=out, force_terminal=True, color_system="standard")).show(
        AnswerToken("\x1b]0;x\x07", "tier0")
    )
    assert "\x1b]" not in out.getvalue()
    assert "[bold]" in _shown(AnswerToken("[bold]", "tier0"))


def _shown(part: Part) -> str:
    screen, out = plain_screen()
    screen.show(part)
    return out.getvalue()


ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def test_no_text_of_a_server_commands_the_terminal(fake: FakeServer) -> None:
    """Neither its refusals, nor its errors in a stream, nor the names that it gives to rungs, levers and ends."""
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, color_system=None), [ESCAPE])
    evil = {**SWITCH, "from": ESCAPE, "to": ESCAPE, "kind": ESCAPE}
    screen.show(Lever("switch", evil))
    screen.show(Lever("resume", {"rung": ESCAPE}))
    screen.show(AnswerSummary(ESCAPE, {**SUMMARY, "rungs": {ESCAPE: 1}}))
    screen.show(AnswerToken(ESCAPE, ESCAPE))
    for script in (({"error": {"message": ESCAPE, "type": "x"}},), ({"error": ESCAPE},)):
        fake.script = script
        with Client(fake.url) as client:
            Conversation(client, client.served(), screen, kind="batch", max_tokens=2).ask("?")
    assert "\x1b" not in out.getvalue()
    assert "\x07" not in out.getvalue()
    error = str(ServerError(f"a\n{ESCAPE}b" + "x" * 10_000))
    assert error.isprintable()
    assert len(error) < 2000


GOOD = [
    token("One", "tier0"),
    lever("switch", **SWITCH),
    lever("park", pressure={"budget_bytes": 1, "usage_bytes": 2}),
    LAST,
]
BAD = [None, 5, "x", [], {}, [1], {"a": 1}, True, 1e400, "\ud800"]


def _mutated(value: object) -> Iterator[object]:
    """Every value within a chunk, replaced or left out."""
    yield from BAD
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: other for name, other in value.items() if name != key}
            for changed in _mutated(inner):
                yield {**value, key: changed}
    if isinstance(value, list):
        for at, inner in enumerate(value):
            for changed in _mutated(inner):
                yield [*value[:at], changed, *value[at + 1 :]]


@pytest.mark.parametrize("good", GOOD, ids=["token", "switch", "park", "summary"])
def test_any_chunk_is_shown_or_is_an_error(good: dict[str, object]) -> None:
    screen, _ = plain_screen()
    shown = 0
    for chunk in _mutated(good):
        try:
            part = part_of(chunk)
        except ServerError:
            continue
        if part is not None:
            screen.show(part)
            shown += 1
    assert shown > 0


@pytest.mark.parametrize(
    "data", ["{", "nothing", "[" * 10_000, "{}", "[]", "5", '{"choices": 5}', '{"choices": [5]}']
)
def test_a_stream_that_is_none_is_an_error_in_a_line(fake: FakeServer, data: str) -> None:
    fake.script = (data, "[DONE]")
    with pytest.raises(ServerError, match="not one of molt serve"):
        parts(fake)


@pytest.mark.parametrize("props", [b"", b"{", b"[]", b"{}", b"\xff", b'{"rungs": [5], "model_alias": "x"}'])
def test_another_server_is_an_error_in_a_line(props: bytes) -> None:
    """As where another program listens at that port."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        return Response(props)

    class Other(FakeServer):
        def app(self, static: str | None) -> Starlette:
            return Starlette(routes=[Route("/{path:path}", answer)])

    with (
        serving(Other()) as other,
        Client(other.url) as client,
        pytest.raises(ServerError, match="not one of"),
    ):
        client.served()


def test_every_lever_has_a_form() -> None:
    assert all(part_of(lever(event, **SWITCH)) for event in LEVERS)


# --- conversations ---


def test_a_question_is_sent_with_what_came_before(fake: FakeServer) -> None:
    fake.script = SCRIPT
    screen, _ = plain_screen()
    with Client(fake.url) as client:
        conversation = Conversation(client, client.served(), screen, kind="batch", max_tokens=7)
        assert conversation.ask("first?")
        assert conversation.ask("second?")
    assert [body["messages"] for body in fake.requests] == [
        [{"role": "user", "content": "first?"}],
        [
            {"role": "user", "content": "first?"},
            {"role": "assistant", "content": "One two"},
            {"role": "user", "content": "second?"},
        ],
    ]
    assert fake.requests[1]["molt"] == {"kind": "batch"}
    assert fake.requests[1]["max_tokens"] == 7


def test_a_model_that_does_not_chat_goes_on_with_the_text() -> None:
    with serving(FakeServer(pace=0.0, chats=False)) as fake, Client(fake.url) as client:
        screen, out = plain_screen()
        conversation = Conversation(client, client.served(), screen, kind="foreground", max_tokens=3)
        assert conversation.ask("It was")
        assert conversation.ask("And then")
    assert [body["prompt"] for body in fake.requests] == [
        "It was",
        "It was\n\nAn operating system \n\nAnd then",
    ]
    assert out.getvalue().startswith("An operating system \n[done: 3 tokens")


def test_a_refused_question_is_forgotten(fake: FakeServer) -> None:
    screen, out = plain_screen()
    fake.refuse = (503, {})
    with Client(fake.url) as client:
        conversation = Conversation(client, client.served(), screen, kind="foreground", max_tokens=7)
        assert not conversation.ask("first?")
    assert conversation.messages == []
    assert "[failed: the queue is full]" in out.getvalue()


# --- the command ---


def molt_chat(server: FakeServer, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from molt.cli.main import main; main()",
            "chat",
            "--url",
            server.url,
            *options,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_the_command_answers_what_is_piped_in(fake: FakeServer) -> None:
    fake.script = SCRIPT
    out, errors = molt_chat(fake, "--batch").communicate("one?\n\n/new\ntwo?\n/quit\nthree?\n", timeout=60)
    assert errors == ""
    assert out.count("[done: 2 tokens") == 2
    assert [len(body["messages"]) for body in fake.requests] == [1, 1]
    assert {body["molt"]["kind"] for body in fake.requests} == {"batch"}


def test_the_command_without_a_server_ends_with_one_line() -> None:
    absent = FakeServer(url="http://127.0.0.1:9")
    process = molt_chat(absent)
    out, errors = process.communicate("one?\n", timeout=60)
    assert process.returncode == 1
    assert errors.splitlines() == ["molt: no server at http://127.0.0.1:9; start one with: molt serve"]
    assert out == ""


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    """The server sees the client go, and the next question is answered with what there was of the first answer."""
    with serving(FakeServer(pace=0.05)) as fake:
        process = molt_chat(fake, "--max-tokens", "1000")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("one?\n")
        process.stdin.flush()
        assert process.stdout.read(5) == "An op"
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 30
        while not fake.dropped and time.monotonic() < deadline:
            time.sleep(0.01)
        assert fake.dropped == ["chatcmpl-1"]
        fake.script = SCRIPT
        out, errors = process.communicate("two?\n", timeout=60)
    assert errors == ""
    assert "[stopped]" in out
    assert "[done: 2 tokens" in out
    asked = fake.requests[-1]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[1]["content"].startswith("An operating")
    assert process.returncode == 1
