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
        {"repetition_penalty": 1.0, "modalities": ["text"], "top_k": -1, "min_p": 0},
        dict.fromkeys(("n", "temperature", "top_p", "max_tokens", "stop", "seed", "stream", "tools")),
    ],
    ids=["numbers", "lists", "words", "newer", "nulls"],
)
def test_fields_that_ask_for_nothing_are_accepted(neutral: dict[str, Any]) -> None:
    parse(ChatRequest, body(**neutral))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", True), ("store", 0), ("top_logprobs", False), ("repetition_penalty", 1.1), ("modalities", ["audio"]),
        ("n", 2), ("n", 10**6), ("logprobs", True), ("top_logprobs", 3), ("presence_penalty", 0.5),
        ("frequency_penalty", -1), ("logit_bias", {"5": 1}), ("tools", [{}]), ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("top_k", -2), ("top_k", 2**31), ("top_k", 1.5), ("min_p", 1.1), ("min_p", -0.1),
        ("best_of", 2), ("functions", []),
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
    for prompt in (["a"], [[1, 2]]):
        (only,) = prompt
        assert parse(CompletionRequest, json.dumps({**TEXT, "prompt": prompt}).encode()).prompt == only
    for prompt in (
        ["a", "b"],
        [[1], [2]],
        [1.5],
        None,
        3,
        [],
        [""],
        [[]],
        "",
        [["a"]],
        [[[1]]],
        [True],
        ["a", 1],
        [1, "a"],
    ):
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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items, not 5"),
        ({"stop": ["a", ""]}, "stop[1]: String should have at least 1 character"),
        ({"stop": ["a", 5]}, "stop[1]: must be a string"),
        ({"stop": "x" * 257}, "stop: String should have at most 256 characters"),
        ({"stop": 5}, "stop: must be a string or a list"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "messages[0].content: must be a string or a list",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]: must be an object"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type: must be text: this server reads no images, sounds or files",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text"}]}]},
            "messages[0].content[1].text: Field required",
        ),
        ({"frequency_penalty": 0.5}, "frequency_penalty: must be 0: this server supports no other value"),
        ({"presence_penalty": -1}, "presence_penalty: must be 0: this server supports no other value"),
        ({"n": 2}, "n: must be 1: this server supports no other value"),
        ({"logprobs": True}, "logprobs: must be false: this server supports no other value"),
        ({"top_logprobs": 3}, "top_logprobs: must be 0: this server supports no other value"),
        ({"tools": [{"type": "function"}]}, "tools: must be empty: this server supports no other value"),
        ({"logit_bias": {"5": 1}}, "logit_bias: must be empty: this server supports no other value"),
        ({"temperature": "0"}, "temperature: must be a number"),
        ({"stream": "true"}, "stream: must be true or false"),
        ({"max_tokens": 1, "seed": "x", "stop": 5}, "seed: must be a whole number"),
    ],
)
def test_the_message_is_about_the_form_that_was_meant(more: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(ChatRequest, body(**more))
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (["a", "b"], "must be one prompt; these are 2, so ask for each in a request of its own"),
        ([[1], [2], [3]], "must be one prompt; these are 3, so ask for each in a request of its own"),
        ("", "must not be empty"),
        ([], "must not be empty"),
        ([""], "must not be empty"),
        (5, "must be a text, a list of tokens (whole numbers), or a list of one of these"),
        ([1, "a"], "must be a text, a list of tokens (whole numbers), or a list of one of these"),
        (None, "must be a text, a list of tokens (whole numbers), or a list of one of these"),
    ],
)
def test_a_prompt_is_refused_for_what_it_is(prompt: Any, reason: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(CompletionRequest, json.dumps({**TEXT, "prompt": prompt}).encode())
    assert (refused.value.param, refused.value.message) == ("prompt", f"prompt: {reason}")


def test_fields_of_common_clients_are_accepted_and_listed() -> None:
    given = {
        "user": "someone", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "parallel_tool_calls": True,
        "safety_identifier": "x", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "cache_prompt": True,
    }  # fmt: skip
    asked = parse(ChatRequest, body(**given, stream_options={"include_obfuscation": False}))
    assert sorted(asked.ignored) == sorted([*given, "stream_options.include_obfuscation"])
    named = [{"role": "user", "content": "x", "name": "someone"}]
    assert parse(ChatRequest, body(messages=named)).ignored == ["messages.name"]
    assert parse(ChatRequest, body()).ignored == []
    assert parse(ChatRequest, body(**dict.fromkeys(given))).ignored == []
    assert parse(CompletionRequest, json.dumps({**TEXT, "user": "x"}).encode()).ignored == ["user"]
