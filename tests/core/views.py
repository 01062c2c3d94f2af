"""What a policy sees, made by hand, and what it says, in short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from molt.core.events import TenantKind
from molt.core.plan import Plan, Run
from molt.core.state import Phase, State, Tenant
from molt.core.view import View
from tests.small import COSTS, LADDER, S

NOW = 100 * S
BOTTOM = LADDER.bottom
CELLS, ROOM = 200, 299


def tenant(name: str, rung: str | None = None, **changes: Any) -> Tenant:
    """A tenant of 201 prompt tokens and 99 to come, all read, active on ``rung``; without one it waits."""
    order = ord(name) - ord("a")
    new = Tenant(name, TenantKind.BATCH, attempt=1, order=order, prompt_tokens=201, max_tokens=99)
    if rung is not None:
        begun = {"cache_rung": rung, "read": CELLS, "settled": CELLS}
        new = replace(new, phase=Phase.ACTIVE, target=rung, capacity=ROOM, **begun)
    return replace(new, **changes)


def parked(name: str, rung: str, cells: int = CELLS, **changes: Any) -> Tenant:
    """A parked one, whose cache of so many cells is of ``rung``."""
    held = {"capacity": cells, "read": cells, "settled": cells}
    return tenant(name, rung, **{"phase": Phase.PARKED, "target": None, **held, **changes})


def view(budget: int, *tenants: Tenant, resident: str = "", **changes: Any) -> View:
    """These tenants under a budget, with the ``resident`` rungs, at ``NOW``."""
    changes = {"now_ns": NOW, "resident": frozenset(resident.split()), **changes}
    return View(State(budget_bytes=budget, tenants={t.name: t for t in tenants}, **changes), LADDER, COSTS)


def peak(plan: Plan, *tenants: Tenant, resident: str = "") -> int:
    """The least budget that a plan fits."""
    return view(0, *tenants, resident=resident).peak_of(plan)


def rungs(plan: Plan) -> dict[str, str]:
    """The rung on which all are to run, or what else each is to do."""
    return {name: p.rung if isinstance(p, Run) else type(p).__name__ for name, p in plan.placements.items()}
