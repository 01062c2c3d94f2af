"""Simulation fuzz: worlds made from a seed, each run twice, none of which may break a promise.

A seed chooses a ladder, a machine, a policy with its parameters, tenants and a budget that goes anywhere for hours;
and, swarm-like, which kinds of trouble this world has at all (Groce et al., Swarm Testing, ISSTA 2012): a world with
everything in it shows less than many worlds that each leave something out.

What must hold in every world: no invariant or checker complains, no process is killed, both runs have the same log, and
every tenant that stayed has the whole answer, since memory is plentiful for the last stretch of every trace.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import multiprocess
import typer
from rich.console import Console
from rich.progress import track
from tabulate import tabulate

from molt.core.bound import reaction_ns_max
from molt.core.costs import CostModel, DiskCosts, Divergence, RouteCosts, RungCosts, StepCost
from molt.core.engine_protocol import Request
from molt.core.events import TenantKind
from molt.core.ladder import KVLayout, Ladder, Route, RouteKind, Rung
from molt.core.view import Policy
from molt.formats import provenance
from molt.formats.log import Log
from molt.formats.new_file import check_new_file, save_new
from molt.jobs.scenario import ResolvedScenario, ResolvedTenant
from molt.policies.molt import Molt
from molt.policies.restart import Restart
from molt.units import MIB
from sim.coverage import MECHANISMS, fired
from sim.faults import Faults, FaultyEngine
from sim.world import SimulatedWorld

POSITIONS = 8192
MS = 1_000_000
S = 1_000_000_000
HOURS_MEAN = 9
TAIL_NS = 2400 * S
"""At least so long memory is plentiful in the end: enough for every answer on the slowest machine there is."""
CAMPAIGN = 500
"""Seeds from which on a mechanism that never fired is a failure: the fuzz would not be testing it."""


@dataclass(frozen=True, slots=True)
class FuzzCase:
    """Everything a seed decides; the scheduler takes the ``costs`` for those ``believed``."""

    scenario: ResolvedScenario
    ladder: Ladder
    costs: CostModel
    believed: CostModel
    policy: Policy
    faults: Faults


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a seed. ``failure`` is ``None``, or what broke, in a line."""

    seed: int
    failure: str | None
    fired: Counter[str]
    simulated_ns: int
    tokens: int
    healed: int
    overshoot_bytes: int | None


@dataclass(slots=True)
class FuzzCampaign:
    """The results of many seeds."""

    first: int
    seeds: int = 0
    failures: list[str] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    simulated_ns: int = 0
    tokens: int = 0
    healed: int = 0
    overshoot_bytes_max: int | None = None
    wall_s: float = 0.0

    def add(self, result: Result) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.fired.update(result.fired)
        self.simulated_ns += result.simulated_ns
        self.tokens += result.tokens
        self.healed += result.healed
        known = [one for one in (self.overshoot_bytes_max, result.overshoot_bytes) if one is not None]
        self.overshoot_bytes_max = max(known, default=None)
        if result.failure is not None:
            self.failures.append(f"molt fuzz --seeds 1 --start {result.seed}: {result.failure}")

    @property
    def silent(self) -> tuple[str, ...]:
        """Mechanisms that never fired, of a campaign that is long enough to expect all."""
        return tuple(name for name in MECHANISMS if not self.fired[name]) if self.seeds >= CAMPAIGN else ()

    def document(self) -> dict[str, Any]:
        """What the JSON holds."""
        return {
            "first_seed": self.first,
            "seeds": self.seeds,
            "failures": self.failures,
            "mechanisms": {name: self.fired[name] for name in MECHANISMS},
            "silent": list(self.silent),
            "simulated_hours": self.simulated_ns / 3600 / S,
            "tokens": self.tokens,
            "tokens_healed": self.healed,
            "overshoot_bytes_max": self.overshoot_bytes_max,
            "wall_s": self.wall_s,
            "machine": provenance.machine(),
            "versions": provenance.versions(),
            "commit": provenance.commit(),
        }


# --- from a seed to a world


def make_case(seed: int) -> FuzzCase:
    """The world of a seed."""
    random = Random(seed)  # noqa: S311
    ladder = _ladder(random)
    costs = _costs(random, ladder)
    policy = _policy(random)
    horizon_ns = round(random.expovariate(1 / HOURS_MEAN) * 3600 * S) + 2 * TAIL_NS
    busy = [random.randint(0, horizon_ns - 2 * TAIL_NS) for _ in range(random.randint(1, 3))]
    tenants = tuple(_tenants(random, busy))
    late_ns = random.choice((0, 50 * MS, 200 * MS))
    faults = Faults(
        switch=_sometimes(random, 0.3),
        spill=random.choice((0.0, 0.0, 0.5)),  # seldom as it is that something is written
        restore=random.choice((0.0, 0.5, 1.0)),
        late=_sometimes(random, 0.5),
        doubled=_sometimes(random, 0.5),
        late_ns=late_ns,
        load=_sometimes(random, 0.5),
        release=_sometimes(random, 0.5),
        withheld_share=random.choice((0.05, 1.0)),
    )
    # What cannot be given back has to fit, or nothing could live.
    withheld = round(sum(rung.weight_bytes for rung in ladder.rungs) * faults.withheld_share)
    lowest = withheld if faults.release else 0
    reaction_ns = reaction_ns_max(costs, ladder, POSITIONS, policy)
    if faults.release:  # each that keeps something is to the others a fall of the budget
        reaction_ns *= 1 + len(ladder.rungs)
    scenario = ResolvedScenario(
        name=f"fuzz-{seed}",
        ladder=ladder.name,
        seed=seed,
        horizon_ns=horizon_ns,
        kill_after_ns=reaction_ns + late_ns + random.randint(100, 2000) * MS,
        budgets=tuple(
            (at, lowest + size) for at, size in _budgets(random, ladder, busy, horizon_ns, tenants)
        ),
        tenants=tenants,
        policies=(),
        profile="fuzz",
        slowdown=1.0,
    )
    return FuzzCase(scenario, ladder, costs, _hopeful(random, costs), policy, faults)


def _sometimes(random: Random, most: float) -> float:
    return random.uniform(0.0, most) if random.random() < 0.3 else 0.0


def _ladder(random: Random) -> Ladder:
    rungs: list[Rung] = []
    size = random.randint(16, 6000) * MIB
    for number in range(random.randint(2, 4)):
        before = rungs[-1] if rungs else None
        is_twin = before is not None and random.random() < 0.4  # the same weights at another precision
        layout = KVLayout(random.randint(2, 32), random.randint(1, 4), random.choice((32, 64, 128)), 4)
        rungs.append(
            Rung(
                name=f"tier{number}",
                weights=before.weights if before and is_twin else f"weights{number}",
                precision=f"p{number}",
                weight_bytes=size,
                scratch_bytes=random.randint(0, 1 + size // 20),
                kv=before.kv if before and is_twin else layout,
                max_positions=POSITIONS,
            )
        )
        size = round(size * random.uniform(0.2, 0.7))
    pairs = [(one, other) for one in rungs for other in rungs if one is not other]
    routes = []
    for one, other in pairs:
        if one.weights == other.weights:
            routes.append(Route(one.name, other.name, RouteKind.CARRY))
        elif random.random() < 0.7:
            map_bytes = random.randint(0, other.weight_bytes // 4)
            routes.append(Route(one.name, other.name, RouteKind.PROJECT, map_bytes))
    return Ladder("fuzz", tuple(rungs), tuple(routes))


def _costs(random: Random, ladder: Ladder) -> CostModel:
    byte_ns = 1 / random.uniform(0.2, 5)
    rungs = {}
    for rung in ladder.rungs:
        decode_ns = rung.weight_bytes / random.uniform(40, 400) + 2 * MS
        read = StepCost(decode_ns, decode_ns / random.uniform(3, 40), random.uniform(0, 50))
        decode = StepCost(0.0, decode_ns, random.uniform(0, 500))
        rungs[rung.name] = RungCosts(
            round(rung.weight_bytes * byte_ns), random.randint(1, 40) * MS, read, decode
        )
    routes = {
        f"{route.source}->{route.dest}": RouteCosts(
            StepCost(random.uniform(0, 100) * MS, random.uniform(0, 0.5) * MS), (Divergence(256, 16, 0.2),)
        )
        for route in ladder.routes
    }
    disk = DiskCosts(random.uniform(0.2, 10), random.uniform(0.2, 10))
    return CostModel("made up", ladder.name, random.randint(1, 5) * S, disk, rungs, routes)


def _hopeful(random: Random, costs: CostModel) -> CostModel:
    """The same costs, or those of a machine that loads ten times as fast."""
    if random.random() < 0.7:
        return costs
    rungs = {name: replace(rung, load_ns=rung.load_ns // 10) for name, rung in costs.rungs.items()}
    return replace(costs, rungs=rungs)


def _policy(random: Random) -> Policy:
    if random.random() < 0.2:
        return Restart()
    return Molt(
        cooldown_ns=random.choice((0, 500, 2000, 10_000)) * MS,
        margin=random.choice((0.0, 0.05, 0.2)),
        min_cells=random.choice((8, 32, 200)),
        heal_tokens=random.choice((0, 8, 64)),
        heal_stretch=random.choice((1.0, 1.5, 2.0, 4.0)),
        native_tokens=random.choice((0, 16, 200)),
        stall_ns=random.choice((0, 0, 100, 1000)) * MS,
        spill_within_ns=random.choice((0, 100, 1000)) * MS,
    )


def _tenants(random: Random, busy: list[int]) -> Iterator[ResolvedTenant]:
    for number in range(random.randint(1, 8)):
        arrives_ns = random.choice(busy) + random.randint(0, 120) * S
        request = Request(
            (1,) * random.randint(1, random.choice((20, 400, 2000))),
            random.randint(1, random.choice((20, 400, 1200))),
            stop_at_eos=False,
            temperature=0.0,
            top_p=1.0,
            seed=0,
        )
        leaves_ns = arrives_ns + random.randint(1, 100_000) * MS if random.random() < 0.1 else None
        yield ResolvedTenant(f"t{number}", random.choice(tuple(TenantKind)), arrives_ns, request, leaves_ns)


def _budgets(
    random: Random, ladder: Ladder, busy: list[int], horizon_ns: int, tenants: tuple[ResolvedTenant, ...]
) -> Iterator[tuple[int, int]]:
    """Plenty at both ends; between, a budget that goes anywhere while a tenant is at work."""
    caches = sum(
        max(rung.kv_bytes(len(t.request.prompt_ids) + t.request.max_tokens) for rung in ladder.rungs)
        for t in tenants
    )
    plenty = 3 * sum(rung.resident_bytes for rung in ladder.rungs) + 3 * caches
    plenty += max((route.map_bytes for route in ladder.routes), default=0)
    yield 0, plenty
    style = random.choice(("steps", "oscillation", "storm"))
    times = set()
    for begin_ns in busy:
        at_ns = begin_ns
        for _ in range(random.randint(1, 24)):
            at_ns += random.randint(1, {"steps": 60_000, "oscillation": 4000, "storm": 300}[style]) * MS
            times.add(min(at_ns, horizon_ns - TAIL_NS))
    anchors = [rung.resident_bytes for rung in ladder.rungs] + [
        caches,
        caches // 4,
        caches // 50,
        plenty // 3,
    ]
    low, high = sorted(random.choice(anchors) for _ in range(2))
    for number, at_ns in enumerate(sorted(times)):
        size = (low, high)[number % 2] if style == "oscillation" else random.choice(anchors)
        yield at_ns, max(1, round(size * random.uniform(0.3, 1.7)))
    yield max(times) + S, plenty


# --- running one


def run_seed(seed: int) -> Result:
    """Run a seed's world twice and judge it."""
    case = make_case(seed)
    world, text = _run(case)
    _, again = _run(case)
    records = [json.loads(line) for line in text.splitlines()[1:]]
    tokens = Counter[str]()
    for record in records:
        if record.get("type") == "TokensProduced":
            tokens[record["tenant"]] += record["count"]
    rounds = [r for r in records if r["kind"] == "memory" and r["round"]]
    prompt = not (case.faults.late and case.faults.late_ns)  # there is no reaction to what is not known yet
    return Result(
        seed=seed,
        failure=_failure(case, world, records, tokens, same=_digest(text) == _digest(again)),
        fired=fired(records),
        simulated_ns=case.scenario.horizon_ns,
        tokens=tokens.total(),
        healed=sum(record.get("healed", 0) for record in records),
        overshoot_bytes=max(r["usage_bytes"] - r["budget_bytes"] for r in rounds) if prompt else None,
    )


def _run(case: FuzzCase) -> tuple[SimulatedWorld, str]:
    random = Random(case.scenario.seed + 1)  # noqa: S311
    sink = io.StringIO()
    world = SimulatedWorld(
        case.scenario,
        case.ladder,
        case.costs,
        case.policy,
        FaultyEngine(case.ladder, case.faults, random),
        Log(sink, {}),
        believed=case.believed,
        signal_delays=case.faults.signal_delays(random),
    )
    world.run()
    return world, sink.getvalue()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _failure(
    case: FuzzCase, world: SimulatedWorld, records: list[dict[str, Any]], tokens: Counter[str], *, same: bool
) -> str | None:
    if world.violations:
        first = world.violations[0]
        return f"{first['invariant']} at {first['at_ns']} ns: {first['detail']}"
    if world.refusals.mistakes:
        return world.refusals.line()
    if any(record.get("type") == "ProcessKilled" for record in records):
        return "killed"
    if not same:
        return "two runs, two logs"
    for tenant in case.scenario.tenants:
        wanted = tenant.request.max_tokens
        if tenant.leaves_ns is None and tokens[tenant.name] != wanted:
            return f"{tenant.name} has {tokens[tenant.name]} of {wanted} tokens although memory came back"
    return None


# --- running many


def run_campaign(first: int, seeds: int, jobs: int) -> FuzzCampaign:
    """Run seeds ``first``, ``first + 1``, ... on ``jobs`` processes."""
    begin, campaign = time.perf_counter(), FuzzCampaign(first)
    numbers = range(first, first + seeds)
    console = Console(stderr=True)
    if jobs == 1:
        for result in track(map(run_seed, numbers), "seeds", total=seeds, console=console):
            campaign.add(result)
    else:
        with multiprocess.get_context("spawn").Pool(jobs) as pool:
            results = pool.imap_unordered(run_seed, numbers, chunksize=20)
            for result in track(results, "seeds", total=seeds, console=console):
                campaign.add(result)
    campaign.failures.sort()
    campaign.wall_s = time.perf_counter() - begin
    return campaign


def command(
    seeds: Annotated[int, typer.Option(min=1, help="Number of worlds; each is made from one seed.")] = 1000,
    start: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    out: Annotated[Path | None, typer.Option(help="New JSON file for the counts.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Simulate random worlds with faults, each twice, and check that every policy keeps its promises.

    Example: molt fuzz --seeds 200 --jobs 2
    """
    if out is not None:
        check_new_file(out)
    campaign = run_campaign(start, seeds, min(jobs, seeds))
    document = json.dumps(campaign.document(), indent=1) + "\n"
    if out is not None:
        save_new(out, document)
    print(document if as_json else _table(campaign))
    if campaign.failures or campaign.silent:
        raise typer.Exit(1)


def _table(campaign: FuzzCampaign) -> str:
    counts = tabulate(
        [(name, campaign.fired[name]) for name in MECHANISMS], ("mechanism", "fired"), intfmt=","
    )
    worst = campaign.overshoot_bytes_max or 0
    lines = [
        counts,
        f"{campaign.seeds:,} seeds from {campaign.first}, {campaign.simulated_ns / 3600 / S:,.0f} simulated hours, "
        f"{campaign.tokens:,} tokens ({campaign.healed:,} healed) in {campaign.wall_s:,.0f} s",
        f"largest overshoot after enforcement: {worst:,} bytes",
        *(f"never fired: {name}" for name in campaign.silent),
        f"{len(campaign.failures)} failures",
        *campaign.failures[:20],
    ]
    return "\n".join(lines)
