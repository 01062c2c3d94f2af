"""The read-only picture a policy decides on, and the contract of a policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from molt.core import budget
from molt.core.costs import CostModel
from molt.core.events import TenantKind
from molt.core.ladder import Ladder, Rung
from molt.core.plan import Plan, outcome
from molt.core.state import Phase, State, Tenant


@dataclass(frozen=True, slots=True)
class View:
    """State, ladder and costs at one instant; everything else is derived."""

    state: State
    ladder: Ladder
    costs: CostModel

    @property
    def now_ns(self) -> int:
        """Time of the event being handled."""
        return self.state.now_ns

    @property
    def budget_bytes(self) -> int:
        """What the OS allows now."""
        return self.state.budget_bytes

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Rungs that can be asked for, from large to small: not those whose load just failed, unless all did."""
        barred = self.state.barred
        return tuple(rung for rung in self.ladder.rungs if rung.name not in barred) or self.ladder.rungs

    @property
    def retry_ns(self) -> int | None:
        """When the first of the rungs whose load failed can be asked for again; ``None`` where there is none."""
        return min((self.state.failures[rung].again_ns for rung in self.state.barred), default=None)

    @property
    def usage_bytes(self) -> int:
        """What is allocated now, as believed."""
        return budget.usage_bytes(self.state, self.ladder)

    def peak_of(self, plan: Plan) -> int:
        """The highest usage between now and the plan's being reached."""
        return budget.peak_bytes(outcome(self.state, plan, self.ladder), self.ladder)

    def fits(self, plan: Plan, margin: float = 0.0) -> bool:
        """Whether the plan stays within the budget, less a share ``margin`` of it, at every moment."""
        return self.peak_of(plan) <= self.budget_bytes * (1.0 - margin)

    def fits_alone(self, tenant: Tenant, rung: str) -> bool:
        """Whether the budget would do for this tenant on this rung if it were alone."""
        size = self.ladder.rung(rung)
        return size.resident_bytes + size.kv_bytes(tenant.full_capacity) <= self.budget_bytes

    def admitted(self) -> list[Tenant]:
        """Tenants that have a cache, in order of arrival."""
        return [t for t in self.state.tenants.values() if t.phase is not Phase.WAITING]

    def waiting(self) -> list[Tenant]:
        """Tenants that have none yet: foreground first, then in order of arrival."""
        return by_protection([t for t in self.state.tenants.values() if t.phase is Phase.WAITING])

    def level(self) -> int | None:
        """Index of the lowest rung an active tenant is to run on; ``None`` when none is."""
        targets = [t.target for t in self.state.tenants.values() if t.target is not None]
        return max((self.ladder.index(target) for target in targets), default=None)


def by_protection(tenants: Iterable[Tenant]) -> list[Tenant]:
    """Tenants from the one to be spared longest: foreground before batch, and within a kind in order of arrival."""
    return sorted(tenants, key=lambda t: (t.kind is not TenantKind.FOREGROUND, t.order))


PROMISES = frozenset({"never_killed", "bounded_overshoot"})
"""What a policy can undertake to keep, see ``molt.core.invariants``."""


class Policy(Protocol):
    """A pure function of a ``View``. Parameters are the fields of a frozen dataclass.

    ``name`` is what scenarios call it. ``promises`` are the invariants it undertakes to keep: ``"never_killed"``
    and ``"bounded_overshoot"``; a checker holds it to them. ``floor_cells`` are the cells it leaves a tenant at
    the very least, 0 when it may drop a cache whole.
    """

    name: ClassVar[str]
    promises: ClassVar[frozenset[str]]
    floor_cells: ClassVar[int]

    def decide(self, view: View) -> Plan:
        """Where every tenant should be, given what is believed now."""
