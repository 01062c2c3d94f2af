"""Bodies of requests: what is accepted, and how the rest is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from molt.server.request_bodies import (
    BadRequest,
    BudgetRequest,
    ChatRequest,
    CompletionRequest,
    FollowRequest,
    TraceRequest,
    parse,
)

SECRET = "my-secret-prompt"
CHAT: dict[str, Any] = {"model": "pico", "messages": [{"role": "user", "content": SECRET}]}
TEXT: dict[str, Any] = {"model": "pico", "prompt": SECRET}


def body(**more: Any) -> bytes:
    return json.dumps({**CHAT, **more}).encode()


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": False},
        {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "store": False},
        {"top_logprobs": 0, "user": "a name", "metadata": {"a": "b"}, "stream_options": None},
        dict.fromkeys(("n", "temperature", "top_p", "max_tokens", "stop", "seed", "stream", "tools")),
    ],
    ids=["numbers", "lists", "words", "nulls"],
)
def test_fields_that_ask_for_nothing_are_accepted(neutral: dict[str, Any]) -> None:
    parse(ChatRequest, body(**neutral))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", True), ("store", 0), ("store", True), ("top_logprobs", False),
        ("n", 2), ("n", 10**6), ("logprobs", True), ("top_logprobs", 3), ("presence_penalty", 0.5),
        ("frequency_penalty", -1), ("logit_bias", {"5": 1}), ("tools", [{}]), ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}), ("top_k", 5), ("best_of", 2), ("functions", []),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "9"), ("max_tokens", True),
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "0"), ("top_p", 0), ("top_p", 1.01),
        ("seed", 2**63), ("seed", 0.5), ("stop", ""), ("stop", ["a"] * 5), ("stop", [""]), ("stop", "x" * 257),
        ("stream", 1), ("stream", "true"), ("stream_options", {"x": 1}), ("messages", []), ("messages", "x"),
        ("messages", [{"role": "tool", "content": "x"}]), ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
        ("messages", [{"role": "user", "content": "x"}] * 1025), ("molt", {"kind": "vip"}), ("molt", {"x": 1}),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(field: str, value: Any) -> None:
    """The message begins with the field, and has nothing of the prompt."""
    with pytest.raises(BadRequest) as refused:
        parse(ChatRequest, body(**{field: value}))
    assert refused.value.param is not None
    assert refused.value.param.startswith(field)
    assert refused.value.message.startswith(field)
    assert SECRET not in refused.value.message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": "\\ud800"}',
        json.dumps(CHAT)[:-1].encode(),
    ],
    ids=["nothing", "open", "list", "null", "not utf-8", "deep", "half a character", "cut"],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(ChatRequest, raw)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    raw = body(temperature=0).replace(b'"temperature": 0', f'"temperature": {number}'.encode())
    with pytest.raises(BadRequest):
        parse(ChatRequest, raw)


def test_an_unknown_field_is_named_only_if_it_looks_like_a_name() -> None:
    with pytest.raises(BadRequest) as refused:
        parse(ChatRequest, body(**{"/etc/passwd " * 50: 1}))
    assert "passwd" not in refused.value.message


def test_a_text_may_be_tokens() -> None:
    assert parse(CompletionRequest, json.dumps({**TEXT, "prompt": [1, 2]}).encode()).prompt == [1, 2]
    for prompt in (["a", "b"], [[1]], [1.5], None, 3):
        with pytest.raises(BadRequest):
            parse(CompletionRequest, json.dumps({**TEXT, "prompt": prompt}).encode())


def test_parts_of_a_message_are_its_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    (message,) = parse(ChatRequest, body(messages=[{"role": "developer", "content": parts}])).messages
    assert message.turn == ("system", "one two")


@pytest.mark.parametrize("budget", ["40MiB", "1GB", "150% of tier0", "100% of tier1 + 2MiB", 1, 2**63 - 1])
def test_budgets(budget: Any) -> None:
    parse(BudgetRequest, json.dumps({"budget": budget}).encode())


@pytest.mark.parametrize(
    "raw",
    [
        "-1", "0", "NaN", "1e308", "5.0", "true", "null", "9223372036854775808", '"1gb"', '"40"', '"-1MiB"', '""',
        '{"budget": 5}', "[5]", '"99999999999999999999GiB"', '"150%"', '"0B"',
    ],
)  # fmt: skip
def test_what_is_no_budget(raw: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(BudgetRequest, f'{{"budget": {raw}}}'.encode())
    assert refused.value.param == "budget"
    with pytest.raises(BadRequest):
        parse(BudgetRequest, b"{}")


@pytest.mark.parametrize(
    ("model", "raw"),
    [
        (TraceRequest, {"steps": []}),
        (TraceRequest, {"steps": [{"at": 0, "budget": 5}]}),
        (TraceRequest, {"name": "../traces/sawtooth"}),
        (FollowRequest, {"source": "../x"}),
        (FollowRequest, {}),
    ],
)
def test_other_administration_is_checked_too(model: Any, raw: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse(model, json.dumps(raw).encode())
