"""Joins the thread of the world and the event loop: requests go in, records come out and reach their answer.

Rules of this module:

- The world runs in one thread, which ``Bridge`` starts. Calls into it return at once; its records come back through
  ``call_soon_threadsafe``. Everything else here happens in the event loop, so there are no locks.
- The bridge waits for no reader: a client that does not read loses its answer, an observer its view.
- Observers receive no text, neither of prompts nor of answers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from molt.core import decisions as d
from molt.core import events as e
from molt.core.engine_protocol import Request
from molt.core.events import TenantKind
from molt.core.ladder import Ladder
from molt.formats.log import plain
from molt.live.live_world import Decided, MemorySample, WorldRecord
from molt.server.answer import AnswerRecord, Broken
from molt.server.error_answers import Unavailable
from molt.server.limits import Limits
from molt.server.observers import Observers
from molt.server.prometheus import Metrics
from molt.units import MS_NS

SHUTTING_DOWN = "the server is shutting down"


class ServedWorld(Protocol):
    """What the server uses of ``molt.live.live_world.LiveWorld``; but for ``run``, all methods return at once."""

    def budget(self, budget_bytes: int) -> None: ...

    def ask(self, tenant: str, kind: TenantKind, request: Request) -> None: ...

    def leave(self, tenant: str) -> None: ...

    def stop(self, reason: str) -> None: ...

    def run(self) -> None: ...


OpenWorld = Callable[[Callable[[WorldRecord], None], int], ServedWorld]
"""``(on_record, budget_bytes)``: called in the thread that then runs the world."""


class Status(StrEnum):
    """Whether the server can answer."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(slots=True)
class ServedTenant:
    """An answer under way: its unread records, and what observers may see of it."""

    name: str
    kind: TenantKind
    prompt_tokens: int
    max_tokens: int
    asked_s: float
    records: asyncio.Queue[AnswerRecord | Broken]
    phase: str = "waiting"
    rung: str | None = None
    tokens: int = 0
    attempt: int = 1
    last_token_s: float | None = None

    def view(self) -> dict[str, Any]:
        """The tenant as observers see it."""
        return {
            "id": self.name,
            "kind": self.kind.value,
            "phase": self.phase,
            "rung": self.rung,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "attempt": self.attempt,
        }


@dataclass(slots=True)
class Holdings:
    """Memory as the world last reported it."""

    budget_bytes: int = 0
    usage_bytes: int = 0
    overshoot_bytes_max: int = 0
    parts: dict[str, dict[str, int]] = field(default_factory=dict)


class Bridge:
    """The one world of a server, its tenants and its observers."""

    def __init__(
        self, ladder: Ladder, open_world: OpenWorld, limits: Limits, metrics: Metrics, *, budget_bytes: int
    ) -> None:
        self.ladder = ladder
        self.limits = limits
        self.metrics = metrics
        self.observers = Observers(limits)
        self.status = Status.LOADING
        self.holdings = Holdings(budget_bytes=budget_bytes)
        self.budget_bytes = budget_bytes
        self.kills = 0
        self.failure: BaseException | None = None
        self.end_server: Callable[[], None] = lambda: None
        self._open_world = open_world
        self._world: ServedWorld | None = None
        self._tenants: dict[str, ServedTenant] = {}
        self._at_ns = 0
        self._later_s = limits.retry_after_s

    # --- the world's thread ---

    def start(self) -> None:
        """Start the world's thread; to be called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run_world, name="world", daemon=True)
        self._thread.start()

    def _run_world(self) -> None:
        try:
            budget_bytes = self.budget_bytes
            world = self._open_world(self._forward, budget_bytes)
            self._call(self._opened, world, budget_bytes)
            world.run()
        except BaseException as failure:  # whatever it is, the server has lost its world
            self._call(self._failed, failure)

    def _forward(self, record: WorldRecord) -> None:
        self._call(self._on_record, record)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: no client is left
            assert self.status is Status.STOPPING

    # --- calls into the world ---

    def _opened(self, world: ServedWorld, budget_bytes: int) -> None:
        self._world = world
        if budget_bytes != self.budget_bytes:  # it was changed in the meantime
            world.budget(self.budget_bytes)
        if self.status is Status.STOPPING:
            world.stop(SHUTTING_DOWN)

    def _failed(self, failure: BaseException) -> None:
        if self.status is not Status.STOPPING:
            self.failure = failure
            self.status = Status.FAILED
            self._end_all(Broken("the engine has failed", "engine_failed"))
            self.end_server()

    def ask(self, name: str, kind: TenantKind, request: Request) -> ServedTenant:
        """Begin an answer; ``Unavailable`` if the world is not ready, or too many answers are under way."""
        if self.status is not Status.READY or self._world is None:
            raise Unavailable(
                _UNAVAILABLE[self.status], self._later_s if self.status is Status.LOADING else None
            )
        if len(self._tenants) >= self.limits.answers:
            self.metrics.refused()
            under_way = f"{len(self._tenants)} answers are under way or waiting, which is the limit"
            raise Unavailable(under_way, self._later_s)
        tenant = ServedTenant(
            name, kind, len(request.prompt_ids), request.max_tokens, time.monotonic(), asyncio.Queue()
        )
        self._tenants[name] = tenant
        self._world.ask(name, kind, request)
        self.metrics.asked(tenant.prompt_tokens)
        self._publish(tenant)
        return tenant

    def leave(self, tenant: ServedTenant, reason: str = "left") -> None:
        """End an answer that the client does not need any more; does nothing if it is complete."""
        if self._tenants.pop(tenant.name, None) is not None and self._world is not None:
            self._world.leave(tenant.name)
            self._ended(tenant, reason)

    def set_budget(self, budget_bytes: int) -> None:
        """Set the budget from now on."""
        self.budget_bytes = budget_bytes
        if self._world is not None:
            self._world.budget(budget_bytes)

    def stop(self) -> None:
        """Begin no more answers, and end those under way."""
        if self.status is not Status.FAILED:
            self.status = Status.STOPPING
        self._end_all(Broken(SHUTTING_DOWN, "shutting_down"))
        self.observers.end()
        if self._world is not None:
            self._world.stop(SHUTTING_DOWN)

    async def stopped(self, within_s: float) -> bool:
        """Wait for the world's end; whether it came in time."""
        return await asyncio.to_thread(self.join, within_s)

    def join(self, within_s: float) -> bool:
        """The same, blocking the event loop."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _end_all(self, why: Broken) -> None:
        for tenant in self._tenants.values():
            tenant.records.put_nowait(why)

    # --- views ---

    def view(self) -> dict[str, Any]:
        """The whole state, for an observer who begins now."""
        held = self.holdings
        resident = held.parts.get("weights", {})
        return {
            "at_ms": _ms(self._at_ns),
            "status": self.status.value,
            "budget_bytes": held.budget_bytes,
            "usage_bytes": held.usage_bytes,
            "overshoot_bytes_max": held.overshoot_bytes_max,
            "parts": held.parts,
            "rungs": [
                {
                    "name": rung.name,
                    "precision": rung.precision,
                    "resident_bytes": rung.resident_bytes,
                    "token_bytes": rung.kv.bytes_per_token,
                    "resident": rung.name in resident,
                }
                for rung in self.ladder.rungs
            ],
            "tenants": [tenant.view() for tenant in self._tenants.values()],
            "answers_max": self.limits.answers,
            "kills": self.kills,
        }

    def running(self) -> int:
        """Answers that have a cache."""
        return sum(tenant.phase != "waiting" for tenant in self._tenants.values())

    def waiting(self) -> int:
        """Answers that have no cache yet."""
        return len(self._tenants) - self.running()

    def _publish(self, tenant: ServedTenant, **more: Any) -> None:
        self.observers.publish({"type": "tenant", "at_ms": _ms(self._at_ns), **tenant.view(), **more})

    # --- records of the world ---

    def _on_record(self, record: WorldRecord) -> None:
        if self.status is Status.LOADING:  # the first record: the engine is there
            self.status = Status.READY
        self._at_ns = max(self._at_ns, record.at_ns)
        match record:
            case Decided():
                self._on_decision(record.decision, record.seq)
            case MemorySample():
                self._on_sample(record)
            case _:
                self._on_event(record)

    def _on_sample(self, memory: MemorySample) -> None:
        held = self.holdings
        held.budget_bytes, held.usage_bytes = memory.budget_bytes, memory.usage_bytes
        held.parts = memory.parts
        if memory.round:  # before, memory over the budget is still being released
            held.overshoot_bytes_max = max(held.overshoot_bytes_max, held.usage_bytes - held.budget_bytes)
        self.metrics.memory(held.budget_bytes, held.usage_bytes, held.overshoot_bytes_max)
        self.observers.publish({"type": "memory", "at_ms": _ms(memory.at_ns), **_sizes(held)})

    def _on_decision(self, decision: d.AnyDecision, seq: int) -> None:
        notice = {"type": "decision", "at_ms": _ms(self._at_ns), "lever": type(decision).__name__.lower()}
        self.observers.publish({**notice, **plain(decision), "seq": seq})
        self.metrics.lever(decision)
        self._route(decision, seq)

    def _on_event(self, event: e.Event) -> None:
        if isinstance(event, e.BudgetChanged):
            self.holdings.budget_bytes = event.budget_bytes
        elif isinstance(event, e.ProcessKilled):
            self.kills += 1
            self.metrics.killed()
            self.observers.publish({"type": "killed", "at_ms": _ms(event.at_ns)})
            for tenant in list(self._tenants.values()):
                tenant.phase, tenant.rung, tenant.tokens = "waiting", None, 0
                self._put(tenant, event, None)
        elif isinstance(event, e.ProcessStarted):
            self.observers.publish({"type": "started", "at_ms": _ms(event.at_ns)})
        elif isinstance(event, e.Switched):
            self.metrics.switched(event)
        self._route(event, None)

    def _route(self, record: Any, seq: int | None) -> None:
        """Pass a record on to its tenant, if that is still here."""
        tenant = self._tenants.get(getattr(record, "tenant", ""))
        if tenant is None:
            return
        before = (tenant.phase, tenant.rung)
        self._update(tenant, record)
        self._put(tenant, record, seq)
        if isinstance(record, e.TokensProduced):
            notice = {"type": "token", "at_ms": _ms(record.at_ns), "id": tenant.name, "rung": record.rung}
            self.observers.publish({**notice, "tokens": tenant.tokens})
        elif isinstance(record, e.TenantFinished):
            if self._tenants.pop(tenant.name, None) is not None:
                self._ended(tenant, record.reason)
        elif isinstance(record, e.TenantCancelled):  # a tenant that left is not here: the world gave up
            del self._tenants[tenant.name]
            tenant.records.put_nowait(Broken("the engine failed at this answer", "engine_failed"))
            self._ended(tenant, "failed")
        elif before != (tenant.phase, tenant.rung):
            self._publish(tenant)

    def _update(self, tenant: ServedTenant, record: Any) -> None:
        match record:
            case e.TenantArrived(attempt=attempt):
                tenant.attempt = attempt
            case d.Admit(rung=rung):
                tenant.phase, tenant.rung = "active", rung
            case d.Park():
                tenant.phase = "parked"
            case d.Unpark():
                tenant.phase = "active"
            case e.TokensProduced():
                self._count_tokens(tenant, record)

    def _count_tokens(self, tenant: ServedTenant, event: e.TokensProduced) -> None:
        now_s = time.monotonic()
        first = tenant.last_token_s is None
        self.metrics.token(
            event.rung, now_s - (tenant.last_token_s or tenant.asked_s), event.count, first=first
        )
        tenant.rung, tenant.last_token_s = event.rung, now_s
        tenant.tokens += event.count

    def _put(self, tenant: ServedTenant, record: Any, seq: int | None) -> None:
        if tenant.records.qsize() >= self.limits.backlog:
            tenant.records.put_nowait(Broken("the client did not read the answer fast enough", "too_slow"))
            self.leave(tenant)
            return
        held = self.holdings
        tenant.records.put_nowait(AnswerRecord(record, self._at_ns, seq, held.budget_bytes, held.usage_bytes))

    def _ended(self, tenant: ServedTenant, reason: str) -> None:
        self.metrics.finished(reason)
        self._publish(tenant, gone=reason)


_UNAVAILABLE = {
    Status.LOADING: "Loading model",
    Status.STOPPING: SHUTTING_DOWN,
    Status.FAILED: "the engine has failed",
}


def _sizes(held: Holdings) -> dict[str, Any]:
    return {"budget_bytes": held.budget_bytes, "usage_bytes": held.usage_bytes, "parts": held.parts}


def _ms(at_ns: int) -> float:
    return round(at_ns / MS_NS, 3)
