"""What was refused of a policy's plans in a world, and the line that tells the user."""

from __future__ import annotations

from dataclasses import dataclass

from molt.core.legality import Refusal

MISTAKES = frozenset({"decide_succeeds", "plan_is_well_formed"})
"""Rules that only a fault in the policy's code breaks; a plan can break the others by a misjudgement."""


@dataclass(slots=True)
class Refusals:
    """The count of a policy's plans, of those refused, and the ``first`` of these with its time.

    ``mistakes`` counts the exceptions and what is no plan at all; ``at_end`` is whether the last plan was refused.
    """

    policy: str
    asked: int = 0
    refused: int = 0
    mistakes: int = 0
    at_end: bool = False
    first: tuple[int, Refusal] | None = None

    def add(self, at_ns: int, refusal: Refusal | None) -> None:
        """The policy was asked, and this came of it."""
        self.asked += 1
        self.at_end = refusal is not None
        if refusal is None:
            return
        self.refused += 1
        self.mistakes += refusal.rule in MISTAKES
        if self.first is None or (refusal.rule in MISTAKES) > (self.first[1].rule in MISTAKES):
            self.first = at_ns, refusal

    @property
    def failed(self) -> bool:
        """Whether the policy's code is at fault, or the run ended with plans that were refused."""
        return self.mistakes > 0 or self.at_end

    def line(self) -> str | None:
        """The first refusal, mistakes before others, and the count; ``None`` where nothing was refused."""
        if self.first is None:
            return None
        return f"{refusal_line(self.policy, *self.first)}; {self.refused} of {self.asked} plans were refused"


def refusal_line(policy: str, at_ns: int, refusal: Refusal) -> str:
    """Policy, time, rule and reason, and the file and line of the user's where they are known."""
    place = f" ({refusal.place})" if refusal.place else ""
    return f"policy {policy!r} at {at_ns / 1e9:g} s: {refusal.rule}: {refusal.reason}{place}"
