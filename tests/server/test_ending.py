"""How a server ends, and how it outlives its engine: checks 19 and 20 of ``docs/reference/server-checks.md``."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from molt.formats.log import read
from tests.server.local import chat, events, of_event, streamed, text_of, wait_until
from tests.server.process import Process, started

ENDS_WITHIN_S = 10.0
"""Twice what is promised: what is measured here is whether it ends at all, on a machine that does other things too."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    """A server whose engine takes its time and says nothing: it is there at once."""
    with started(tmp_path, "--engine", "modelled") as server:
        yield server


def left_behind(server: Process, children: list[psutil.Process]) -> list[str]:
    """Processes and files that outlived a server."""
    _, alive = psutil.wait_procs(children, timeout=5)
    return [str(one) for one in alive] + os.listdir(server.spill)


def asking(server: Process, seen: list[Any], **more: Any) -> threading.Thread:
    """Ask, and collect what comes in another thread."""

    def ask() -> None:
        with (
            server.client() as client,
            client.stream("POST", "/v1/chat/completions", json=chat(stream=True, **more)) as response,
        ):
            seen.extend(events(response.iter_lines()))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_19_idle(server: Process) -> None:
    children = server.children()
    assert children
    assert server.end(signal.SIGTERM, within_s=ENDS_WITHIN_S) == 0
    assert left_behind(server, children) == []
    assert read(server.log)[1][-1]["kind"] == "end"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_19_in_the_middle_of_answers(server: Process, number: signal.Signals) -> None:
    """Each ends with an error and ``[DONE]``; one in one piece, with a 503."""
    children = server.children()
    seen: list[list[Any]] = [[], []]
    threads = [asking(server, one, max_tokens=1500) for one in seen]
    refused: list[httpx2.Response] = []

    def whole() -> None:
        with server.client() as client:
            refused.append(client.post("/v1/chat/completions", json=chat(max_tokens=1500)))

    threads.append(threading.Thread(target=whole))
    threads[-1].start()
    with server.client() as client:
        wait_until(
            lambda: [t["tokens"] > 3 for t in client.get("/molt/state").json()["tenants"]] == [True] * 3
        )
    assert server.end(number, within_s=ENDS_WITHIN_S) == 0
    for thread in threads:
        thread.join(10)
    for chunks in seen:
        assert chunks[-1] == "[DONE]"
        assert chunks[-2]["error"]["code"] == "shutting_down"
        assert not any(choice["finish_reason"] for c in chunks[:-2] for choice in c["choices"])
    assert refused[0].status_code == 503
    assert left_behind(server, children) == []


def test_19_in_the_middle_of_a_switch(server: Process) -> None:
    children = server.children()
    seen: list[Any] = []
    thread = asking(server, seen, max_tokens=1500)
    with server.client() as client:
        wait_until(lambda: any(t["tokens"] > 8 for t in client.get("/molt/state").json()["tenants"]))
    server.budget("100% of tier1 + 4MiB")
    assert server.end(signal.SIGTERM, within_s=ENDS_WITHIN_S) == 0
    thread.join(10)
    assert seen[-1] == "[DONE]"
    assert left_behind(server, children) == []


def test_19_before_the_engine_is_there(tmp_path: Path) -> None:
    with started(tmp_path, healthy=False) as server:
        wait_until(lambda: len(server.said) > 1, 60)
        wait_until(lambda: bool(server.children()))
        children = server.children()
        assert server.end(signal.SIGTERM, within_s=ENDS_WITHIN_S) == 0
        assert left_behind(server, children) == []


def test_19_a_second_signal_ends_at_once(server: Process) -> None:
    """The engine hangs, so that the first signal alone would have to wait."""
    (engine,) = server.children()
    seen: list[Any] = []
    thread = asking(server, seen, max_tokens=1500)
    with server.client() as client:
        wait_until(lambda: any(t["tokens"] for t in client.get("/molt/state").json()["tenants"]))
    engine.suspend()
    server.process.send_signal(signal.SIGTERM)
    with server.client() as client:
        wait_until(lambda: _is_ending(client))
    status = server.end(signal.SIGTERM, within_s=2)
    thread.join(10)
    assert status == 1
    assert left_behind(server, [engine]) == []


def _is_ending(client: httpx2.Client) -> bool:
    try:
        return client.get("/health").status_code == 503
    except httpx2.TransportError:
        return True


def test_20_the_engine_is_killed(server: Process) -> None:
    """The client of a stream gets an error; an answer of which nothing was sent yet begins anew; and the next request
    is answered."""
    (engine,) = server.children()
    seen: list[Any] = []
    thread = asking(server, seen, max_tokens=1000)
    whole: list[Any] = []

    def ask_whole() -> None:
        with server.client() as client:
            whole.append(client.post("/v1/chat/completions", json=chat(max_tokens=60)).json())

    other = threading.Thread(target=ask_whole)
    with server.client() as client:
        wait_until(lambda: any(t["tokens"] > 3 for t in client.get("/molt/state").json()["tenants"]))
        other.start()
        wait_until(
            lambda: [t["phase"] for t in client.get("/molt/state").json()["tenants"]] == ["active"] * 2
        )
        engine.send_signal(signal.SIGKILL)
        thread.join(10)
        assert seen[-1] == "[DONE]"
        assert seen[-2]["error"]["code"] == "killed"
        other.join(60)
        assert whole[0]["usage"]["completion_tokens"] == 60
        assert whole[0]["molt"]["attempts"] == 2
        assert whole[0]["molt"]["killed"] is True
        assert whole[0]["molt"]["events"]["restarted"] == 1
        assert of_event(streamed(client, chat()), "summary")[0]["killed"] is False
        assert client.get("/molt/state").json()["kills"] == 1
        assert "molt_kills_total 1.0" in client.get("/metrics").text
    assert server.end(signal.SIGTERM, within_s=ENDS_WITHIN_S) == 0


def test_20_a_stream_without_any_token_yet_begins_anew(server: Process) -> None:
    """Killed before its first token, an answer says so, and comes."""
    (engine,) = server.children()
    server.budget(1)  # it has to wait
    seen: list[Any] = []
    thread = asking(server, seen, max_tokens=5)
    with server.client() as client:
        wait_until(lambda: len(client.get("/molt/state").json()["tenants"]) == 1)
        engine.kill()
        wait_until(lambda: client.get("/molt/state").json()["kills"] == 1)
        server.budget("90MiB")
        thread.join(60)
    assert seen[-1] == "[DONE]"
    assert of_event(seen, "summary")[0]["tokens"] == 5
    assert text_of(seen) == ""


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("mine\n")
    with started(tmp_path, "--engine", "modelled", healthy=False) as server:
        assert server.process.wait(60) == 2
    assert "File exists" in "".join(server.said)
    assert (tmp_path / "events.jsonl").read_text() == "mine\n"


def test_a_port_that_is_taken_is_named(tmp_path: Path, server: Process) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with started(other, "--engine", "modelled", "--port", str(server.port), healthy=False) as second:
        assert second.process.wait(60) == 2
    assert f"--port {server.port}" in "".join(second.said)
    assert json.dumps(second.said).count("molt: ") == 1
