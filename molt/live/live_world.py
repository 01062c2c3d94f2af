"""The live world: real time, an engine that does the work, and facts that come from other threads.

Rules of this world, beside those of every world (``molt/worlds/base_world.py``):

- One thread runs it (``run``) and does everything: it writes the log, calls the engine and ``on_record``. Other threads
  post commands (``budget``, ``ask``, ``leave``, ``stop``): one counts from when it was posted, and is read at a
  boundary.
- A boundary is one token, a slice of a chunk of prefill, of a load or of a switch.
- The engine's death is a fact, never the end of the run: it is started again, and requests begin anew.
- Times are nanoseconds since ``run`` found the engine ready.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeAlias, assert_never

from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.decisions import AnyDecision
from molt.core.engine_protocol import Engine, EngineDied, LoadError, Request
from molt.core.events import TenantKind
from molt.core.healing import chunk
from molt.core.ladder import Ladder
from molt.core.legality import Refusal
from molt.core.turns import SLICE_NS_MAX, DecodeStep, LoadStep, PrefillStep, SwitchStep
from molt.core.view import Policy
from molt.formats.log import Log, plain
from molt.live.remote import RemoteEngine
from molt.work import Unfinished
from molt.worlds.base_world import RunningTenant, T, Wait, World
from molt.worlds.refusals import refusal_line

LOOK_NS = 200_000_000
"""How often an idle world looks whether its engine still lives."""
AGAIN_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses before an engine that did not come up is started again."""
FAILURES_MAX = 3
"""How many engines may fail, by themselves, while they work for one tenant; then it is given up."""
STOP_WITHIN_S = 3.0
"""What a step under way may still take when the world is to stop; then its engine is killed."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision with its number in the log, to which its outcome refers."""

    at_ns: int
    seq: int
    decision: AnyDecision


@dataclass(frozen=True, slots=True)
class MemorySample:
    """What the world holds, as in the log: ``round`` when everything asked for had been carried out.

    ``measured`` are readings that are taken beside the books, where the world was given some.
    """

    at_ns: int
    budget_bytes: int
    usage_bytes: int
    parts: dict[str, dict[str, int]]
    round: bool
    measured: dict[str, int]


WorldRecord: TypeAlias = e.AnyEvent | Decided | MemorySample
OnRecord: TypeAlias = Callable[[WorldRecord], None]


def ignore(record: WorldRecord) -> None:
    """Do nothing with a record."""


@dataclass(frozen=True, slots=True)
class _Budget:
    at_ns: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class _Ask:
    at_ns: int
    tenant: str
    kind: TenantKind
    request: Request


@dataclass(frozen=True, slots=True)
class _Leave:
    at_ns: int
    tenant: str


@dataclass(frozen=True, slots=True)
class _Stop:
    at_ns: int
    reason: str


_Command = _Budget | _Ask | _Leave | _Stop


class LiveWorld(World):
    """One policy's run in real time, until ``stop``.

    ``on_record`` is called by the world's thread and must not block. ``measure`` gives readings for every memory
    record.
    """

    def __init__(
        self,
        ladder: Ladder,
        costs: CostModel,
        policy: Policy,
        engine: Engine,
        log: Log,
        *,
        budget_bytes: int,
        on_record: OnRecord = ignore,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        measure: Callable[[], dict[str, int]] | None = None,
    ) -> None:
        super().__init__(ladder, costs, policy, engine, log)
        self._on_record = on_record
        self._clock_ns = clock_ns
        self._measure = measure
        self._child = engine if isinstance(engine, RemoteEngine) else None
        self._epoch_ns: int | None = None
        self._sampled_ns = 0
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._names: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._reported_refusals: set[tuple[str, str | None]] = set()
        self._lock = threading.Lock()
        self._stopped: _Stop | None = None
        self._commands.put(_Budget(0, budget_bytes))

    # What other threads may call.

    def budget(self, budget_bytes: int) -> None:
        """From now on, this many bytes are allowed."""
        self._commands.put(_Budget(self._now_ns, budget_bytes))

    def ask(self, tenant: str, kind: TenantKind, request: Request) -> None:
        """A client asks; ``ValueError`` if there is a tenant of that name."""
        assert request.prompt_ids, "an answer begins with something"
        assert request.max_tokens > 0, "an answer has a length"
        with self._lock:
            if tenant in self._names:
                raise ValueError(f"tenant {tenant!r} is here already")
            self._names.add(tenant)
        self._commands.put(_Ask(self._now_ns, tenant, kind, request))

    def leave(self, tenant: str) -> None:
        """The client is gone. Nothing to do if the answer is complete."""
        self._commands.put(_Leave(self._now_ns, tenant))

    def stop(self, reason: str) -> None:
        """Let ``run`` return after the step under way."""
        self._commands.put(_Stop(self._now_ns, reason))
        if self._child is not None:
            self._child.hurry(STOP_WITHIN_S)

    # The life of the world.

    def run(self) -> None:
        """Live until ``stop``. The engine is ended in any case.

        Raises what ``RemoteEngine.start`` does if there is no engine to begin with.
        """
        try:
            self._come_up()
            self._epoch_ns = self._clock_ns()
            while self._stopped is None:
                try:
                    self._live()
                except EngineDied as death:
                    self._note_end(death)
                    self._read_commands()
                    if self._stopped is None:  # else it may only have been too slow to stop
                        self._come_back(death.tenant)
            self._log.write("end", self._now_ns, reason=self._stopped.reason)
        finally:
            self._engine.kill()

    def _live(self) -> None:
        self._read_commands()
        while self._stopped is None:
            _through(self._round())
            step = self._scheduler.next_step()
            if step is None:
                self._sleep()
            else:
                _through(self._execute(step))
            self._read_commands()

    def _sleep(self) -> None:
        """Wait for a command, or for the timer."""
        until_ns = self._now_ns + LOOK_NS
        if self._deadline_ns is not None:
            until_ns = min(until_ns, self._deadline_ns)
        self._wait(until_ns)
        if self._child is not None and self._alive:
            self._child.check()

    def _wait(self, until_ns: int) -> None:
        with suppress(queue.Empty):
            self._take(self._commands.get(timeout=max(0, until_ns - self._now_ns) / 1e9))

    def _come_up(self) -> None:
        """The engine to begin with; none if the world was stopped meanwhile."""
        try:
            if self._child is not None:
                self._start()
        except EngineDied:
            self._read_commands()
            if self._stopped is None:
                raise

    def _start(self) -> None:
        assert self._child is not None
        begin_ns = self._clock_ns()
        self._child.start()
        took_ns = self._clock_ns() - begin_ns
        self._log.write("engine", self._now_ns, what="started", pid=self._child.pid, took_ns=took_ns)

    def _note_end(self, death: EngineDied) -> None:
        self._log.write("engine", self._now_ns, what="ended", reason=death.reason, status=death.status)

    def _come_back(self, tenant: str | None) -> None:
        """Everything is lost; begin again as soon as there is as much memory as the engine died with.

        ``tenant`` is the one it failed at, if it did.
        """
        needed = self._die()
        if tenant is not None and tenant in self._running:
            self._blame(tenant)
        while self._stopped is None and self._budget_bytes < needed:
            self._sleep()
        for pause_s in chain(AGAIN_S, repeat(AGAIN_S[-1])):
            self._read_commands()
            until_ns = self._now_ns + round(pause_s * 1e9)
            while self._stopped is None and self._now_ns < until_ns:
                self._wait(until_ns)
            if self._stopped is not None or self._is_up_again():
                break
        self._read_commands()
        if self._stopped is None:
            self._begin_again()

    def _blame(self, tenant: str) -> None:
        """Give up a tenant at which one engine after the other fails: it would cost all others theirs, too."""
        self._failures[tenant] += 1
        if self._failures[tenant] == FAILURES_MAX:
            self._log.write("engine", self._now_ns, what="gave up", tenant=tenant)
            self._forget(tenant)
            self._report(e.TenantCancelled(at_ns=self._now_ns, tenant=tenant))

    def _is_up_again(self) -> bool:
        if self._child is None:
            return True
        try:
            self._start()
        except EngineDied as death:
            self._note_end(death)
            self._child.kill()
            return False
        return True

    # Facts.

    def _read_commands(self) -> None:
        """Take the commands posted by now; a timer that was due before comes first."""
        while not self._commands.empty():
            self._take(self._commands.get())
        self._fire_timer(self._now_ns + 1)

    def _take(self, command: _Command) -> None:
        self._fire_timer(command.at_ns)
        match command:
            case _Budget():
                self._budget_bytes = command.budget_bytes
                self._record_memory(at_ns=command.at_ns)
                self._post(e.BudgetChanged(at_ns=command.at_ns, budget_bytes=command.budget_bytes))
            case _Ask():
                running = self._running[command.tenant] = RunningTenant(
                    command.tenant, command.kind, command.request
                )
                self._post(running.arrived(command.at_ns))
            case _Leave() if command.tenant in self._running:
                if not self._alive:
                    self._forget(command.tenant)
                self._post(e.TenantCancelled(at_ns=command.at_ns, tenant=command.tenant))
            case _Leave():
                pass  # the answer was complete before
            case _Stop():
                self._stopped = command
            case _:
                assert_never(command)

    def _post(self, event: e.AnyEvent) -> None:
        if self._alive:
            self._inbox.append(event)

    def _set_timer(self, deadline_ns: int) -> None:
        """It is looked at whenever a command is taken."""

    def _fire_timer(self, before_ns: int) -> None:
        if self._alive and self._deadline_ns is not None and self._deadline_ns < before_ns:
            self._inbox.append(e.TimerFired(at_ns=self._deadline_ns))
            self._deadline_ns = None

    def _forget(self, tenant: str) -> RunningTenant | None:
        self._failures.pop(tenant, None)
        with self._lock:
            self._names.discard(tenant)
        return super()._forget(tenant)

    # Steps.

    @property
    def _now_ns(self) -> int:
        return 0 if self._epoch_ns is None else self._clock_ns() - self._epoch_ns

    def _spend(self, cost_ns: int, work: Callable[[], T]) -> Wait[tuple[T, int]]:
        begin_ns = self._clock_ns()
        try:
            result = work()
            took_ns = max(1, self._clock_ns() - begin_ns)
        finally:  # what came meanwhile came before what this brings about
            self._read_commands()
        return result, took_ns
        yield

    def _load(self, step: LoadStep) -> Wait[None]:
        try:
            is_done, _ = yield from self._spend(0, lambda: self._engine.load(step.rung, SLICE_NS_MAX))
        except LoadError as error:
            self._load_failed(step.rung, str(error))
            return
        if is_done:
            self._loaded(step.rung)
        elif step.aside:
            self._report(e.LoadProgressed(at_ns=self._now_ns, rung=step.rung))

    def _switch(self, step: SwitchStep) -> Wait[None]:
        pending = self._switches[step.tenant]
        self._hold_for_switch(step, pending)
        begin_ns, done_ns = self._clock_ns(), pending.done_ns or 0
        try:
            outcome, took_ns = yield from self._spend(0, lambda: self._do_switch(step, pending, SLICE_NS_MAX))
        except Unfinished:
            pending.done_ns = done_ns + self._clock_ns() - begin_ns
            self._read_commands()
            return
        self._switch_done(step, pending, outcome, done_ns + took_ns)

    def _prefill(self, step: PrefillStep) -> Wait[None]:
        tokens = min(step.chunk, step.tokens)
        try:
            yield from self._spend(
                0, lambda: self._engine.prefill(step.tenant, tokens, step.chunk, SLICE_NS_MAX)
            )
        except Unfinished:
            return
        self._report(e.PromptRead(at_ns=self._now_ns, tenant=step.tenant, rung=step.rung, tokens=tokens))

    def _decode(self, step: DecodeStep) -> Wait[None]:
        healed = chunk(step.context, step.settled, step.heal)
        decoded, _ = yield from self._spend(0, lambda: self._engine.decode(step.tenant, 1, step.heal))
        now_ns = self._now_ns
        self._report(
            e.TokensProduced(
                at_ns=now_ns,
                tenant=step.tenant,
                rung=step.rung,
                count=decoded.count,
                stamps_ns=(now_ns,),
                pieces=decoded.pieces,
                heal=step.heal,
                healed=healed,
            )
        )
        if decoded.finish is not None:
            self._finished(step.tenant, decoded.finish)

    # Reports, and the books of memory.

    def _on_refusal(self, at_ns: int, refusal: Refusal) -> None:
        """The user reads of each mistake once; the world goes on with what it holds."""
        if (refusal.rule, refusal.place) not in self._reported_refusals:
            self._reported_refusals.add((refusal.rule, refusal.place))
            with suppress(OSError, ValueError):  # stderr is closed
                print(f"molt: {refusal_line(self._policy.name, at_ns, refusal)}", file=sys.stderr)

    def _report(self, event: e.AnyEvent) -> None:
        self._on_record(event)
        super()._report(event)

    def _enqueue(self, decision: AnyDecision, seq: int) -> None:
        self._on_record(Decided(self._now_ns, seq, decision))
        super()._enqueue(decision, seq)

    def _record_memory(self, *, round: bool = False, at_ns: int | None = None) -> None:
        """What is held, now, or at the time of a change that became known later; never before the last record."""
        at_ns = max(self._sampled_ns, self._now_ns if at_ns is None else at_ns)
        self._sampled_ns = at_ns
        measured = {} if self._measure is None else self._measure()
        parts = {kind: dict(owners) for kind, owners in self._memory.parts.items()}
        sample = MemorySample(
            at_ns, self._budget_bytes, self._memory.usage_bytes, parts, round=round, measured=measured
        )
        fields = plain(sample)
        if not measured:
            del fields["measured"]
        self._log.write("memory", **fields)
        self._on_record(sample)


def _through(work: Wait[None]) -> None:
    """Do work that waits for nothing."""
    for _ in work:
        raise AssertionError("nothing here waits")
