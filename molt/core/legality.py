"""What no policy may ask for, one function per rule. Each returns the reason, or ``None`` where it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from molt.core.budget import peak_bytes, usage_bytes
from molt.core.ladder import Ladder
from molt.core.plan import Placement, Plan, Rest, Run, Wait, outcome
from molt.core.state import Phase, State


@dataclass(frozen=True, slots=True)
class Refusal:
    """A plan that was not carried out, the rule it broke and how; ``place`` is the policy's ``file:line``, if known."""

    rule: str
    reason: str
    place: str | None = None


def plan_is_well_formed(state: State, plan: object, ladder: Ladder) -> str | None:
    """What ``decide`` returns is a ``Plan``, and its fields have the types that ``molt.core.plan`` gives them."""
    if not isinstance(plan, Plan):
        return f"decide returned {_a(plan)}, not a Plan"
    if not isinstance(plan.placements, Mapping):
        return f"placements is {_a(plan.placements)}, not a mapping"
    if not isinstance(plan.keep, Set) or not all(isinstance(rung, str) for rung in plan.keep):
        return f"keep is {_a(plan.keep)}, not a frozenset of names of rungs"
    if plan.revisit_ns is not None and not _is_whole(plan.revisit_ns):
        return f"revisit_ns is {_a(plan.revisit_ns)}, not a whole number of nanoseconds"
    for tenant, placement in plan.placements.items():
        if not isinstance(tenant, str):
            return f"a tenant is {tenant!r}, not a name"
        if wrong := _malformed(placement):
            return f"tenant {tenant!r}: {wrong}"
    return None


def _malformed(placement: Placement | object) -> str | None:
    match placement:
        case Run():
            if not isinstance(placement.rung, str):
                return f"rung is {_a(placement.rung)}, not a name"
            if not isinstance(placement.carry, bool):
                return f"carry is {_a(placement.carry)}, not true or false"
            for name, tokens in (("heal", placement.heal), ("native", placement.native)):
                if not _is_whole(tokens) or tokens < 0:
                    return f"{name} is {tokens!r}, not a number of tokens"
            return None
        case Rest():
            if placement.keep_cells is not None and not _is_whole(placement.keep_cells):
                return f"keep_cells is {_a(placement.keep_cells)}, not a whole number of cells"
            return (
                None
                if isinstance(placement.spill, bool)
                else f"spill is {_a(placement.spill)}, not true or false"
            )
        case Wait():
            return None
        case _:
            return f"placed at {_a(placement)}, not at a Run, a Rest or a Wait"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _a(value: object) -> str:
    return f"a value of type {type(value).__name__}"


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
    plan_is_well_formed,
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
