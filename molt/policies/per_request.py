"""Per request: choose the model when a request begins, as elastic serving stacks do, and stay with it to the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from molt.core.plan import Plan, Run, Wait
from molt.core.state import Tenant
from molt.core.view import View


@dataclass(frozen=True, slots=True)
class PerRequest:
    """Shows why a request boundary comes too late: a spike lands inside the answer."""

    name: ClassVar[str] = "per_request"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        """Newcomers get the largest rung that fits beside what is running; no tenant ever switches."""
        idle = Plan(placements={}, keep=view.state.resident)
        waiting = view.waiting()
        if not waiting:
            return idle if view.admitted() or view.fits(idle) else Plan(placements={})
        plan = Plan(placements={})
        for newcomer in waiting:
            plan = self._place(view, plan, newcomer)
        return plan

    def _place(self, view: View, plan: Plan, newcomer: Tenant) -> Plan:
        for rung in view.rungs:
            grown = replace(plan, placements={**plan.placements, newcomer.name: Run(rung.name)})
            if view.fits(grown):
                return grown
        return replace(plan, placements={**plan.placements, newcomer.name: Wait()})
