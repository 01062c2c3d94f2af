"""Clients as they are: the official ``openai`` package and ``curl``, unmodified, on ``molt serve --ladder pico``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from molt.jobs.replay import replay
from tests.server.local import ADMIN, events, of_event, text_of
from tests.server.process import Process

MESSAGES: Any = [{"role": "user", "content": "To create a branch and switch to it in one step, use"}]
ON = {"molt": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client(pico: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{pico.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def _roomy(pico: Process) -> Iterator[None]:
    yield
    pico.budget("90MiB")


def ask(client: openai.OpenAI, **more: Any) -> Any:
    given = {"model": "pico", "messages": MESSAGES, "max_tokens": 24, "extra_body": ON, **more}
    return client.chat.completions.create(**given)


def curl(pico: Process, *arguments: str, path: str = "/v1/chat/completions") -> str:
    done = subprocess.run(
        ["curl", "--silent", "--no-buffer", "--noproxy", "*", *arguments, f"{pico.url}{path}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_openai_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["pico"]
    assert client.models.retrieve("pico").owned_by == "molt"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("../../etc/passwd")


def test_openai_reads_an_answer(client: openai.OpenAI) -> None:
    answer = ask(client, seed=7)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 24
    assert answer.molt["rungs"] == {"tier0": 24}


def test_openai_reads_a_stream(client: openai.OpenAI) -> None:
    """The same seed gives the same text, streamed or not; Molt's own key is there too."""
    chunks = list(ask(client, seed=7, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask(client, seed=7).choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 24
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "length"]
    assert sum(chunk.molt["event"] == "token" for chunk in chunks if getattr(chunk, "molt", None)) == 24


def test_openai_streams_with_its_helper(client: openai.OpenAI) -> None:
    """The helper that puts chunks together is the strictest reader there is; it wants an answer that stops."""
    text = ask(client, seed=3).choices[0].message.content
    given: Any = {"model": "pico", "messages": MESSAGES, "max_tokens": 24, "seed": 3, "extra_body": ON}
    with client.chat.completions.stream(**given, stop=text[20:26]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(text[20:26])]


def test_openai_completes_a_text(client: openai.OpenAI) -> None:
    given: Any = {
        "model": "molt",
        "prompt": "To create a branch",
        "max_tokens": 12,
        "seed": 5,
        "extra_body": ON,
    }
    whole = client.completions.create(**given)
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**given, stream=True))
    assert whole.choices[0].text == streamed != ""


def test_seeds_and_temperature_decide_what_is_said(client: openai.OpenAI) -> None:
    said = [ask(client, **how).choices[0].message.content for how in (
        {"seed": 1}, {"seed": 1}, {"seed": 2}, {"temperature": 0, "seed": 1}, {"temperature": 0, "seed": 2},
        {"seed": 1, "top_p": 1e-9},
    )]  # fmt: skip
    assert said[0] == said[1] != said[2]
    assert said[3] == said[4] == said[5] != said[0]


def test_stop_strings_across_tokens(client: openai.OpenAI) -> None:
    """Cut out of the very answer, so that it is sure to come, and not at the edge of a token."""
    text = ask(client, seed=7, max_tokens=40).choices[0].message.content
    stop = text[21:29]
    answer = ask(client, seed=7, max_tokens=40, stop=[stop])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    streamed = ask(client, seed=7, max_tokens=40, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text[: text.index(stop)]


def test_errors_are_those_that_openai_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model"):
        ask(client, model="gpt-4")
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        ask(client, temperature=9)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="at most"):
        ask(client, max_tokens=10**9)
    with pytest.raises(openai.BadRequestError, match="tools"):
        ask(client, tools=[{"type": "function", "function": {"name": "f"}}])


def test_an_answer_goes_on_when_memory_is_taken_and_given_back(pico: Process, client: openai.OpenAI) -> None:
    """A large rung, a small one, a large one again: each switch is reported, and every token has its rung."""
    seen: list[Any] = []
    tokens = 0
    for chunk in ask(client, seed=7, max_tokens=1600, stream=True):
        seen.append(chunk.model_dump())
        molt = seen[-1].get("molt") or {}
        tokens += molt.get("event") == "token"
        if molt.get("event") == "token" and tokens == 8:
            pico.budget("100% of tier1 + 8MiB")
        if molt.get("event") == "switch" and molt["to"] == "tier1":
            pico.budget("90MiB")
    switches = of_event(seen, "switch")
    assert [(s["from"], s["to"]) for s in switches][:2] == [("tier0", "tier1"), ("tier1", "tier0")]
    summary = of_event(seen, "summary")[0]
    assert summary["tokens"] == sum(summary["rungs"].values()) == 1600
    assert min(summary["rungs"]["tier0"], summary["rungs"]["tier1"]) > 0
    assert summary["killed"] is False
    assert [s["ms"] for s in summary["switches"]] == [s["ms"] for s in switches]


def test_curl_reads_an_answer_and_a_stream(pico: Process) -> None:
    body = json.dumps({"model": "pico", "messages": MESSAGES, "max_tokens": 12, "seed": 7, **ON})
    post = ("--header", "content-type: application/json", "--data", body)
    whole = json.loads(curl(pico, *post))
    stream = ("--header", "content-type: application/json", "--data", body[:-1] + ', "stream": true}')
    chunks = list(events(iter(curl(pico, *stream).split("\n"))))
    assert chunks[-1] == "[DONE]"
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]


def test_curl_reads_the_rest(pico: Process) -> None:
    assert json.loads(curl(pico, path="/health")) == {"status": "ok"}
    assert json.loads(curl(pico, path="/props"))["model_alias"] == "pico"
    assert json.loads(curl(pico, path="/openapi.json"))["openapi"].startswith("3.")
    assert "molt_budget_bytes" in curl(pico, path="/metrics")
    assert curl(pico, path="/").lower().startswith("<!doctype html>")


def test_many_at_once_share_the_rungs(pico: Process, client: openai.OpenAI) -> None:
    """Eight answers at once are what they are alone: none uses the cache of another (and one model is loaded)."""
    seeds = range(8)
    alone = [ask(client, seed=seed, max_tokens=12).choices[0].message.content for seed in seeds]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda s: ask(client, seed=s, max_tokens=12).choices[0].message.content, seeds)
        )
    assert together == alone


def test_the_log_decides_again_as_it_did_and_has_no_text(pico: Process, client: openai.OpenAI) -> None:
    """``molt replay`` finds every decision of the server again; neither question nor answer is in its log."""
    answer = ask(client, seed=7).choices[0].message.content
    assert replay(pico.log).difference is None
    text = pico.log.read_text(encoding="utf-8")
    assert "TokensProduced" in text
    assert MESSAGES[0]["content"] not in text
    assert '"pieces":["' not in text
    assert not any(word in text for word in answer.split() if len(word) > 8)
    assert ADMIN not in text
