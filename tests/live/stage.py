"""Live worlds for tests: one over a clock that only work moves, and one in a thread of its own."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.engine_protocol import Engine
from molt.core.ladder import Ladder
from molt.core.view import Policy
from molt.formats.log import Log, plain
from molt.jobs.scenario import ResolvedScenario
from molt.live.live_world import LiveWorld, WorldRecord
from molt.live.paced import Paced

GENEROUS_S = 60.0


def header(
    policy: Policy, ladder: Ladder, costs: CostModel, params: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """What a replay needs of a header."""
    return {
        "policy": {"name": policy.name, "source": policy.name, "params": params or {}},
        "ladder": plain(ladder),
        "costs": plain(costs),
    }


# --- a clock that only work moves ---


@dataclass
class Script:
    """The time of a scripted world, and what is done in it at which time."""

    acts: list[tuple[int, Callable[[], None]]]
    now_ns: int = 0

    def elapse(self, ns: int) -> None:
        """Let time go by; what is to happen meanwhile happens."""
        end_ns = self.now_ns + ns
        while self.acts and self.acts[0][0] <= end_ns:
            self.now_ns, act = self.acts.pop(0)
            act()
        self.now_ns = end_ns


class ScriptedWorld(LiveWorld):
    """A live world that waits by letting its script go on."""

    script: Script

    def _wait(self, until_ns: int) -> None:
        next_ns = self.script.acts[0][0] if self.script.acts else until_ns
        self.script.elapse(max(0, min(next_ns, until_ns) - self.script.now_ns))
        self._read_commands()


class Stamped(io.StringIO):
    """A log in memory that remembers when each line was written."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self.written_ns: list[int] = []

    def write(self, line: str) -> int:
        self.written_ns.append(self._script.now_ns)
        return super().write(line)


@dataclass(frozen=True)
class Played:
    """What a scripted world left: its log, and the records that were written by the horizon."""

    text: str
    records: list[dict[str, Any]]
    violations: list[dict[str, Any]]


def play(
    policy: Policy,
    on: ResolvedScenario,
    ladder: Ladder,
    costs: CostModel,
    engine: Callable[[Ladder, CostModel, Callable[[int], None]], Engine] = Paced,
) -> Played:
    """Live a scenario on the clock of its costs."""
    script = Script([])
    sink = Stamped(script)
    world = ScriptedWorld(
        ladder,
        costs,
        policy,
        engine(ladder, costs, script.elapse),
        Log(sink, header(policy, ladder, costs)),
        budget_bytes=on.budgets[0][1],
        clock_ns=lambda: script.now_ns,
    )
    world.script = script
    acts: list[tuple[int, Callable[[], None]]] = []
    for at_ns, budget in on.budgets[1:]:
        acts.append((at_ns, lambda budget=budget: world.budget(budget)))  # type: ignore[misc]
    for one in on.tenants:
        acts.append((one.arrives_ns, lambda one=one: world.ask(one.name, one.kind, one.request)))  # type: ignore[misc]
        if one.leaves_ns is not None:
            acts.append((one.leaves_ns, lambda one=one: world.leave(one.name)))  # type: ignore[misc]
    acts.append((on.horizon_ns + 1, lambda: world.stop("horizon")))
    script.acts = sorted(acts, key=lambda act: act[0])
    script.elapse(0)
    world.run()
    text = sink.getvalue()
    lines = zip(sink.written_ns, text.splitlines(), strict=True)
    records = [json.loads(line) for at_ns, line in lines if at_ns <= on.horizon_ns][1:]
    return Played(text, records, world.violations)


# --- real time ---


@dataclass
class Life:
    """A live world in a thread of its own, everything that was observed of it, and its log."""

    world: LiveWorld
    path: Path
    observed: list[WorldRecord] = field(default_factory=list)
    failure: BaseException | None = None
    _news: threading.Condition = field(default_factory=threading.Condition)

    def on_record(self, record: WorldRecord) -> None:
        """Called by the world."""
        with self._news:
            self.observed.append(record)
            self._news.notify_all()

    def of(self, *kinds: type) -> list[Any]:
        """What was observed of these kinds, so far."""
        return [one for one in self.observed if isinstance(one, kinds)]

    def until(self, condition: Callable[[Life], object], within_s: float = GENEROUS_S) -> None:
        """Wait until a condition on what was observed holds."""
        end_s = time.monotonic() + within_s
        with self._news:
            while not condition(self):
                assert self.failure is None, self.failure
                assert time.monotonic() < end_s, f"never observed; last: {self.observed[-5:]}"
                self._news.wait(0.1)

    def pieces(self, tenant: str, attempt: int = 1) -> list[tuple[str, str]]:
        """Rung and text of every token of an attempt, so far."""
        attempts: list[list[tuple[str, str]]] = []
        for record in list(self.observed):
            if isinstance(record, e.TenantArrived) and record.tenant == tenant:
                attempts.append([])
            if isinstance(record, e.TokensProduced) and record.tenant == tenant:
                attempts[-1] += [(record.rung, piece) for piece in record.pieces or ("",) * record.count]
        return attempts[attempt - 1] if len(attempts) >= attempt else []

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        """Records of the log of these kinds or types."""
        lines = self.path.read_text(encoding="utf-8").splitlines()[1:]
        records = [json.loads(line) for line in lines]
        return [r for r in records if r.get("type") in kinds or r["kind"] in kinds]


@contextmanager
def living(
    policy: Policy,
    ladder: Ladder,
    costs: CostModel,
    engine: Engine,
    path: Path,
    *,
    budget_bytes: int,
    params: Mapping[str, object] | None = None,
    **options: Any,
) -> Iterator[Life]:
    """A world that lives until the end of the block."""
    with path.open("w", buffering=1, encoding="utf-8") as sink:
        lives: list[Life] = []
        world = LiveWorld(
            ladder,
            costs,
            policy,
            engine,
            Log(sink, header(policy, ladder, costs, params)),
            budget_bytes=budget_bytes,
            on_record=lambda one: lives[0].on_record(one),
            **options,
        )
        life = Life(world, path)
        lives.append(life)

        def run() -> None:
            try:
                world.run()
            except BaseException as error:
                life.failure = error

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield life
        finally:
            world.stop("the test is over")
            thread.join(GENEROUS_S)
            assert not thread.is_alive(), "the world does not end"


def finished(*tenants: str) -> Callable[[Life], bool]:
    """Whether these answers are complete."""
    return lambda life: {one.tenant for one in life.of(e.TenantFinished)} >= set(tenants)


def tokens(tenant: str, count: int, attempt: int = 1) -> Callable[[Life], bool]:
    """Whether an attempt has so many tokens."""
    return lambda life: len(life.pieces(tenant, attempt)) >= count


def together(*conditions: Callable[[Life], bool]) -> Callable[[Life], bool]:
    """Whether all conditions hold."""
    return lambda life: all(condition(life) for condition in conditions)


def names(records: Sequence[WorldRecord]) -> list[str]:
    """Records by the names of their classes."""
    return [type(one).__name__ for one in records]
