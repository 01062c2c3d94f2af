"""The simulated world: one device, one process, a moving budget, and tenants that want answers. Simpy is the clock.

Rules of this world, beside those of every world (``molt/worlds/base_world.py``):
- Compute is serial. A step runs to its boundary; facts that arrive meanwhile are handled there, before
  another step. What a step itself brings about is reported first, as soon as it is done.
- A run of tokens that nothing can interrupt is one simpy event; ``TokensProduced`` has the time of each token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from molt.core import decisions as d
from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.engine_protocol import Decoded, Engine, LoadError
from molt.core.healing import chunk, settled_after
from molt.core.ladder import Ladder
from molt.core.turns import (
    SLICE_NS_MAX,
    DecodeStep,
    LoadStep,
    PrefillStep,
    Step,
    SwitchStep,
    prefill_slice_ns,
)
from molt.core.view import Policy
from molt.formats.log import Log
from molt.jobs.scenario import ResolvedScenario, ResolvedTenant
from molt.worlds import base_world
from molt.worlds.base_world import RunningTenant, T, Wait
from sim.oom_killer import OutOfMemoryKiller
from sim.recorded_memory import RecordedMemory


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens under way: what the engine made of them, when each is complete, how many cells each step healed."""

    tenant: str
    rung: str
    stamps_ns: tuple[int, ...]
    healed: tuple[int, ...]
    heal: int
    decoded: Decoded


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of prefill under way, on top of ``context`` cells, and how much of its time has gone by."""

    tenant: str
    context: int
    done_ns: int


class SimulatedWorld(base_world.World):
    """One policy's run of one scenario.

    ``signal_delays`` says how long after each change of the budget the process learns of it: once at once, unless it
    gives something else (nothing: never; several: more than once). ``memory`` is what happens and what is reported in
    place of all that. ``costs`` are what everything takes; ``believed``, what the scheduler takes them for, where that
    is something else.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        ladder: Ladder,
        costs: CostModel,
        policy: Policy,
        engine: Engine,
        log: Log,
        *,
        believed: CostModel | None = None,
        measured_clock: bool = False,
        memory: RecordedMemory | None = None,
        signal_delays: Callable[[], tuple[int, ...]] = lambda: (0,),
        on_progress: Callable[[int], None] = lambda now_ns: None,
    ) -> None:
        super().__init__(ladder, costs, policy, engine, log, believed=believed)
        self._scenario = scenario
        self._measured = measured_clock
        self._budgets = scenario.budgets if memory is None else memory.left
        self._reported = () if memory is None else memory.reported
        self._signal_delays = signal_delays if memory is None else tuple
        self._on_progress = on_progress

        self._env = simpy.Environment(initial_time=0)
        self._oom = OutOfMemoryKiller(self._env, scenario.kill_after_ns, self._kill)
        self._wakeup = self._env.event()
        self._run: _Run | None = None
        self._chunk: _Chunk | None = None

    def run(self) -> None:
        """Simulate from 0 to the horizon."""
        self._env.process(self._trace())
        self._env.process(self._reports())
        for tenant in self._scenario.tenants:
            self._env.process(self._arrival(tenant))
        self._main = self._env.process(self._life())
        self._env.run(until=self._scenario.horizon_ns)
        self._flush_run()
        self._log.write("end", self._scenario.horizon_ns, reason="horizon")
        self._engine.kill()

    # What happens by itself.

    def _trace(self) -> Wait[None]:
        for at_ns, budget in self._budgets:
            yield self._env.timeout(at_ns - self._now_ns)
            self._budget_bytes = budget
            self._record_memory()
            self._oom.observe(self._memory.usage_bytes, budget)
            for delay_ns in self._signal_delays():
                if delay_ns:
                    self._env.process(self._late_signal(delay_ns))
                else:
                    self._signal(budget)
            if not self._alive:
                self._wake()  # it is the OS that starts a process again

    def _reports(self) -> Wait[None]:
        for at_ns, reported_bytes in self._reported:
            yield self._env.timeout(at_ns - self._now_ns)
            self._signal(reported_bytes)

    def _signal(self, budget_bytes: int) -> None:
        """Report to the process what it may have; nothing while there is no process."""
        if self._alive:
            self._post(e.BudgetChanged(at_ns=self._now_ns, budget_bytes=budget_bytes))

    def _late_signal(self, delay_ns: int) -> Wait[None]:
        yield self._env.timeout(delay_ns)
        self._signal(self._budget_bytes)

    def _arrival(self, tenant: ResolvedTenant) -> Wait[None]:
        yield self._env.timeout(tenant.arrives_ns)
        running = self._running[tenant.name] = RunningTenant(tenant.name, tenant.kind, tenant.request)
        if self._alive:
            self._post(running.arrived(self._now_ns))
        if tenant.leaves_ns is not None:
            yield self._env.timeout(tenant.leaves_ns - tenant.arrives_ns)
            self._leave(tenant.name)

    def _leave(self, tenant: str) -> None:
        """The client is gone; what the answer holds is freed at the next boundary."""
        if tenant not in self._running:
            return
        if self._alive:
            self._post(e.TenantCancelled(at_ns=self._now_ns, tenant=tenant))
        else:
            del self._running[tenant]

    def _set_timer(self, deadline_ns: int) -> None:
        self._env.process(self._timer(deadline_ns))

    def _timer(self, deadline_ns: int) -> Wait[None]:
        yield self._env.timeout(max(0, deadline_ns - self._now_ns))
        if self._deadline_ns == deadline_ns and self._alive:
            self._deadline_ns = None
            self._post(e.TimerFired(at_ns=deadline_ns))

    def _post(self, event: e.AnyEvent) -> None:
        self._inbox.append(event)
        self._wake()

    def _wake(self) -> None:
        if not self._wakeup.triggered:
            self._wakeup.succeed()

    def _kill(self) -> None:
        self._main.interrupt("killed")

    # The life of the process.

    def _life(self) -> Wait[None]:
        while True:
            try:
                yield from self._alive_loop()
            except simpy.Interrupt:
                needed = self._die()
                yield from self._come_back(needed)

    def _alive_loop(self) -> Wait[None]:
        while True:
            yield from self._round()
            step = self._scheduler.next_step()
            if step is None:
                yield self._sleep()
            else:
                yield from self._execute(step)
            self._on_progress(self._now_ns)

    def _sleep(self) -> simpy.Event:
        self._wakeup = self._env.event()
        if self._inbox:
            self._wakeup.succeed()
        return self._wakeup

    def _die(self) -> int:
        self._flush_run()
        self._chunk = None
        return super()._die()

    def _come_back(self, needed_bytes: int) -> Wait[None]:
        """A killed app is started again, cold, once there is as much memory as it died with."""
        while self._budget_bytes < needed_bytes:
            self._inbox.clear()
            yield self._sleep()
        yield self._env.timeout(self._costs.process_start_ns)
        self._begin_again()

    # Steps: what takes time between two rounds.

    def _execute(self, step: Step) -> Wait[None]:
        """A chunk of prefill under way outlasts loads alone: the engine that computes something else drops it."""
        if not isinstance(step, LoadStep | PrefillStep):
            self._chunk = None
        yield from super()._execute(step)

    def _carry_out(self, decision: d.AnyDecision, seq: int) -> Wait[None]:
        if not isinstance(decision, d.Admit | d.Defer | d.Heal | d.Load):
            self._chunk = None
        yield from super()._carry_out(decision, seq)

    def _part_with(self, tenant: str) -> bool:
        self._chunk = None
        return super()._part_with(tenant)

    def _load(self, step: LoadStep) -> Wait[None]:
        rung = step.rung
        loading, total_ns = self._loads[rung], self._costs.rungs[rung].load_ns
        try:
            if self._measured:
                yield from self._spend(total_ns, lambda: self._engine.load(rung))
            else:
                left_ns = total_ns - loading.done_ns
                stretch_ns = min(SLICE_NS_MAX, left_ns) if step.aside else left_ns
                loading.done_ns += yield from self._chunks(stretch_ns)
                if loading.done_ns < total_ns:
                    if step.aside:
                        self._report(e.LoadProgressed(at_ns=self._now_ns, rung=rung))
                    return
                self._engine.load(rung)
        except LoadError as error:
            self._load_failed(rung, str(error))
        else:
            self._loaded(rung)

    def _switch(self, step: SwitchStep) -> Wait[None]:
        pending = self._switches[step.tenant]
        total_ns = self._costs.switch_ns(step.source, step.dest, step.cells, pending.destination.native)
        self._hold_for_switch(step, pending)
        if self._measured:
            outcome, took_ns = yield from self._spend(total_ns, lambda: self._do_switch(step, pending))
        else:
            done_ns = pending.done_ns or 0
            pending.done_ns = done_ns + (yield from self._chunks(total_ns - done_ns))
            if pending.done_ns < total_ns:
                return
            outcome, took_ns = self._do_switch(step, pending), total_ns
        self._switch_done(step, pending, outcome, took_ns)

    def _prefill(self, step: PrefillStep) -> Wait[None]:
        begun, self._chunk = self._chunk, None
        is_begun = begun is not None and (begun.tenant, begun.context) == (step.tenant, step.context)
        tokens, cost_ns, chunk = self._prefill_stretch(step, begun.done_ns if begun and is_begun else 0)
        begin_ns = self._now_ns
        if tokens:
            yield from self._spend(cost_ns, lambda: self._engine.prefill(step.tenant, tokens, step.chunk))
            self._report(e.PromptRead(at_ns=self._now_ns, tenant=step.tenant, rung=step.rung, tokens=tokens))
        if chunk is not None:
            before_ns = begun.done_ns if begun and is_begun and not tokens else 0
            yield self._env.timeout(chunk.done_ns - before_ns)
            self._chunk = chunk
        assert self._now_ns > begin_ns, "a step takes time"

    def _prefill_stretch(self, step: PrefillStep, done_ns: int) -> tuple[int, int, _Chunk | None]:
        """What is done up to the first boundary after the next event of the world, ``done_ns`` of a chunk having been
        done before: tokens and time of whole chunks, and the one that is under way then."""
        costs, layers = self._costs.rungs[step.rung], self._ladder.rung(step.rung).kv.layers
        gap_ns = self._env.peek() - self._now_ns
        tokens = cost_ns = 0
        while tokens < step.tokens and (tokens == 0 or cost_ns < gap_ns):
            chunk, context = min(step.chunk, step.tokens - tokens), step.context + tokens
            left_ns = costs.read.ns(chunk, context) - done_ns
            slice_ns = prefill_slice_ns(costs, layers, chunk, context)
            if gap_ns < cost_ns + left_ns and not self._measured:
                slices_ns = max(1, -(-int(gap_ns - cost_ns) // slice_ns)) * slice_ns
                if slices_ns < left_ns:
                    return tokens, cost_ns, _Chunk(step.tenant, context, done_ns + slices_ns)
            cost_ns, tokens, done_ns = cost_ns + left_ns, tokens + chunk, 0
            if self._measured:
                break
        return tokens, cost_ns, None

    def _decode(self, step: DecodeStep) -> Wait[None]:
        stamps, healed = self._stamps(step)
        decoded, took_ns = self._timed(
            stamps[-1] - self._now_ns, lambda: self._engine.decode(step.tenant, len(stamps), step.heal)
        )
        if self._measured:
            stamps = [self._now_ns + took_ns]
        stamps = stamps[: decoded.count]
        self._run = _Run(step.tenant, step.rung, tuple(stamps), tuple(healed), step.heal, decoded)
        yield self._env.timeout(stamps[-1] - self._now_ns)
        self._flush_run()
        if decoded.finish is not None:
            self._finished(step.tenant, decoded.finish)

    def _stamps(self, step: DecodeStep) -> tuple[list[int], list[int]]:
        """Completion times of the tokens up to the first that ends after the next event of the world, and how many
        cells each of their steps heals."""
        costs = self._costs.rungs[step.rung]
        next_event_ns = self._env.peek()
        at_ns, settled = self._now_ns, step.settled
        stamps: list[int] = []
        healed_each: list[int] = []
        for cells in range(step.context, step.context + step.tokens):
            healed = chunk(cells, settled, step.heal)
            settled = settled_after(cells, settled, healed)
            at_ns += costs.healing_ns(healed, cells)
            stamps.append(at_ns)
            healed_each.append(healed)
            if self._measured or at_ns >= next_event_ns:
                break
        return stamps, healed_each

    def _flush_run(self) -> None:
        """Report the tokens of the run under way that are complete by now."""
        run, self._run = self._run, None
        if run is None:
            return
        count = sum(stamp <= self._now_ns for stamp in run.stamps_ns)
        if count:
            self._report(
                e.TokensProduced(
                    at_ns=run.stamps_ns[count - 1],
                    tenant=run.tenant,
                    rung=run.rung,
                    count=count,
                    stamps_ns=run.stamps_ns[:count],
                    pieces=run.decoded.pieces[:count],
                    heal=run.heal,
                    healed=sum(run.healed[:count]),
                )
            )

    def _chunks(self, remaining_ns: int) -> Generator[simpy.Event, Any, int]:
        """Let work of ``remaining_ns`` go on to the first chunk boundary at which something has happened."""
        gap_ns = self._env.peek() - self._now_ns
        whole = (
            remaining_ns if gap_ns >= remaining_ns else max(1, -(-int(gap_ns) // SLICE_NS_MAX)) * SLICE_NS_MAX
        )
        stretch_ns = min(remaining_ns, whole)
        yield self._env.timeout(stretch_ns)
        return stretch_ns

    def _spend(self, cost_ns: int, work: Callable[[], T]) -> Wait[tuple[T, int]]:
        result, took_ns = self._timed(cost_ns, work)
        yield self._env.timeout(took_ns)
        return result, took_ns

    def _timed(self, cost_ns: int, work: Callable[[], T]) -> tuple[T, int]:
        """Do the work; how long it takes in this world: as profiled, or as it just did."""
        begin_ns = time.perf_counter_ns()
        result = work()
        took_ns = round((time.perf_counter_ns() - begin_ns) * self._scenario.slowdown)
        return result, max(1, took_ns) if self._measured else cost_ns

    # Books.

    @property
    def _now_ns(self) -> int:
        return int(self._env.now)

    def _memory_changed(self) -> None:
        super()._memory_changed()
        self._oom.observe(self._memory.usage_bytes, self._budget_bytes)
