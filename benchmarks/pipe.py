"""The cost of a pipe: tokens a second of an engine in this process and of one in a process of its own, in turns.

``python -m benchmarks.pipe [LADDER]``; the last table has the time of a token where no model computes.
"""

from __future__ import annotations

import io
import statistics
import sys
import threading
import time
from collections.abc import Callable

from tabulate import tabulate

from molt.core.engine_protocol import Engine, Request
from molt.core.events import TenantFinished, TenantKind, TokensProduced
from molt.engine.modelled import ModelledEngine
from molt.engine.real import RealEngine
from molt.formats.log import Log
from molt.jobs.plugins import make_policy
from molt.jobs.profile import load_profile
from molt.live.live_world import LiveWorld, WorldRecord
from molt.live.remote import ChildSpec, RemoteEngine
from molt.models.ladder_file import LadderSpec, resolve

PROMPT_TOKENS = 32
TOKENS = 64
TURNS = 5


def token_s(engine: Engine, rung: str) -> float:
    """Seconds a token of one answer."""
    request = Request((5,) * PROMPT_TOKENS, TOKENS, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)
    engine.admit("tenant", request, rung, PROMPT_TOKENS + TOKENS)
    engine.prefill("tenant", PROMPT_TOKENS - 1, PROMPT_TOKENS)
    begin = time.perf_counter()
    for _ in range(TOKENS):
        engine.decode("tenant", 1)
    took = time.perf_counter() - begin
    engine.finish("tenant")
    return took / TOKENS


def in_turns(engines: list[Engine], rung: str) -> list[list[float]]:
    """Seconds a token of each engine, ``TURNS`` times; the first turn only warms up."""
    for engine in engines:
        engine.load(rung)
    turns = [[token_s(engine, rung) for engine in engines] for _ in range(TURNS + 1)]
    for engine in engines:
        engine.release(rung)
    return [list(times) for times in zip(*turns[1:], strict=True)]


def world_token_s(spec: LadderSpec, engine: Engine) -> float:
    """Seconds a token of a live world whose engine takes no time: scheduler, log, and all between them."""
    costs, tokens = load_profile(spec.ladder.name, spec.ladder), 1000
    done, stamps = threading.Event(), []

    def on_record(record: WorldRecord) -> None:
        if isinstance(record, TokensProduced):
            stamps.append(record.at_ns)
        if isinstance(record, TenantFinished):
            done.set()

    world = LiveWorld(
        spec.ladder,
        costs,
        make_policy("molt", {}),
        engine,
        Log(io.StringIO(), {}),
        budget_bytes=1 << 40,
        on_record=on_record,
    )
    thread = threading.Thread(target=world.run)
    thread.start()
    request = Request((5,) * PROMPT_TOKENS, tokens, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)
    world.ask("tenant", TenantKind.FOREGROUND, request)
    done.wait()
    world.stop("done")
    thread.join()
    return (stamps[-1] - stamps[0]) / 1e9 / (tokens - 1)


def main(ladder: str) -> None:
    """Print both tables."""
    spec = resolve(ladder)
    here, there = RealEngine(spec), RemoteEngine(ChildSpec(ladder))
    there.start()
    rows = []
    for rung in spec.ladder.rungs:
        one, other = in_turns([here, there], rung.name)
        ratios = [a / b for a, b in zip(one, other, strict=True)]
        rows.append(
            (rung.name, 1 / statistics.median(one), 1 / statistics.median(other), statistics.median(ratios))
        )
    there.kill()
    heads = ("rung", "tokens/s in process", "tokens/s through the pipe", "ratio (median of turns)")
    print(tabulate(rows, heads, floatfmt=("", ".1f", ".1f", ".3f")))

    bare, remote = ModelledEngine(spec.ladder), RemoteEngine(ChildSpec(ladder, "modelled"))
    remote.start()
    one, other = in_turns([bare, remote], spec.ladder.bottom.name)
    remote.kill()
    makers: list[tuple[str, Callable[[], Engine]]] = [
        ("a live world, engine in process", lambda: ModelledEngine(spec.ladder)),
        ("a live world through the pipe", lambda: RemoteEngine(ChildSpec(ladder, "modelled"))),
    ]
    parts = [
        ("a call in process", statistics.median(one)),
        ("a call through the pipe", statistics.median(other)),
    ]
    parts += [(name, world_token_s(spec, make())) for name, make in makers]
    print()
    print(tabulate([(name, s * 1e6) for name, s in parts], ("a token without a model", "µs"), floatfmt=".0f"))


if __name__ == "__main__":
    main(*sys.argv[1:] or ["pico"])
