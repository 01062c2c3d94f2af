"""A server in this process: its own thread and event loop, the live world, and an engine with a scripted text."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import httpx2
import pytest

from molt.core.costs import CostModel
from molt.core.engine_protocol import Decoded, EngineKind
from molt.core.ladder import Ladder
from molt.formats.log import Log
from molt.jobs.plugins import make_policy
from molt.jobs.profile import load_profile
from molt.live.live_world import LiveWorld
from molt.live.paced import Paced
from molt.models.ladder_file import LadderSpec, resolve
from molt.server.access import Keys, allowed_hosts
from molt.server.admin import Budgeting
from molt.server.app import application
from molt.server.bridge import Bridge
from molt.server.command import DiscreetLog, default_budget, header, service
from molt.server.limits import Limits
from molt.server.listen import listen_at, listen_on, serve
from molt.server.prometheus import Metrics

ADMIN = "admin-token-of-the-tests"
night = pytest.mark.skipif(
    os.environ.get("MOLT_HYPOTHESIS") != "night", reason="in full with `make night` only"
)
"""For the long form of a check whose short form is in the default suite."""

Says = Callable[[int], str]
"""The piece of text of the n-th token of any answer."""


class Talker(Paced):
    """Takes ``pace`` times as long as the profile says, and writes a scripted text."""

    def __init__(self, ladder: Ladder, costs: CostModel, says: Says, pace: float) -> None:
        super().__init__(ladder, costs, lambda ns: time.sleep(pace * ns / 1e9))
        self._says = says
        self.decoded = 0
        self.calls: list[str] = []

    def decode(self, tenant: str, count: int, heal: int = 0) -> Decoded:
        before = self._generations[tenant].produced
        made = super().decode(tenant, count, heal)
        self.decoded += made.count
        return replace(made, pieces=tuple(self._says(before + i) for i in range(made.count)))

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        super().prefill(tenant, tokens, chunk, within_ns)
        self.calls.append(f"read {tokens}")

    def holds(self) -> set[str]:
        """Tenants with a cache."""
        return set(self._generations)


@dataclass
class Local:
    """A server that runs; ``engine`` is what it answers with."""

    url: str
    bridge: Bridge
    engine: Talker
    log: TextIO
    spec: LadderSpec = field(repr=False)

    def client(self, **options: Any) -> httpx2.Client:
        """A client that gives up rather than hang."""
        return httpx2.Client(base_url=self.url, timeout=20, trust_env=False, **options)

    def budget(self, budget: int | str, token: str = ADMIN) -> httpx2.Response:
        """Set the budget."""
        with self.client(headers={"authorization": f"Bearer {token}"}) as client:
            return client.post("/admin/budget", json={"budget": budget})


@contextmanager
def running(
    *,
    says: Says = lambda n: f" w{n}",
    pace: float = 0.2,
    limits: Limits | None = None,
    keys: Keys | None = None,
    policy: str = "molt",
    log_text: bool = False,
    on_url: Callable[[str], None] = lambda url: None,
    journal: TextIO | None = None,
    admin_socket: Path | None = None,
    strict: bool = False,
) -> Iterator[Local]:
    """A server until the context ends; then everything that it was is gone."""
    spec = resolve("pico")
    costs = load_profile("pico", spec.ladder)
    chosen = make_policy(policy, {})
    engine = Talker(spec.ladder, costs, says, pace)
    journal = journal or io.StringIO()
    log = (Log if log_text else DiscreetLog)(
        journal, header(spec, costs, chosen, policy, EngineKind.MODELLED)
    )
    begin_bytes = default_budget(spec.ladder)
    bridge = Bridge(
        spec.ladder,
        lambda on_record, budget_bytes: LiveWorld(
            spec.ladder, costs, chosen, engine, log, budget_bytes=budget_bytes, on_record=on_record
        ),
        limits or Limits(),
        Metrics(),
        budget_bytes=begin_bytes,
    )
    sock = listen_on("127.0.0.1", 0)
    sockets = [sock] if admin_socket is None else [sock, listen_at(admin_socket)]
    port = sock.getsockname()[1]
    app = application(
        service(bridge, spec, Budgeting(bridge, begin_bytes), chosen, strict=strict),
        allowed_hosts("127.0.0.1", port),
        keys or Keys(None, ADMIN),
    )
    begun = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await serve(bridge, app, sockets, started=begun.set)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    begun.wait(10)
    local = Local(f"http://127.0.0.1:{port}", bridge, engine, journal, spec)
    on_url(local.url)
    try:
        wait_until(lambda: is_healthy(local.url))
        yield local
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loops[0].call_soon_threadsafe(bridge.end_server)
        thread.join(10)
        assert not thread.is_alive(), "the server did not end"


def is_healthy(url: str) -> bool:
    """Whether answers can be had."""
    try:
        return httpx2.get(f"{url}/health", trust_env=False, timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


def wait_until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for something that must come about."""
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, "it did not come about"
        time.sleep(0.01)


def chat(content: str = "To create a branch", **more: Any) -> dict[str, Any]:
    """The body of a chat that goes on to ``max_tokens``."""
    body = {"model": "pico", "messages": [{"role": "user", "content": content}], "max_tokens": 16}
    return {**body, "molt": {"ignore_eos": True}, **more}


def events(lines: Iterator[str]) -> Iterator[Mapping[str, Any] | str]:
    """The chunks of a stream, and ``[DONE]``; whatever else a stream may not have is an error."""
    for line in lines:
        if line:
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def streamed(client: httpx2.Client, body: Mapping[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    """All events of an answer."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return list(events(response.iter_lines()))


def text_of(chunks: list[Any]) -> str:
    """What a client puts together."""
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in chunk.get("choices", ())]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


def of_event(chunks: list[Any], event: str) -> list[Mapping[str, Any]]:
    """What chunks with that event say."""
    found = [chunk["molt"] for chunk in chunks if chunk != "[DONE]" and "molt" in chunk]
    return [molt for molt in found if molt["event"] == event]
