"""The overhead of a live world's loop, around each step of an engine in a process of its own.

Between two calls of the engine the world takes facts, decides and writes its log, and the engine's cores cool down. On
a small model that is half of a token's time. It does not show where calls of the engine follow each other at once.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from molt.core.costs import CostModel, DiskCosts, HealingFactor, RungCosts, StepCost
from molt.core.events import TenantFinished, TenantKind, TokensProduced
from molt.core.ladder import Rung
from molt.formats.log import Log
from molt.live.live_world import LiveWorld, WorldRecord
from molt.live.remote import ChildSpec
from molt.models.ladder_file import LadderSpec
from molt.policies.hold import Hold
from realproc.supervisor.engine_process import SlowedEngine, made_up_request

PROMPT_TOKENS, ANSWER_TOKENS = 128, 64
PLENTY_BYTES = 2**62


def added_ns(spec: LadderSpec, rung: Rung, costs: RungCosts, slowdown: float = 1.0) -> int:
    """Nanoseconds that a live world adds to a decode step of ``rung``, beyond its ``costs``: the median of an answer.

    Engine and ``costs`` are ``slowdown`` times slower than the machine.
    """
    alone = replace(spec.ladder, rungs=(rung,), routes=())
    model = CostModel("", alone.name, 0, DiskCosts(0.0, 0.0), {rung.name: costs}, {})
    prompt_tokens = min(PROMPT_TOKENS, rung.max_positions - ANSWER_TOKENS)
    stamps: list[int] = []

    def on_record(record: WorldRecord) -> None:
        if isinstance(record, TokensProduced):
            stamps.append(record.at_ns)
        elif isinstance(record, TenantFinished):
            world.stop("measured")

    with Path(os.devnull).open("w", encoding="utf-8", buffering=1) as sink:
        engine = SlowedEngine(ChildSpec(str(spec.path)), slowdown)
        world = LiveWorld(
            alone, model, Hold(), engine, Log(sink, {}), budget_bytes=PLENTY_BYTES, on_record=on_record
        )
        world.ask("measured", TenantKind.FOREGROUND, made_up_request(prompt_tokens, ANSWER_TOKENS))
        world.run()
    added = [
        after - before - costs.decode.ns(1, prompt_tokens + number)
        for number, (before, after) in enumerate(pairwise(stamps))
    ]
    return max(0, round(statistics.median(added)))


def with_overhead(costs: RungCosts, added: int, healing_cells: int) -> RungCosts:
    """The costs of a rung with ``added`` nanoseconds around every step. Healing, whose factor was measured on
    ``healing_cells``, takes as many nanoseconds more than a bare step as before."""
    decode, prefill = costs.decode, costs.read
    bare_ns = decode.ns(1, healing_cells)
    return replace(
        costs,
        read=StepCost(prefill.fixed_ns + added, prefill.token_ns, prefill.pair_ns),
        decode=StepCost(decode.fixed_ns, decode.token_ns + added, decode.pair_ns),
        healing=tuple(
            HealingFactor(one.tokens, (one.factor * bare_ns + added) / (bare_ns + added))
            for one in costs.healing
        ),
    )
