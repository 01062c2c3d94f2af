"""What common clients send: honoured, or ignored and listed, or refused where the server is strict."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from molt.core.engine_protocol import Request
from tests.server.local import Local, chat, of_event, running, streamed

IGNORED = {"user": "someone", "parallel_tool_calls": True, "service_tier": "auto"}


def test_ignored_fields_are_listed_whole_and_streamed(local: Local) -> None:
    with local.client() as client:
        whole = client.post("/v1/chat/completions", json=chat(**IGNORED)).json()
        assert sorted(whole["molt"]["ignored"]) == sorted(IGNORED)
        chunks = streamed(client, chat(**IGNORED, stream_options={"include_obfuscation": False}))
        (summary,) = of_event(chunks, "summary")
        assert sorted(summary["ignored"]) == sorted([*IGNORED, "stream_options.include_obfuscation"])
        assert client.post("/v1/chat/completions", json=chat()).json()["molt"]["ignored"] == []


def test_a_strict_server_refuses_what_it_would_ignore() -> None:
    with running(strict=True) as local, local.client() as client:
        for field, value in IGNORED.items():
            refused = client.post("/v1/chat/completions", json=chat(**{field: value}))
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == field
        assert client.post("/v1/chat/completions", json=chat(top_k=3)).status_code == 200


def test_the_sampler_receives_top_k_and_min_p(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []
    admit = local.engine.admit

    def noting(tenant: str, request: Request, rung: str, capacity: int) -> None:
        asked.append(request)
        admit(tenant, request, rung, capacity)

    monkeypatch.setattr(local.engine, "admit", noting)
    with local.client() as client:
        for more in ({"top_k": 5, "min_p": 0.25}, {"top_k": -1}, {}):
            assert client.post("/v1/chat/completions", json=chat(**more)).status_code == 200
    assert [(one.top_k, one.min_p) for one in asked] == [(5, 0.25), (0, 0.0), (0, 0.0)]


@pytest.mark.parametrize("prompt", [["To create a branch"], [[5, 6, 7]], "To create a branch", [5, 6, 7]])
def test_a_list_of_one_prompt_is_that_prompt(local: Local, prompt: Any) -> None:
    with local.client() as client:
        body = {"model": "pico", "prompt": prompt, "max_tokens": 3, "molt": {"ignore_eos": True}}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "tree " * 3000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 900_000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**6}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 10**6},
        ),
        ("/v1/completions", {"prompt": [5] * 5000}),
        ("/v1/completions", {"prompt": "tree " * 3000}),
    ],
    ids=["tokenised", "not tokenised", "max_tokens", "max_completion_tokens", "tokens", "text"],
)
def test_what_does_not_fit_into_the_context_has_the_code_for_that(
    local: Local, path: str, more: dict[str, Any]
) -> None:
    with local.client() as client:
        refused: httpx2.Response = client.post(path, json={"model": "pico", **more})
    assert refused.status_code == 400
    assert json.loads(refused.text)["error"]["code"] == "context_length_exceeded"


def test_other_mistakes_have_no_such_code(local: Local) -> None:
    with local.client() as client:
        refused = client.post("/v1/completions", json={"model": "pico", "prompt": [10**9]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, None)
