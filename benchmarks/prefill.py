"""How fast a live world prefills a prompt, beside the same engine prefilling it alone.

``python -m benchmarks.prefill [LADDER]``. Alone, one call prefills the whole prompt. In a run the world looks for new
facts between two slices, and can stop there. Both are measured in turns, rung by rung, with the engine in a process of
its own. The ratio is the share of the speed that a run keeps; during the longest slice it could not have stopped.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

from molt.core.costs import CostModel, DiskCosts, RungCosts, StepCost
from molt.core.engine_protocol import Request
from molt.core.events import PromptRead, TenantFinished, TenantKind
from molt.core.ladder import Ladder
from molt.core.turns import PREFILL_CHUNK
from molt.formats.log import Log
from molt.live.live_world import LiveWorld, WorldRecord
from molt.live.remote import ChildSpec, RemoteEngine
from molt.models.ladder_file import resolve
from molt.policies.hold import Hold

PROMPT_TOKENS = 8 * PREFILL_CHUNK
ROUNDS = 3
PLENTY_BYTES = 2**62


def request(rung_seed: int) -> Request:
    """A prompt of which the length alone matters, and one token of an answer."""
    prompt = tuple((rung_seed + number) % 200 + 20 for number in range(PROMPT_TOKENS + 1))
    return Request(prompt, 1, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=0)


def alone_s(engine: RemoteEngine, rung: str) -> float:
    """Seconds of one call that prefills the prompt."""
    engine.admit("alone", request(1), rung, PROMPT_TOKENS + 1)
    begin_s = time.perf_counter()
    engine.prefill("alone", PROMPT_TOKENS, PREFILL_CHUNK)
    took_s = time.perf_counter() - begin_s
    engine.finish("alone")
    return took_s


class Watched(RemoteEngine):
    """An engine that notes how long each call of prefill took, and outlives a world."""

    def __init__(self, spec: ChildSpec) -> None:
        super().__init__(spec)
        self.slices_s: list[float] = []

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        begin_s = time.perf_counter()
        try:
            super().prefill(tenant, tokens, chunk, within_ns)
        finally:
            if within_ns is not None:
                self.slices_s.append(time.perf_counter() - begin_s)

    def hurry(self, within_s: float) -> None:
        """Nothing: the child is used again."""

    def kill(self) -> None:
        """Nothing: ``end`` does it."""

    def end(self) -> None:
        """End the child."""
        super().kill()


def run_s(engine: Watched, ladder: Ladder, rung: str) -> float:
    """Seconds from the first to the last chunk of the prompt in a live world."""
    only = replace(ladder, rungs=(ladder.rung(rung),), routes=())
    costs = RungCosts(1, 1, StepCost(1, 1), StepCost(1, 1))
    model = CostModel("", only.name, 1, DiskCosts(1.0, 1.0), {rung: costs}, {})
    stamps: list[int] = []

    def observe(record: WorldRecord) -> None:
        if isinstance(record, PromptRead):
            stamps.append(record.at_ns)
        elif isinstance(record, TenantFinished):
            world.stop("measured")

    with Path(os.devnull).open("w", encoding="utf-8") as sink:
        world = LiveWorld(
            only, model, Hold(), engine, Log(sink, {}), budget_bytes=PLENTY_BYTES, on_record=observe
        )
        world.ask("run", TenantKind.FOREGROUND, request(2))
        world.run()
    return (stamps[-1] - stamps[0]) / 1e9 * PROMPT_TOKENS / (PROMPT_TOKENS - PREFILL_CHUNK)


def main(ladder_name: str) -> None:
    """Measure every rung of a ladder and print a table."""
    spec = resolve(ladder_name)
    rows = []
    for rung in spec.ladder.rungs:
        engine = Watched(ChildSpec(str(spec.path)))
        engine.start()
        try:
            engine.load(rung.name)
            alone_s(engine, rung.name)
            pairs = [
                (alone_s(engine, rung.name), run_s(engine, spec.ladder, rung.name)) for _ in range(ROUNDS)
            ]
        finally:
            engine.end()
        alone, run = (statistics.median(times) for times in zip(*pairs, strict=True))
        rows.append(
            (
                rung.name,
                PROMPT_TOKENS / alone,
                PROMPT_TOKENS / run,
                statistics.median(a / r for a, r in pairs),
                1e3 * max(engine.slices_s),
            )
        )
    headers = ("rung", "alone, tok/s", "in a run, tok/s", "ratio", "longest slice, ms")
    print(tabulate(rows, headers, floatfmt=("", ".0f", ".0f", ".2f", ".0f")))


if __name__ == "__main__":
    main(*sys.argv[1:] or ("pico",))
