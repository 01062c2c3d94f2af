"""What no policy may ask for, one function per rule. Each returns the reason, or ``None`` where it is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from molt.core.budget import peak_bytes, usage_bytes
from molt.core.ladder import Ladder
from molt.core.plan import Plan, Rest, Run, outcome
from molt.core.state import Phase, State


@dataclass(frozen=True, slots=True)
class Refusal:
    """A plan that was not carried out, the rule it broke and how."""

    rule: str
    reason: str


def names_are_known(state: State, plan: Plan, ladder: Ladder) -> str | None:
    """A plan places only tenants that are there, on rungs the ladder has."""
    rungs = {rung.name for rung in ladder.rungs}
    for tenant, placement in plan.placements.items():
        if tenant not in state.tenants:
            return f"tenant {tenant!r} is not here"
        if isinstance(placement, Run) and placement.rung not in rungs:
            return f"rung {placement.rung!r} of tenant {tenant!r} is not on ladder {ladder.name!r}"
    unknown = plan.keep - rungs
    return f"rung {min(unknown)!r} to keep is not on ladder {ladder.name!r}" if unknown else None


def answer_fits_rung(state: State, plan: Plan, ladder: Ladder) -> str | None:
    """A tenant runs only on a rung whose positions suffice for the whole answer."""
    for name, placement in plan.placements.items():
        tenant = state.tenants[name]
        length = tenant.prompt_tokens + tenant.max_tokens
        if isinstance(placement, Run) and length > ladder.rung(placement.rung).max_positions:
            limit = ladder.rung(placement.rung).max_positions
            return (
                f"{length} tokens of tenant {name!r} exceed the {limit} positions of rung {placement.rung!r}"
            )
    return None


def admitted_stay_admitted(state: State, plan: Plan, ladder: Ladder) -> str | None:
    """A tenant that has begun is not sent back to wait: terminating is not a lever."""
    for name, placement in plan.placements.items():
        if state.tenants[name].phase is not Phase.WAITING and not isinstance(placement, Run | Rest):
            return f"tenant {name!r} has begun and cannot wait"
    return None


def shedding_is_sane(state: State, plan: Plan, ladder: Ladder) -> str | None:
    """A shed keeps between none and all of the cells there are."""
    for name, placement in plan.placements.items():
        if isinstance(placement, Rest) and placement.keep_cells is not None and placement.keep_cells < 0:
            return f"tenant {name!r} cannot keep {placement.keep_cells} cells"
    return None


def growth_fits(state: State, plan: Plan, ladder: Ladder) -> str | None:
    """Whatever makes usage grow, its transient included, stays within the budget."""
    goal = outcome(state, plan, ladder)
    peak = peak_bytes(goal, ladder)
    grows = usage_bytes(goal, ladder) > usage_bytes(state, ladder) or goal.loading - state.loading
    if grows and peak > state.budget_bytes:
        return f"a peak of {peak} bytes does not fit the budget of {state.budget_bytes} bytes"
    return None


Rule = Callable[[State, Plan, Ladder], str | None]
RULES: tuple[Rule, ...] = (
    names_are_known,
    answer_fits_rung,
    admitted_stay_admitted,
    shedding_is_sane,
    growth_fits,
)


def first_refusal(state: State, plan: Plan, ladder: Ladder) -> Refusal | None:
    """The first rule that a plan breaks."""
    for rule in RULES:
        reason = rule(state, plan, ladder)
        if reason is not None:
            return Refusal(rule.__name__, reason)
    return None
