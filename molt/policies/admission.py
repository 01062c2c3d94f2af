"""What every policy does with newcomers: let them in, in order, for as long as there is room, or let them wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from molt.core.plan import Placement, Plan, Run, Wait
from molt.core.state import Tenant
from molt.core.view import View


def others_wait(view: View, placements: Mapping[str, Placement]) -> Plan:
    """A plan of these placements, in which every newcomer that has none waits."""
    waiting: dict[str, Placement] = {tenant.name: Wait() for tenant in view.waiting()}
    return Plan(placements={**waiting, **placements})


def admit_while_room(
    view: View, plan: Plan, newcomers: Iterable[Tenant], rung: str, margin: float = 0.0
) -> Plan:
    """``plan`` with as many newcomers on ``rung`` as fit.

    From the first that must wait for others to leave, all wait: none is overtaken for ever. One that would not fit
    even alone holds none up.
    """
    full = False
    for newcomer in newcomers:
        grown = _placing(plan, newcomer, Run(rung))
        fits = not full and view.fits(grown, margin)
        full = full or (not fits and view.fits_alone(newcomer, rung))
        plan = grown if fits else _placing(plan, newcomer, Wait())
    return plan


def _placing(plan: Plan, tenant: Tenant, placement: Placement) -> Plan:
    return replace(plan, placements={**plan.placements, tenant.name: placement})
