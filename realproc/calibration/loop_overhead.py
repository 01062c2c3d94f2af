"""What a live world adds to the steps of an engine that is a process of its own.

Between two calls it hears, decides and writes its log, and the cores of the engine cool down. On a small model that is
half of a token; none of it is seen where one call of the engine follows the other.
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
    """Nanoseconds that a world adds to a decode step of ``rung`` beyond its ``costs``: the median of an answer.

    The engine is ``slowdown`` times slower than the machine, as are ``costs``.
    """
    alone = replace(spec.ladder, rungs=(rung,), routes=())
    model = CostModel("", alone.name, 0, DiskCosts(0.0, 0.0), {rung.name: costs}, {})
    stamps: list[int] = []

    def hear(heard: WorldRecord) -> None:
        if isinstance(heard, TokensProduced):
            stamps.append(heard.at_ns)
        elif isinstance(heard, TenantFinished):
            world.stop("measured")

    with Path(os.devnull).open("w", encoding="utf-8", buffering=1) as sink:
        engine = SlowedEngine(ChildSpec(str(spec.path)), slowdown)
        world = LiveWorld(alone, model, Hold(), engine, Log(sink, {}), budget_bytes=PLENTY_BYTES, listen=hear)
        world.ask("measured", TenantKind.FOREGROUND, made_up_request(PROMPT_TOKENS, ANSWER_TOKENS))
        world.run()
    added = [
        after - before - costs.decode.ns(1, PROMPT_TOKENS + number)
        for number, (before, after) in enumerate(pairwise(stamps))
    ]
    return max(0, round(statistics.median(added)))


def with_overhead(costs: RungCosts, added: int, healing_cells: int) -> RungCosts:
    """The costs of a rung with ``added`` nanoseconds around every step; what healing takes, measured on
    ``healing_cells``, is the same as before."""
    decode, read = costs.decode, costs.read
    bare_ns = decode.ns(1, healing_cells)
    return replace(
        costs,
        read=StepCost(read.fixed_ns + added, read.token_ns, read.pair_ns),
        decode=StepCost(decode.fixed_ns, decode.token_ns + added, decode.pair_ns),
        healing=tuple(
            HealingFactor(one.tokens, (one.factor * bare_ns + added) / (bare_ns + added))
            for one in costs.healing
        ),
    )
