"""Real answers in real time: pico in a process of its own, its memory cut and restored while it writes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from molt.core import events as e
from molt.core.engine_protocol import Request
from molt.core.events import TenantKind
from molt.jobs.plugins import make_policy
from molt.jobs.profile import load_profile
from molt.jobs.replay import replay
from molt.live.live_world import MemorySample
from molt.live.remote import ChildSpec, RemoteEngine
from molt.models.ladder_file import resolve
from tests.live.stage import Life, finished, living, together, tokens
from tests.small import MIB

SPEC = resolve("pico")
COSTS = load_profile("pico", SPEC.ladder)
PLENTY, LITTLE = 60 * MIB, 15 * MIB
COOL = {"cooldown": "0s"}
"""No cool-down: up and down as fast as the budget."""
LENGTH = 96
PROMPT = (7, 45, 112, 260, 98, 11, 300, 42, 17, 204)


@contextmanager
def pico(path: Path) -> Iterator[tuple[Life, RemoteEngine]]:
    """A world on pico."""
    engine = RemoteEngine(ChildSpec("pico"))
    policy = make_policy("molt", COOL)
    with living(policy, SPEC.ladder, COSTS, engine, path, budget_bytes=PLENTY, params=COOL) as life:
        yield life, engine
    assert life.failure is None


def ask(life: Life, tenant: str, prompt: tuple[int, ...] = PROMPT, length: int = LENGTH) -> None:
    request = Request(prompt, length, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=1)
    life.world.ask(tenant, TenantKind.FOREGROUND, request)


def at_rest(life: Life) -> bool:
    """No tenant has a cache, and nothing is under way."""
    parts = life.of(MemorySample)[-1].parts
    return not parts["kv"] and not parts["transient"]


def test_a_cut_in_the_middle_of_an_answer_loses_no_token(tmp_path: Path) -> None:
    """The rung changes between two tokens; up to there the text is that of an undisturbed answer, after it it goes on,
    and a kill in the middle of another answer costs time only."""
    with pico(tmp_path / "log") as (life, engine):
        ask(life, "calm")
        life.until(finished("calm"))
        ask(life, "cut")
        life.until(tokens("cut", 12))
        life.world.budget(LITTLE)
        life.until(finished("cut"))
        life.world.budget(PLENTY)
        ask(life, "killed")
        life.until(tokens("killed", 12))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        life.until(finished("killed"))
    calm, cut = life.pieces("calm"), life.pieces("cut")
    assert {rung for rung, _ in calm} == {"tier0"}
    rungs = [rung for rung, _ in cut]
    switched = rungs.index("tier1")
    assert switched >= 12
    assert rungs == ["tier0"] * switched + ["tier1"] * (LENGTH - switched)
    assert cut[:switched] == calm[:switched]
    switches = life.of(e.Switched)
    assert [(one.source, one.dest) for one in switches if one.tenant == "cut"] == [("tier0", "tier1")]
    again = [piece for _, piece in life.pieces("killed", 2)]
    assert again == [piece for _, piece in calm]
    assert {violation["invariant"] for violation in life.world.violations} == {"process_is_alive"}
    assert replay(life.path).difference is None


def test_nothing_left_to_live_on_and_back(tmp_path: Path) -> None:
    """Every rung is given back and the cache goes to disk; later it comes back, and the answer goes on as it would
    have, for as long as the same rung writes it."""
    with pico(tmp_path / "log") as (life, _):
        ask(life, "calm")
        life.until(finished("calm"))
        ask(life, "gone")
        life.until(tokens("gone", 12))
        life.world.budget(MIB // 16)
        life.until(lambda now: now.of(e.CacheSpilled))
        life.until(lambda now: now.of(MemorySample)[-1].usage_bytes == 0)
        life.world.budget(PLENTY)
        life.until(finished("gone"))
    assert [one.tenant for one in life.of(e.CacheRestored)] == ["gone"]
    calm, gone = life.pieces("calm"), life.pieces("gone")
    assert len(gone) == LENGTH
    same = next((n for n, (rung, _) in enumerate(gone) if rung != "tier0"), LENGTH)
    assert same > 12
    assert gone[:same] == calm[:same]
    assert life.world.violations == []


def test_who_leaves_in_the_middle_frees_its_memory(tmp_path: Path) -> None:
    """While its prompt is read, and while it is answered: no token after that, no cell left, and others go on."""
    long = PROMPT * 150
    with pico(tmp_path / "log") as (life, _):
        ask(life, "reads", long)
        life.until(lambda now: [one for one in now.of(e.PromptRead) if one.tenant == "reads"])
        life.world.leave("reads")
        ask(life, "decodes", length=1500)
        life.until(tokens("decodes", 10))
        life.world.leave("decodes")
        ask(life, "stays")
        life.until(finished("stays"))
        life.until(at_rest)
    for tenant, work in (("reads", e.PromptRead), ("decodes", e.TokensProduced)):
        kinds = [type(one) for one in life.observed if getattr(one, "tenant", None) == tenant]
        assert kinds[-1] is e.TenantCancelled
        assert work in kinds
    read = sum(one.tokens for one in life.of(e.PromptRead) if one.tenant == "reads")
    assert read < len(long) - 1
    assert len(life.pieces("stays")) == LENGTH
    assert life.world.violations == []


def test_two_hundred_cuts_leave_nothing_behind(tmp_path: Path) -> None:
    """The budget goes down and up 200 times while three answers at once are written, and then three others: every
    promise is kept, the books are at rest in the end, and the process has what it had after the first three."""
    with pico(tmp_path / "log") as (life, engine):
        sizes = []
        for number in range(200):
            if number % 50 == 0:
                names = [f"{number}-{one}" for one in range(3)]
                for name in names:
                    ask(life, name, length=1200)
                life.until(together(*(tokens(name, 8) for name in names)))
            life.world.budget((LITTLE, PLENTY)[number % 2])
            # every other cut waits for what it brings about: the others come while that is under way
            if number % 4 < 2:
                life.until(_has_come_to(LITTLE if number % 2 == 0 else PLENTY))
            else:
                time.sleep(0.01)
            if number % 50 == 49:
                for name in names:
                    life.world.leave(name)
                life.until(at_rest)
                sizes.append(psutil.Process(engine.pid).memory_info().rss)
        ask(life, "last")
        life.until(together(finished("last"), at_rest))
    assert len(life.pieces("last")) == LENGTH
    assert life.of(e.ProcessKilled) == []
    assert life.world.violations == []
    assert len(life.of(e.Switched)) > 50
    rounds = [one for one in life.of(MemorySample) if one.round]
    assert all(one.usage_bytes <= one.budget_bytes for one in rounds)
    assert sizes[-1] - sizes[0] < 8 * MIB, sizes
    assert replay(life.path).difference is None


def _has_come_to(budget_bytes: int) -> Callable[[Life], bool]:
    """The world has read a budget, nothing is under way any more, and tokens are produced."""

    def condition(life: Life) -> bool:
        changes, samples = life.of(e.BudgetChanged)[-1:], life.of(MemorySample)[-1:]
        read = any(one.budget_bytes == budget_bytes for one in changes)
        answers = isinstance(life.observed[-1], e.TokensProduced)
        return read and answers and not any(one.parts["transient"] for one in samples)

    return condition
