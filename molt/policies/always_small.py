"""Always small: run the smallest rung from the start, so that pressure rarely matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from molt.core.plan import Plan
from molt.core.view import View
from molt.policies.admission import admit_while_room


@dataclass(frozen=True, slots=True)
class AlwaysSmall:
    """The second of the conventional three: survives most pressure and pays for it on every request.

    It does not react either; a budget below the smallest rung kills it.
    """

    name: ClassVar[str] = "always_small"
    promises: ClassVar[frozenset[str]] = frozenset()
    floor_cells: ClassVar[int] = 0

    def decide(self, view: View) -> Plan:
        """All tenants on the bottom rung; newcomers wait only while they do not fit."""
        plan = Plan(placements={}, keep=view.state.resident)
        return admit_while_room(view, plan, view.waiting(), view.ladder.bottom.name)
