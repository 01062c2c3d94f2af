"""The worst that can be found beside the bound: ``python -m tests.worst [--examples N] [--seed S] [--out FILE]``.

Worlds are drawn, and hypothesis climbs towards those in which usage is above the budget for longest, or by most. What
it finds is written next to what the bound allows.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, target

from molt.core.bound import reaction_ns_max
from molt.jobs.plugins import make_policy
from molt.jobs.scenario import ResolvedScenario
from tests import small
from tests.small import COSTS, LADDER
from tests.strategies import worlds

PUBLISHED = Path(__file__).resolve().parent.parent / "reports" / "published" / "worst_found.json"


@dataclass(slots=True)
class Excess:
    """How usage was above the budget in one run: bytes after enforcement, bytes at any moment, the longest time since
    the last fall of the budget, the longest time at a stretch, and what the bound says about each world."""

    after_enforcement_bytes: int = -(1 << 62)
    before_enforcement_bytes: int = 0
    since_fall_ns: int = 0
    at_a_stretch_ns: int = 0
    bound_ns: int = 0


def excess(ran: small.Ran, on: ResolvedScenario, policy: Any) -> Excess:
    """Read off the samples of memory."""
    longest = max(len(t.request.prompt_ids) + t.request.max_tokens for t in on.tenants)
    worst = Excess(bound_ns=reaction_ns_max(COSTS, LADDER, longest, policy))
    budget = fall_ns = 0
    since_ns: int | None = None
    for record in ran.of("memory"):
        now_ns, over = record["at_ns"], record["usage_bytes"] - record["budget_bytes"]
        if since_ns is not None:
            worst.since_fall_ns = max(worst.since_fall_ns, now_ns - fall_ns)
            worst.at_a_stretch_ns = max(worst.at_a_stretch_ns, now_ns - since_ns)
        if record["budget_bytes"] < budget:
            fall_ns = now_ns
        budget = record["budget_bytes"]
        since_ns = (now_ns if since_ns is None else since_ns) if over > 0 else None
        worst.before_enforcement_bytes = max(worst.before_enforcement_bytes, over)
        if record["round"]:
            worst.after_enforcement_bytes = max(worst.after_enforcement_bytes, over)
    return worst


def unkilled(on: ResolvedScenario) -> ResolvedScenario:
    """The same world with an OS that only watches."""
    return replace(on, kill_after_ns=on.horizon_ns)


def search(policy_name: str, examples: int, seed_number: int) -> dict[str, Any]:
    """The worst of so many worlds, by each measure, and the share of the bound that it comes to."""
    policy = make_policy(policy_name, {})
    found = Excess()
    share, seen = 0.0, 0

    @seed(seed_number)
    @settings(
        max_examples=examples,
        phases=(Phase.generate, Phase.target),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(on=worlds().map(unkilled))
    def look(on: ResolvedScenario) -> None:
        nonlocal share, seen
        worst = excess(small.simulate(policy, on), on, policy)
        target(float(worst.since_fall_ns), label="since the last fall")
        target(float(worst.at_a_stretch_ns), label="at a stretch")
        target(float(worst.after_enforcement_bytes), label="after enforcement")
        share, seen = max(share, worst.since_fall_ns / worst.bound_ns), seen + 1
        for name, value in asdict(worst).items():
            setattr(found, name, max(getattr(found, name), value))

    look()
    return {"worlds": seen, "seed": seed_number, "share_of_bound": round(share, 4), **asdict(found)}


def worst_of_both(examples: int, seed_number: int) -> dict[str, Any]:
    """The worst found under each policy that makes promises, beside the bound."""
    return {
        "bound": {"after_enforcement_bytes": 0, "since_fall_ns": "the bound_ns of each world"},
        "worst": {name: search(name, examples, seed_number) for name in ("molt", "restart")},
    }


def main() -> None:
    """Search, and write what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=PUBLISHED)
    asked = parser.parse_args()
    page = {
        "command": f"python -m tests.worst --examples {asked.examples} --seed {asked.seed}",
        **worst_of_both(asked.examples, asked.seed),
    }
    asked.out.write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(page, indent=2))


if __name__ == "__main__":
    main()
