"""The engine of a run with real processes: a child that may be as slow as the scenario's device, warmed up first."""

from __future__ import annotations

import time
from pathlib import Path

from molt.core.engine_protocol import Destination, Engine, Request
from molt.core.events import Handoff
from molt.core.ladder import Ladder, RouteKind
from molt.live import messages
from molt.live.messages import Reply
from molt.live.remote import ChildSpec, RemoteEngine
from realproc.kernel.control_groups import read_text

WARM_UP_TOKENS = 16
FIRST_MADE_UP_ID, MADE_UP_IDS = 20, 200
"""Tokens that any vocabulary has."""

_TENANT = "warm-up"


class SlowedEngine(RemoteEngine):
    """An engine in a child process on a device ``slowdown`` times slower: every call lasts so many times as long.

    The work is done, and memory taken or given back, at the machine's own speed; then the call waits ``slowdown - 1``
    times as long as the child's main thread has computed. Time spent waiting for a busy processor is not multiplied.
    """

    def __init__(self, spec: ChildSpec, slowdown: float = 1.0) -> None:
        assert slowdown >= 1.0, slowdown
        super().__init__(spec)
        self._slowdown = slowdown

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        return super().load(rung, self._sooner(within_ns))

    def switch(self, tenant: str, destination: Destination, within_ns: int | None = None) -> Handoff | None:
        return super().switch(tenant, destination, self._sooner(within_ns))

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        super().prefill(tenant, tokens, chunk, self._sooner(within_ns))

    def _sooner(self, within_ns: int | None) -> int | None:
        return None if within_ns is None else round(within_ns / self._slowdown)

    def _call(self, call: messages.Call) -> Reply:
        pid = self.pid
        before_ns = computed_ns(pid)
        reply = super()._call(call)
        time.sleep(max(0, computed_ns(pid) - before_ns) * (self._slowdown - 1.0) / 1e9)
        return reply


class WarmEngine(SlowedEngine):
    """An engine that is warmed up whenever it comes up, so that it holds the same at rest after a kill as before."""

    def __init__(self, spec: ChildSpec, ladder: Ladder) -> None:
        super().__init__(spec)
        self._ladder = ladder

    def start(self) -> None:
        is_new = self.pid is None
        super().start()
        if is_new:
            warm_up(self, self._ladder)


def computed_ns(pid: int | None) -> int:
    """How long the main thread of a process has computed; the present time on systems that do not count that."""
    text = read_text(Path(f"/proc/{pid}/schedstat"))
    return int(text.split()[0]) if text else time.perf_counter_ns()


def made_up_request(prompt_tokens: int, answer_tokens: int) -> Request:
    """A request whose lengths alone matter; it is answered up to its maximum of tokens."""
    prompt = tuple(number % MADE_UP_IDS + FIRST_MADE_UP_ID for number in range(prompt_tokens))
    return Request(prompt, answer_tokens, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)


def warm_up(engine: Engine, ladder: Ladder) -> None:
    """Use every rung and every route down once, one rung at a time, and leave nothing behind.

    A tensor library keeps what it allocates at its first use: after this, that is part of the base.
    """
    request = made_up_request(WARM_UP_TOKENS, answer_tokens=4)
    for upper, lower in zip(ladder.rungs, (*ladder.rungs[1:], None), strict=True):
        engine.load(upper.name)
        engine.admit(_TENANT, request, upper.name, WARM_UP_TOKENS + request.max_tokens)
        engine.prefill(_TENANT, WARM_UP_TOKENS - 1, WARM_UP_TOKENS)
        engine.decode(_TENANT, 1)
        if lower is not None:
            route = ladder.route(upper.name, lower.name)
            if route.kind is not RouteKind.REREAD:
                engine.release(upper.name)
                engine.load(lower.name)
                engine.switch(
                    _TENANT, Destination(lower.name, route.kind, WARM_UP_TOKENS + request.max_tokens)
                )
                engine.decode(_TENANT, 1)
        engine.finish(_TENANT)
        for rung in ladder.rungs:
            engine.release(rung.name)


def warm_up_budget(ladder: Ladder) -> int:
    """A budget, bytes, that is enough for warming up: the largest of everything at once."""
    largest = max(rung.resident_bytes for rung in ladder.rungs)
    caches = 2 * max(rung.kv_bytes(2 * WARM_UP_TOKENS) for rung in ladder.rungs)
    return largest + caches + max((route.map_bytes for route in ladder.routes), default=0)
