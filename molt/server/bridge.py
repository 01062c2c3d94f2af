"""Joins the thread of the world and the event loop: requests go in, records come out and find whom they concern.

Rules of this module:

- The world runs in one thread, which ``Bridge`` starts; it is told things by methods that return at once, and tells by
  ``call_soon_threadsafe``. Everything else here happens in the event loop, so there are no locks.
- Nobody is waited for: whoever does not read (an answer's client, an observer) loses the answer, or the view.
- What observers are told has no text in it, of prompts or of answers.
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
from molt.live.live_world import Decided, MemorySample
from molt.live.live_world import WorldRecord as Record
from molt.server.answer import MS_NS, AnswerRecord, Broken
from molt.server.error_answers import Unavailable
from molt.server.limits import Limits
from molt.server.observers import Observers
from molt.server.prometheus import Metrics

SHUTTING_DOWN = "the server is shutting down"


class ServedWorld(Protocol):
    """What the server needs of ``molt.live.live_world.LiveWorld``; but for ``run``, all return at once."""

    def budget(self, budget_bytes: int) -> None: ...

    def ask(self, tenant: str, kind: TenantKind, request: Request) -> None: ...

    def leave(self, tenant: str) -> None: ...

    def stop(self, reason: str) -> None: ...

    def run(self) -> None: ...


OpenWorld = Callable[[Callable[[Record], None], int], ServedWorld]
"""``(listen, budget_bytes)``: called in the thread that then runs the world."""


class Status(StrEnum):
    """Whether answers can be had."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(slots=True)
class ServedTenant:
    """An answer under way: what is still to be read of it, and what observers may know of it."""

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
        """For observers."""
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
    """Memory as the world last told of it."""

    budget_bytes: int = 0
    usage_bytes: int = 0
    overshoot_bytes_max: int = 0
    parts: dict[str, dict[str, int]] = field(default_factory=dict)


class Bridge:
    """The one world of a server, and everybody who has to do with it."""

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
        self._thread = threading.Thread(target=self._live, name="world", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        try:
            budget_bytes = self.budget_bytes
            world = self._open_world(self._listen, budget_bytes)
            self._call(self._opened, world, budget_bytes)
            world.run()
        except BaseException as failure:  # whatever it is, the server has lost its world
            self._call(self._failed, failure)

    def _listen(self, record: Record) -> None:
        self._call(self._hear, record)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody listens any more
            assert self.status is Status.STOPPING

    # --- what is asked of it ---

    def _opened(self, world: ServedWorld, budget_bytes: int) -> None:
        self._world = world
        if budget_bytes != self.budget_bytes:  # it was changed meanwhile
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
        """Begin an answer; ``Unavailable`` if there is no world, or too many ask already."""
        if self.status is not Status.READY or self._world is None:
            raise Unavailable(_WHY[self.status], self._later_s if self.status is Status.LOADING else None)
        if len(self._tenants) >= self.limits.answers:
            self.metrics.refused()
            under_way = f"{len(self._tenants)} answers are under way or wait, which is the limit"
            raise Unavailable(under_way, self._later_s)
        tenant = ServedTenant(
            name, kind, len(request.prompt_ids), request.max_tokens, time.monotonic(), asyncio.Queue()
        )
        self._tenants[name] = tenant
        self._world.ask(name, kind, request)
        self.metrics.asked(tenant.prompt_tokens)
        self._tell_of(tenant)
        return tenant

    def leave(self, tenant: ServedTenant, reason: str = "left") -> None:
        """Whoever asked needs no more of the answer; nothing to do if it is complete."""
        if self._tenants.pop(tenant.name, None) is not None and self._world is not None:
            self._world.leave(tenant.name)
            self._gone(tenant, reason)

    def set_budget(self, budget_bytes: int) -> None:
        """What the machine, or whoever administers the server, allows from now on."""
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
        """Whether the world came to its end in time."""
        return await asyncio.to_thread(self.join, within_s)

    def join(self, within_s: float) -> bool:
        """The same, without letting anything else happen."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _end_all(self, why: Broken) -> None:
        for tenant in self._tenants.values():
            tenant.records.put_nowait(why)

    # --- what is to be seen of it ---

    def view(self) -> dict[str, Any]:
        """Everything that an observer who comes now needs to know."""
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
        """Answers that have none yet."""
        return len(self._tenants) - self.running()

    def _tell_of(self, tenant: ServedTenant, **more: Any) -> None:
        self.observers.tell({"type": "tenant", "at_ms": _ms(self._at_ns), **tenant.view(), **more})

    # --- what it says ---

    def _hear(self, record: Record) -> None:
        if self.status is Status.LOADING:  # the first word of an engine that is there
            self.status = Status.READY
        self._at_ns = max(self._at_ns, record.at_ns)
        match record:
            case Decided():
                self._decided(record.decision, record.seq)
            case MemorySample():
                self._sampled(record)
            case _:
                self._happened(record)

    def _sampled(self, memory: MemorySample) -> None:
        held = self.holdings
        held.budget_bytes, held.usage_bytes = memory.budget_bytes, memory.usage_bytes
        held.parts = memory.parts
        if memory.round:  # before, what is too much is still being given back
            held.overshoot_bytes_max = max(held.overshoot_bytes_max, held.usage_bytes - held.budget_bytes)
        self.metrics.memory(held.budget_bytes, held.usage_bytes, held.overshoot_bytes_max)
        self.observers.tell({"type": "memory", "at_ms": _ms(memory.at_ns), **_sizes(held)})

    def _decided(self, decision: d.AnyDecision, seq: int) -> None:
        told = {"type": "decision", "at_ms": _ms(self._at_ns), "lever": type(decision).__name__.lower()}
        self.observers.tell({**told, **plain(decision), "seq": seq})
        self.metrics.lever(decision)
        self._route(decision, seq)

    def _happened(self, event: e.Event) -> None:
        if isinstance(event, e.BudgetChanged):
            self.holdings.budget_bytes = event.budget_bytes
        elif isinstance(event, e.ProcessKilled):
            self.kills += 1
            self.metrics.killed()
            self.observers.tell({"type": "killed", "at_ms": _ms(event.at_ns)})
            for tenant in list(self._tenants.values()):
                tenant.phase, tenant.rung, tenant.tokens = "waiting", None, 0
                self._put(tenant, event, None)
        elif isinstance(event, e.ProcessStarted):
            self.observers.tell({"type": "started", "at_ms": _ms(event.at_ns)})
        elif isinstance(event, e.Switched):
            self.metrics.switched(event)
        self._route(event, None)

    def _route(self, record: Any, seq: int | None) -> None:
        """Give a record to the tenant it is about, if that one is still here."""
        tenant = self._tenants.get(getattr(record, "tenant", ""))
        if tenant is None:
            return
        before = (tenant.phase, tenant.rung)
        self._note(tenant, record)
        self._put(tenant, record, seq)
        if isinstance(record, e.TokensProduced):
            told = {"type": "token", "at_ms": _ms(record.at_ns), "id": tenant.name, "rung": record.rung}
            self.observers.tell({**told, "tokens": tenant.tokens})
        elif isinstance(record, e.TenantFinished):
            if self._tenants.pop(tenant.name, None) is not None:
                self._gone(tenant, record.reason)
        elif isinstance(record, e.TenantCancelled):  # whoever left is not here: it is the world that gave up
            del self._tenants[tenant.name]
            tenant.records.put_nowait(Broken("the engine fails at this answer", "engine_failed"))
            self._gone(tenant, "failed")
        elif before != (tenant.phase, tenant.rung):
            self._tell_of(tenant)

    def _note(self, tenant: ServedTenant, record: Any) -> None:
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
                self._timed(tenant, record)

    def _timed(self, tenant: ServedTenant, event: e.TokensProduced) -> None:
        now_s = time.monotonic()
        first = tenant.last_token_s is None
        self.metrics.token(
            event.rung, now_s - (tenant.last_token_s or tenant.asked_s), event.count, first=first
        )
        tenant.rung, tenant.last_token_s = event.rung, now_s
        tenant.tokens += event.count

    def _put(self, tenant: ServedTenant, record: Any, seq: int | None) -> None:
        if tenant.records.qsize() >= self.limits.backlog:
            tenant.records.put_nowait(Broken("the answer was not read fast enough", "too_slow"))
            self.leave(tenant)
            return
        held = self.holdings
        tenant.records.put_nowait(AnswerRecord(record, self._at_ns, seq, held.budget_bytes, held.usage_bytes))

    def _gone(self, tenant: ServedTenant, reason: str) -> None:
        self.metrics.finished(reason)
        self._tell_of(tenant, gone=reason)


_WHY = {
    Status.LOADING: "Loading model",
    Status.STOPPING: SHUTTING_DOWN,
    Status.FAILED: "the engine has failed",
}


def _sizes(held: Holdings) -> dict[str, Any]:
    return {"budget_bytes": held.budget_bytes, "usage_bytes": held.usage_bytes, "parts": held.parts}


def _ms(at_ns: int) -> float:
    return round(at_ns / MS_NS, 3)
