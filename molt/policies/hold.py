"""Hold: run the largest rung and keep it, whatever the OS says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from molt.core.plan import Plan
from molt.core.view import View
from molt.policies.admission import admit_while_room


@dataclass(frozen=True, slots=True)
class Hold:
    """The first of the conventional three: best quality until the process is killed."""

    name: ClassVar[str] = "hold"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        """All tenants on the top rung; newcomers wait only while they do not fit."""
        plan = Plan(placements={}, keep=view.state.resident)
        return admit_while_room(view, plan, view.waiting(), view.ladder.top.name)
