"""A small made-up ladder with its costs, and the shortest way to simulate something on it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from molt.core.costs import CostModel, DiskCosts, Divergence, RouteCosts, RungCosts, StepCost
from molt.core.engine_protocol import Request
from molt.core.events import TenantKind
from molt.core.ladder import KVLayout, Ladder, Route, RouteKind, Rung
from molt.core.view import Policy
from molt.engine.modelled import ModelledEngine
from molt.formats.log import Log, plain
from molt.jobs.scenario import ResolvedScenario, ResolvedTenant
from sim.world import SimulatedWorld

MIB = 1 << 20
MS = 1_000_000
S = 1_000_000_000

_KV0 = KVLayout(layers=7, kv_heads=2, head_dim=64, dtype_bytes=4)
_KV1 = KVLayout(layers=4, kv_heads=2, head_dim=32, dtype_bytes=4)

LADDER = Ladder(
    "small",
    (
        Rung("tier0", "tier0", "fp32", 26 * MIB, MIB, _KV0, 2048),
        Rung("tier1", "tier1", "fp32", 9 * MIB, MIB // 2, _KV1, 2048),
        Rung("tier2", "tier1", "int8", 5 * MIB // 2, MIB // 2, _KV1, 2048),
    ),
    (
        Route("tier0", "tier1", RouteKind.PROJECT, MIB),
        Route("tier0", "tier2", RouteKind.PROJECT, MIB),
        Route("tier1", "tier0", RouteKind.PROJECT, MIB),
        Route("tier2", "tier0", RouteKind.PROJECT, MIB),
        Route("tier1", "tier2", RouteKind.CARRY),
        Route("tier2", "tier1", RouteKind.CARRY),
    ),
)


def _rung_costs(load_ms: int, decode_ms: int) -> RungCosts:
    return RungCosts(
        load_ms * MS, 40 * MS, StepCost(2 * MS, decode_ms * MS / 10, 100), StepCost(0, decode_ms * MS, 500)
    )


COSTS = CostModel(
    machine="made up",
    ladder="small",
    process_start_ns=3 * S,
    disk=DiskCosts(write_byte_ns=1.0, read_byte_ns=0.5),
    rungs={"tier0": _rung_costs(800, 80), "tier1": _rung_costs(400, 40), "tier2": _rung_costs(200, 30)},
    routes={
        f"{r.source}->{r.dest}": RouteCosts(StepCost(60 * MS, 0.4 * MS), (Divergence(256, 16, 0.1),))
        for r in LADDER.routes
    },
)


def tenant(
    name: str = "chat",
    kind: TenantKind = TenantKind.FOREGROUND,
    *,
    arrives_ns: int = 0,
    prompt_tokens: int = 200,
    max_tokens: int = 100,
) -> ResolvedTenant:
    """A tenant whose prompt is made of token 1."""
    request = Request((1,) * prompt_tokens, max_tokens, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=1)
    return ResolvedTenant(name, kind, arrives_ns, request)


def scenario(
    budgets: Sequence[tuple[int, int]],
    tenants: Sequence[ResolvedTenant] = (),
    *,
    horizon_ns: int = 60 * S,
    kill_after_ns: int = S // 2,
) -> ResolvedScenario:
    """A scenario on the small ladder; without tenants, one foreground tenant."""
    return ResolvedScenario(
        name="small",
        ladder="small",
        seed=0,
        horizon_ns=horizon_ns,
        kill_after_ns=kill_after_ns,
        budgets=tuple(budgets),
        tenants=tuple(tenants) or (tenant(),),
        policies=(),
        profile="small",
        slowdown=1.0,
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished simulation: the text of its log, its records, and the violations found."""

    text: str
    records: list[dict[str, Any]]
    violations: list[dict[str, Any]]

    def of(self, *types: str) -> list[dict[str, Any]]:
        """Records of these kinds or types."""
        return [r for r in self.records if r.get("type") in types or r["kind"] in types]

    def overshoot_max(self) -> int:
        """Largest usage minus budget over the samples taken after enforcement."""
        rounds = [r for r in self.of("memory") if r["round"]]
        return max(r["usage_bytes"] - r["budget_bytes"] for r in rounds)

    def tokens(self, name: str) -> int:
        """Tokens reported for a tenant, over all attempts."""
        return sum(r["count"] for r in self.of("TokensProduced") if r["tenant"] == name)


def simulate(
    policy: Policy,
    on: ResolvedScenario,
    *,
    ladder: Ladder = LADDER,
    costs: CostModel = COSTS,
    engine: type[ModelledEngine] = ModelledEngine,
) -> Ran:
    """Run one policy with the modelled engine, or one that fails in its own way."""
    sink = io.StringIO()
    header = {
        "policy": {"name": policy.name, "source": policy.name, "params": {}},
        "ladder": plain(ladder),
        "costs": plain(costs),
    }
    world = SimulatedWorld(on, ladder, costs, policy, engine(ladder), Log(sink, header))
    world.run()
    text = sink.getvalue()
    return Ran(text, [json.loads(line) for line in text.splitlines()[1:]], world.violations)
