"""The rules of a stream, chunk by chunk, on a server in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from molt.core.engine_protocol import EngineDied
from molt.live.live_world import LiveWorld
from molt.server.answering import Delivery
from molt.server.limits import Limits
from tests.server.local import ADMIN, Local, chat, events, of_event, running, streamed, text_of, wait_until

TEXT = {"model": "molt", "prompt": "To create a branch", "max_tokens": 16, "molt": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client(local: Local) -> Iterator[httpx2.Client]:
    with local.client() as client:
        yield client


def test_a_chat_comes_in_chunks(client: httpx2.Client) -> None:
    """Role first, one choice in every chunk, a finish reason on the last alone, whose delta is empty; then the end."""
    *chunks, end = streamed(client, chat())
    assert end == "[DONE]"
    assert {len(chunk["choices"]) for chunk in chunks} == {1}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert {choice["index"] for choice in choices} == {0}
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[-1]["delta"] == {}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert text_of(chunks) == "".join(f" w{n}" for n in range(16))
    assert not any("usage" in chunk for chunk in chunks)


def test_a_text_comes_in_chunks(client: httpx2.Client) -> None:
    *chunks, end = streamed(client, TEXT, "/v1/completions")
    assert end == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1]["choices"][0]["text"] == ""
    assert text_of(chunks) == "".join(f" w{n}" for n in range(16))


def test_the_usage_is_a_chunk_of_its_own_if_asked_for(client: httpx2.Client) -> None:
    """It has no choices, and all others say that theirs is null."""
    *chunks, usage, _ = streamed(client, chat(stream_options={"include_usage": True}))
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 16
    assert usage["usage"]["total_tokens"] == 16 + usage["usage"]["prompt_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks)


def test_an_answer_in_one_piece_says_the_same(client: httpx2.Client) -> None:
    whole = client.post("/v1/chat/completions", json=chat()).json()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["content"] == text_of(streamed(client, chat()))
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 16
    assert whole["molt"]["spans"] == [{"rung": "tier0", "text": whole["choices"][0]["message"]["content"]}]
    text = client.post("/v1/completions", json=TEXT).json()
    assert (text["object"], text["choices"][0]["text"]) == (
        "text_completion",
        "".join(f" w{n}" for n in range(16)),
    )


def test_every_token_names_its_rung(client: httpx2.Client) -> None:
    chunks = streamed(client, chat())
    tokens = of_event(chunks, "token")
    assert len(tokens) == 16
    assert {token["rung"] for token in tokens} == {"tier0"}
    assert [token["at_ms"] for token in tokens] == sorted(token["at_ms"] for token in tokens)
    (summary,) = of_event(chunks, "summary")
    assert (summary["tokens"], summary["rungs"], summary["killed"]) == (16, {"tier0": 16}, False)


@pytest.mark.parametrize("stop", ["w5", ["nothing", "5 w6"], "4 w5 w6 w"])
def test_a_stop_string_ends_the_answer(client: httpx2.Client, stop: str | list[str]) -> None:
    """Whether it is one token or several, nothing of it gets out, and the answer stops there."""
    text = "".join(f" w{n}" for n in range(16))
    stops = [stop] if isinstance(stop, str) else stop
    wanted = min((text.partition(one)[0] for one in stops), key=len)
    chunks = streamed(client, chat(stop=stop))
    assert text_of(chunks) == wanted
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    whole = client.post("/v1/chat/completions", json=chat(stop=stop)).json()
    assert whole["choices"][0]["message"]["content"] == wanted
    assert whole["choices"][0]["finish_reason"] == "stop"


def test_an_answer_that_stopped_has_left(local: Local, client: httpx2.Client) -> None:
    """A stop string is found by the server, which ends the generation; the engine knows nothing of it."""
    streamed(client, chat(stop="w2", max_tokens=1000))
    wait_until(lambda: not local.engine.holds())
    assert client.get("/molt/state").json()["tenants"] == []


def test_without_max_tokens_there_is_a_default(local: Local, client: httpx2.Client) -> None:
    body = chat()
    del body["max_tokens"]
    summary = of_event(streamed(client, body), "summary")[0]
    assert summary["tokens"] == local.bridge.limits.answer_tokens
    assert of_event(streamed(client, {**body, "max_completion_tokens": 3}), "summary")[0]["tokens"] == 3


def test_memory_that_is_taken_away_is_told_between_two_tokens(local: Local, client: httpx2.Client) -> None:
    """The switch comes as a chunk without text; tokens before it are of one rung, tokens after it of the other."""
    try:
        seen: list[Any] = []
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=400)
        ) as response:
            for chunk in events(response.iter_lines()):
                seen.append(chunk)
                if len(of_event(seen[-1:], "token")) and len(of_event(seen, "token")) == 8:
                    local.budget("20MiB")
    finally:
        local.budget(local.bridge.limits.body_bytes * 90)
    (switch,) = of_event(seen, "switch")
    kinds = [chunk["molt"]["event"] for chunk in seen[1:-1]]
    rungs = [chunk["molt"].get("rung") for chunk in seen[1:-1] if chunk["molt"]["event"] == "token"]
    at = sum(kind == "token" for kind in kinds[: kinds.index("switch")])
    assert (switch["from"], switch["to"], switch["kind"]) == ("tier0", "tier1", "project")
    assert set(rungs[:at]) == {"tier0"}
    assert set(rungs[at:]) == {"tier1"}
    assert switch["pressure"]["budget_bytes"] == 20 << 20
    assert switch["flops_saved"] > 0
    assert switch["predicted"]["ms"] > 0
    assert switch["predicted"]["kl"] > 0
    assert switch["measured"]["ms"] == switch["ms"] > 0
    summary = of_event(seen, "summary")[0]
    assert summary["rungs"] == {"tier0": at, "tier1": 400 - at}
    assert summary["switch_ms"] == switch["ms"]
    assert text_of(seen) == "".join(f" w{n}" for n in range(400))


def test_a_budget_for_no_rung_parks_and_the_answer_is_whole_in_the_end(
    local: Local, client: httpx2.Client
) -> None:
    try:
        seen: list[Any] = []
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=200)
        ) as response:
            for chunk in events(response.iter_lines()):
                seen.append(chunk)
                if of_event(seen[-1:], "token") and len(of_event(seen, "token")) == 8:
                    local.budget(1)
                if of_event(seen[-1:], "park"):
                    assert client.get("/molt/state").json()["tenants"][0]["phase"] == "parked"
                    local.budget("90MiB")
    finally:
        local.budget("90MiB")
    assert of_event(seen, "park")
    assert of_event(seen, "resume")
    assert text_of(seen) == "".join(f" w{n}" for n in range(200))
    assert of_event(seen, "summary")[0]["killed"] is False


def test_batch_gives_way_to_who_waits() -> None:
    """With room for one only, the second waits, and says so; a person goes first."""
    with running() as local, local.client() as client:
        local.budget("100% of tier2 + 2MiB")  # a cache of 700 cells takes 1.4MiB
        done: list[str] = []

        def ask(kind: str) -> None:
            body = chat(max_tokens=700, stream=True)
            with client.stream(
                "POST", "/v1/chat/completions", json={**body, "molt": {"kind": kind, "ignore_eos": True}}
            ) as answer:
                chunks = list(events(answer.iter_lines()))
            done.append(kind)
            kinds[kind] = chunks

        kinds: dict[str, list[Any]] = {}
        threads = []
        for kind in ("batch", "foreground"):
            threads.append(threading.Thread(target=ask, args=(kind,)))
            threads[-1].start()
            wait_until(lambda: len(client.get("/molt/state").json()["tenants"]) == len(threads))
        for thread in threads:
            thread.join(60)
    assert done == ["foreground", "batch"]
    assert of_event(kinds["batch"], "park") or of_event(kinds["foreground"], "defer")


def test_too_many_are_refused_with_a_time_to_try_again() -> None:
    with running(pace=1.0, limits=Limits(answers=1)) as local, local.client() as client:
        body = chat(stream=True, max_tokens=400)
        with client.stream("POST", "/v1/chat/completions", json=body) as first:
            source = events(first.iter_lines())  # kept: a stream without a reference is closed
            next(source)
            refused = client.post("/v1/chat/completions", json=chat())
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "unavailable_error"
            assert "molt_requests_refused_total 1.0" in client.get("/metrics").text
        wait_until(lambda: client.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200)


def test_an_answer_takes_no_longer_than_it_may() -> None:
    with running(pace=1.0, limits=Limits(answer_s=0.3)) as local, local.client() as client:
        local.budget(1)  # no tenant can run
        *_, broken, end = streamed(client, chat())
        assert (broken["error"]["code"], end) == ("timeout", "[DONE]")
        assert client.post("/v1/chat/completions", json=chat()).status_code == 504
        wait_until(lambda: client.get("/molt/state").json()["tenants"] == [])


def test_observers_see_what_happens_and_no_text(local: Local, client: httpx2.Client) -> None:
    """The state first; then memory, decisions, tenants and tokens, by id."""
    secret = "an-uncommon-question"
    seen: list[Any] = []
    with client.stream("GET", "/molt/events") as response:
        source = events(response.iter_lines())
        seen.append(next(source))
        chunks = streamed(client, chat(secret))
        for event in source:
            seen.append(event)
            if event["type"] == "tenant" and event.get("gone"):
                break
    assert seen[0]["type"] == "state"
    assert {"tenant", "decision", "memory", "token"} <= {event["type"] for event in seen}
    assert seen[-1]["id"] == chunks[0]["id"]
    assert (seen[-1]["gone"], seen[-1]["tokens"]) == ("length", 16)
    assert secret not in str(seen)
    assert " w3" not in str(seen)


def test_observers_are_not_too_many() -> None:
    with running(limits=Limits(observers=1)) as local, local.client() as client:
        with client.stream("GET", "/molt/events") as response:
            source = events(response.iter_lines())
            next(source)
            assert client.get("/molt/events").status_code == 503
        wait_until(lambda: _status(client, "/molt/events") == 200)


def _status(client: httpx2.Client, path: str) -> int:
    with client.stream("GET", path) as response:
        return response.status_code


def test_the_state_says_what_is_held(local: Local, client: httpx2.Client) -> None:
    streamed(client, chat())
    wait_until(lambda: client.get("/molt/state").json()["parts"]["kv"] == {})
    state = client.get("/molt/state").json()
    assert state["ladder"] == "pico"
    resident = {rung["name"]: rung["resident_bytes"] for rung in state["rungs"] if rung["resident"]}
    assert state["usage_bytes"] == sum(resident.values()) > 0


def test_metrics_count(client: httpx2.Client) -> None:
    before = _metric(client, 'molt_generation_tokens_total{rung="tier0"}')
    firsts = _metric(client, "molt_time_to_first_token_seconds_count")
    gaps = _metric(client, "molt_inter_token_latency_seconds_count")
    streamed(client, chat(max_tokens=5))
    assert _metric(client, 'molt_generation_tokens_total{rung="tier0"}') == before + 5
    assert _metric(client, "molt_time_to_first_token_seconds_count") == firsts + 1
    assert _metric(client, "molt_inter_token_latency_seconds_count") == gaps + 4
    assert _metric(client, "molt_kills_total") == 0
    assert _metric(client, "molt_requests_running") == 0


def _metric(client: httpx2.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def test_a_trace_is_replayed(local: Local, client: httpx2.Client) -> None:
    """Steps, or a trace that ships; a budget by hand ends it."""
    admin = {"authorization": "Bearer admin-token-of-the-tests"}
    steps = [{"at": "0s", "budget": "50MiB"}, {"at": "100ms", "budget": "60MiB"}]
    try:
        assert client.post("/admin/trace", json={"steps": steps}, headers=admin).json()["source"] == "trace"
        wait_until(lambda: client.get("/molt/state").json()["budget_bytes"] == 50 << 20)
        wait_until(lambda: client.get("/molt/state").json()["budget_bytes"] == 60 << 20)
        assert (
            client.post("/admin/trace", json={"name": "sawtooth"}, headers=admin).json()["source"] == "trace"
        )
        assert local.budget("90MiB").json()["source"] == "manual"
        for wrong in ({"steps": steps[1:]}, {"name": "sawtoth"}, {}, {"steps": steps, "name": "sawtooth"}):
            refused = client.post("/admin/trace", json=wrong, headers=admin)
            assert refused.status_code == 422, wrong
        unknown = client.post("/admin/budget", json={"budget": "150% of tier9"}, headers=admin)
        assert "did you mean" in unknown.json()["error"]["message"]
    finally:
        local.budget("90MiB")


def test_the_machine_is_followed(local: Local, client: httpx2.Client) -> None:
    """What the system calls available becomes the budget; an unknown signal changes nothing."""
    admin = {"authorization": "Bearer admin-token-of-the-tests"}
    try:
        asked = client.post("/admin/follow", json={"source": "memavailable"}, headers=admin)
        assert asked.json()["source"] == "memavailable"
        wait_until(lambda: client.get("/molt/state").json()["budget_bytes"] > 1 << 30)
        refused = client.post("/admin/follow", json={"source": "memavailble"}, headers=admin)
        assert (refused.status_code, "did you mean" in refused.text) == (422, True)
        assert (
            client.post("/admin/follow", json={"source": "manual"}, headers=admin).json()["source"]
            == "manual"
        )
    finally:
        local.budget("90MiB")


def test_health_says_when_there_is_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is a 503 with llama-server's words, for answers too; then everything is there."""
    gate = threading.Event()
    lived = LiveWorld.run

    def late(world: LiveWorld) -> None:
        gate.wait(20)
        lived(world)

    monkeypatch.setattr(LiveWorld, "run", late)
    seen: list[Any] = []

    def look() -> None:
        while not urls:
            time.sleep(0.01)
        with httpx2.Client(base_url=urls[0], trust_env=False) as client:
            seen.append(client.get("/health"))
            seen.append(client.post("/v1/chat/completions", json=chat()))
        gate.set()

    urls: list[str] = []
    looker = threading.Thread(target=look)
    looker.start()
    with running(on_url=urls.append) as local, local.client() as client:
        looker.join(20)
        assert client.get("/health").json() == {"status": "ok"}
    wanted = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error", "param": None}}
    assert [(r.status_code, r.json()) for r in seen] == [(503, wanted)] * 2
    assert "retry-after" in seen[1].headers


def test_a_world_that_fails_ends_the_answers_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own: the client gets a short error, and the server does not pretend to live."""
    with running() as local, local.client() as client:
        monkeypatch.setattr(local.engine, "decode", lambda *a: 1 / 0)
        *_, broken, end = streamed(client, chat())
        assert (broken["error"]["code"], end) == ("engine_failed", "[DONE]")
        assert "division" not in str(broken)
        assert isinstance(local.bridge.failure, ZeroDivisionError)


def test_the_client_of_a_tenant_that_the_world_gives_up_gets_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer at which every engine fails ends with a word, and the next one is served."""
    with running() as local, local.client() as client:
        decode = local.engine.decode

        def fail(tenant: str, count: int, heal: int = 0) -> Any:
            raise EngineDied("it ended during decode: exit status 1", 1, tenant)

        monkeypatch.setattr(local.engine, "decode", fail)
        *_, broken, end = streamed(client, chat())
        assert (broken["error"]["code"], end) == ("engine_failed", "[DONE]")
        assert local.bridge.kills == 3
        monkeypatch.setattr(local.engine, "decode", decode)
        assert streamed(client, chat())[-1] == "[DONE]"
        assert local.bridge.waiting() == local.bridge.running() == 0


def test_a_budget_that_is_set_while_the_model_loads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set before the world was there, it is the first call that it receives."""
    opened = LiveWorld.__init__

    def slow(world: LiveWorld, *arguments: Any, **options: Any) -> None:
        time.sleep(0.5)
        opened(world, *arguments, **options)

    monkeypatch.setattr(LiveWorld, "__init__", slow)
    answers: list[httpx2.Response] = []

    def cut(url: str) -> None:
        def post() -> None:
            with httpx2.Client(
                base_url=url, headers={"authorization": f"Bearer {ADMIN}"}, trust_env=False
            ) as client:
                answers.append(client.post("/admin/budget", json={"budget": "20MiB"}))

        threading.Thread(target=post).start()

    with running(on_url=cut) as local, local.client() as client:
        wait_until(lambda: bool(answers))
        assert client.get("/molt/state").json()["budget_bytes"] == 20 << 20


def test_an_answer_that_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that leaves more records unread than the limit loses its answer; the server goes on."""
    with running(limits=Limits(backlog=4)) as local, local.client() as client:
        next_record = Delivery._next_record

        async def late(delivery: Delivery, deadline_s: float) -> Any:
            await asyncio.sleep(0.05)
            return await next_record(delivery, deadline_s)

        monkeypatch.setattr(Delivery, "_next_record", late)
        *_, broken, end = streamed(client, chat(max_tokens=200))
        assert (broken["error"]["code"], end) == ("too_slow", "[DONE]")
        wait_until(lambda: not local.engine.holds())
        monkeypatch.undo()
        assert text_of(streamed(client, chat(max_tokens=2))) == " w0 w1"
