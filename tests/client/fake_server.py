"""A server that speaks the wire of ``molt serve`` from made-up facts, for tests of its clients and of its page.

It has no model: a word is written every ``pace`` seconds by the largest rung that fits the budget, and everything that
happens to an answer is decided between two words. ``script`` replaces that by chunks sent as they are.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from molt.units import parse_size

MIB = 2**20
LADDER = (("tier0", 24 * MIB), ("tier1", 6 * MIB), ("tier2", 2 * MIB))
CACHE = MIB
BASE = MIB // 2
ADMIN = "open-sesame"
ANSWER = (
    "An operating system reclaims memory from background processes to free up resources for whatever the person is "
    "looking at. <b>Nobody</b> is asked; a process that holds too much is ended, and with it the sentence it was in."
)
WORDS = [f"{word} " for word in ANSWER.split()]
SWITCH = {
    "from": "tier0",
    "to": "tier1",
    "kind": "project",
    "ms": 260.4,
    "flops_saved": 0.79,
    "pressure": {"budget_bytes": 100, "usage_bytes": 81},
}
"""What a stream says of a switch."""
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass
class FakeServer:
    """What it believes, and what was asked of it."""

    pace: float = 0.02
    chats: bool = True
    script: Sequence[Mapping[str, Any] | str] | None = None
    key: str | None = None
    refuse: tuple[int, dict[str, str]] | None = None
    url: str = ""
    budget: int = 40 * MIB
    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    followed: str = "manual"
    dropped: list[str] = field(default_factory=list)
    traces: list[Any] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def at_ms(self) -> int:
        return int(1000 * (time.monotonic() - self.started))

    def rung(self) -> str | None:
        """The largest that fits beside the caches."""
        room = self.budget - BASE - CACHE * max(1, len(self.tenants))
        return next((name for name, size in LADDER if size <= room), None)

    def parts(self) -> dict[str, dict[str, int]]:
        used = {tenant["rung"] for tenant in self.tenants.values()} - {None}
        return {
            "weights": {name: size for name, size in LADDER if name in used},
            "scratch": {"forward": BASE},
            "kv": dict.fromkeys(self.tenants, CACHE),
            "transient": {},
        }

    def memory(self) -> dict[str, Any]:
        parts = self.parts()
        usage = sum(size for part in parts.values() for size in part.values())
        return {"budget_bytes": self.budget, "usage_bytes": usage, "parts": parts}

    # --- endpoints ---

    async def state(self, request: Request) -> Response:
        rungs = [{"name": name, "resident_bytes": size + BASE} for name, size in LADDER]
        tenants = [{"id": name, **facts} for name, facts in self.tenants.items()]
        about = {"ladder": "pico", "source": "manual", "default_budget_bytes": 40 * MIB}
        return JSONResponse({**about, **self.memory(), "rungs": rungs, "tenants": tenants})

    async def props(self, request: Request) -> Response:
        rungs = [{"name": name, "resident_bytes": size + BASE} for name, size in LADDER]
        about = {"model_alias": "pico", "chat_format": "chatml" if self.chats else "plain", "n_ctx": 2048}
        return JSONResponse({**about, "rungs": rungs, "budget_sources": ["manual", "trace", "cgroup"]})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def events(self, request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            while True:
                yield _line({"type": "memory", "at_ms": self.at_ms(), **self.memory()})
                await asyncio.sleep(0.05)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def set_budget(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {ADMIN}":
            return _error(403, "admin token required")
        budget = (await request.json())["budget"]
        self.budget = budget if isinstance(budget, int) else parse_size(budget)
        return JSONResponse({"source": "manual", "budget_bytes": self.budget})

    async def set_trace(self, request: Request) -> Response:
        self.traces.append((await request.json())["steps"])
        return JSONResponse({"source": "trace", "budget_bytes": self.budget})

    async def follow(self, request: Request) -> Response:
        self.followed = (await request.json())["source"]
        return JSONResponse({"source": self.followed, "budget_bytes": self.budget})

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        assert self.chats == ("messages" in body) == request.url.path.startswith("/v1/chat")
        if self.refuse is not None:
            status, headers = self.refuse
            return _error(status, "the queue is full", headers)
        name = f"chatcmpl-{len(self.requests)}"
        lines = self.generated(name, body) if self.script is None else self.scripted()
        return StreamingResponse(lines, media_type="text/event-stream")

    # --- answers ---

    def chunk(self, text: str, molt: dict[str, Any], finish: str | None = None) -> str:
        """One event of a stream, in the form of a chat or of a text."""
        said = {"delta": {"content": text} if text else {}} if self.chats else {"text": text}
        return _line({"choices": [{"index": 0, **said, "finish_reason": finish}], "molt": molt})

    async def scripted(self) -> AsyncIterator[str]:
        assert self.script is not None
        for chunk in self.script:
            yield _line(chunk)
            await asyncio.sleep(self.pace)

    async def generated(self, name: str, body: Mapping[str, Any]) -> AsyncIterator[str]:
        mine = {"kind": body["molt"]["kind"], "phase": "decoding", "rung": None, "tokens": 0}
        self.tenants[name] = mine
        rungs: dict[str, int] = {}
        switches: list[dict[str, Any]] = []
        finished = False
        try:
            yield self.chunk("", {"event": "admit", "rung": self.rung()})
            while mine["tokens"] < body["max_tokens"]:
                async for line in self.changes(mine, switches):
                    yield line
                word = WORDS[mine["tokens"] % len(WORDS)]
                mine["tokens"] += 1
                rungs[mine["rung"]] = rungs.get(mine["rung"], 0) + 1
                yield self.chunk(word, {"event": "token", "rung": mine["rung"], "at_ms": self.at_ms()})
                await asyncio.sleep(self.pace)
            finished = True
            summary = {
                "event": "summary",
                "tokens": mine["tokens"],
                "rungs": rungs,
                "switches": switches,
                "switch_ms": sum(switch["ms"] for switch in switches),
                "killed": False,
            }
            yield self.chunk("", summary, "length")
            yield _line("[DONE]")
        finally:
            del self.tenants[name]
            if not finished:
                self.dropped.append(name)

    async def changes(self, mine: dict[str, Any], switches: list[dict[str, Any]]) -> AsyncIterator[str]:
        """What the budget does to an answer before its next word."""
        before, now = mine["rung"], self.rung()
        if before == now and now is not None:
            return
        if now is None:
            mine["phase"] = "parked"
            mine["rung"] = None
            yield self.chunk("", {"event": "park"})
            while (now := self.rung()) is None:
                await asyncio.sleep(self.pace)
            mine["phase"] = "decoding"
            yield self.chunk("", {"event": "resume", "rung": now})
        mine["rung"] = now
        if before is not None and before != now:
            switch = {
                "event": "switch",
                **SWITCH,
                "from": before,
                "to": now,
                "kind": "carry" if {before, now} == {"tier1", "tier2"} else "project",
                "pressure": {"budget_bytes": self.budget, "usage_bytes": int(0.81 * self.budget)},
                "predicted": {"ms": 250.0, "kl": 0.01},
                "measured": {"ms": 260.4, "kl": 0.012},
            }
            switches.append(switch)
            yield self.chunk("", switch)

    def app(self, static: str | None) -> Starlette:
        routes: list[Any] = [
            Route("/v1/chat/completions", self.answer, methods=["POST"]),
            Route("/v1/completions", self.answer, methods=["POST"]),
            Route("/props", self.props),
            Route("/health", self.health),
            Route("/molt/state", self.state),
            Route("/molt/events", self.events),
            Route("/admin/budget", self.set_budget, methods=["POST"]),
            Route("/admin/trace", self.set_trace, methods=["POST"]),
            Route("/admin/follow", self.follow, methods=["POST"]),
        ]
        if static is not None:
            routes.append(Mount("/", _Strict(directory=static, html=True)))
        return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=self.guarded)])

    async def guarded(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Everything but the page wants the key, where there is one."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if (
            self.key
            and request.url.path.startswith(("/v1/", "/molt/", "/props"))
            and given not in (self.key, ADMIN)
        ):
            return _error(401, "token required")
        return await call_next(request)


class _Strict(StaticFiles):
    """Files under the policy that the real server sends."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["content-security-policy"] = CSP
        return response


@contextmanager
def serving(fake: FakeServer, static: str | None = None) -> Iterator[FakeServer]:
    """The server on a free port, in a thread, until the block is left."""
    config = uvicorn.Config(
        fake.app(static), port=0, log_level="error", timeout_graceful_shutdown=1, lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    fake.url = f"http://127.0.0.1:{port}"
    try:
        yield fake
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def token(text: str, rung: str) -> dict[str, Any]:
    """A chunk with one token, for scripts."""
    return {
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        "molt": {"event": "token", "rung": rung, "at_ms": 1},
    }


def lever(event: str, **fields: Any) -> dict[str, Any]:
    """A chunk with no token, for scripts."""
    return {
        "choices": [{"index": 0, "delta": {}, "finish_reason": None}],
        "molt": {"event": event, **fields},
    }


def _line(data: Mapping[str, Any] | str) -> str:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    error = {"error": {"message": message, "type": "refused", "code": status}}
    return JSONResponse(error, status_code=status, headers=headers)
