"""Restart: switch to a smaller model when pressed and prefill the whole text again on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from molt.core.plan import Placement, Plan, Rest, Run
from molt.core.view import View, by_protection
from molt.policies.admission import admit_while_room, others_wait


@dataclass(frozen=True, slots=True)
class Restart:
    """The third of the conventional three: survives, and the user watches the stall.

    It goes down at once and up only between requests: a restart upwards would stall an answer that is running.
    """

    name: ClassVar[str] = "restart"
    promises: ClassVar[frozenset[str]] = frozenset({"never_killed", "bounded_overshoot"})
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        """Stay if that fits; else the largest rung below that does; else some drop their caches and come back later."""
        return replace(self._plan(view), revisit_ns=view.retry_ns)

    def _plan(self, view: View) -> Plan:
        admitted = view.admitted()
        if not admitted:
            return self._begin(view)
        here = view.level() or 0
        for rung in (rung.name for rung in view.rungs if view.ladder.index(rung.name) >= here):
            plan = Plan(placements={tenant.name: Run(rung, carry=False) for tenant in admitted})
            if view.fits(plan):
                return admit_while_room(view, plan, view.waiting(), rung)
        return self._some_run(view)

    def _some_run(self, view: View) -> Plan:
        """On the smallest rung, as many as fit, foreground first; the others drop their caches and come back later."""
        admitted = by_protection(view.admitted())
        for running in range(len(admitted) - 1, -1, -1):
            placements: dict[str, Placement] = {
                tenant.name: Run(view.rungs[-1].name, carry=False) for tenant in admitted[:running]
            }
            placements.update({tenant.name: Rest(keep_cells=0) for tenant in admitted[running:]})
            plan = others_wait(view, placements)
            if view.fits(plan):
                return plan
        return plan

    def _begin(self, view: View) -> Plan:
        waiting = view.waiting()
        for rung in view.rungs if waiting else ():
            plan = admit_while_room(view, Plan(placements={}), waiting, rung.name)
            if any(isinstance(placement, Run) for placement in plan.placements.values()):
                return plan
        cold = others_wait(view, {})
        warm = replace(cold, keep=view.state.resident)
        return warm if view.fits(warm) else cold
