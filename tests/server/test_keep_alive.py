"""A stream that has nothing to say for a while says so: proxies and clients take silence for the end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest

from molt.client.http_client import AnswerSummary, Client
from molt.server.limits import Limits
from tests.server.local import Local, chat, running, text_of

OFTEN = replace(Limits(), ping_s=0.05)
PING = ": ping"


def lines_of(local: Local, body: dict[str, Any], path: str, *, until: int) -> list[str]:
    """The lines of an answer that is parked in its middle until ``until`` pings came."""
    lines: list[str] = []
    with local.client() as client, client.stream("POST", path, json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            lines.append(line)
            if len(lines) == 12:
                local.budget(1)
            if lines.count(PING) == until:
                local.budget("90MiB")
    return lines


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_parked_answer_sends_comments(path: str) -> None:
    body = chat(max_tokens=30)
    if path == "/v1/completions":
        body["prompt"] = body.pop("messages")[0]["content"]
    with running(limits=OFTEN) as local:
        lines = lines_of(local, body, path, until=5)
    assert lines.count(PING) >= 5
    assert all(line in ("", PING) or line.startswith("data: ") for line in lines)
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert text_of(chunks) == "".join(f" w{n}" for n in range(30))
    assert lines[lines.index(PING) + 1] == "", "a comment is an event of its own"


def test_an_answer_that_waits_for_its_first_token_sends_comments() -> None:
    with running(limits=OFTEN) as local, local.client() as client:
        local.budget(1)
        pings = 0
        with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=3)) as response:
            for line in response.iter_lines():
                pings += line == PING
                if pings == 3:
                    local.budget("90MiB")
        assert pings >= 3


def test_the_events_of_an_idle_server_send_comments() -> None:
    with (
        running(limits=OFTEN) as local,
        local.client() as client,
        client.stream("GET", "/molt/events") as feed,
    ):
        assert PING in feed.iter_lines()


def test_clients_pass_comments_by() -> None:
    """OpenAI's own, and Molt's."""
    with running(limits=replace(OFTEN, ping_s=0.001), pace=1.0) as local:
        theirs = openai.OpenAI(base_url=f"{local.url}/v1", api_key="none")
        stream = theirs.chat.completions.create(
            model="pico", messages=[{"role": "user", "content": "x"}], max_tokens=5, stream=True,
            extra_body={"molt": {"ignore_eos": True}},
        )  # fmt: skip
        assert "".join(c.choices[0].delta.content or "" for c in stream) == " w0 w1 w2 w3 w4"
        with Client(local.url) as ours:
            messages = [{"role": "user", "content": "x"}]
            *_, last = ours.answer(ours.served(), messages, kind="foreground", max_tokens=5)
            assert isinstance(last, AnswerSummary)


def test_who_goes_away_while_nothing_is_said_frees_what_it_held() -> None:
    with running(limits=OFTEN) as local, local.client() as client:
        local.budget(1)
        with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=3)) as response:
            assert PING in response.iter_lines()
        with local.client() as other:
            while other.get("/molt/state").json()["tenants"]:
                pass
