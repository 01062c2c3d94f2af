"""What must hold of a scheduler in any world, one function a rule, each stated in a sentence.

``molt/core/invariants.py`` and ``molt/worlds/checkers.py`` have those checked in every run. These need more than a run
has: what was known when something was decided, what a cache holds, what happened before. A rule returns ``None`` where
it holds, else what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from molt.core import decisions as d
from molt.core import events as e
from molt.core.bound import reaction_ns_max
from molt.core.budget import peak_bytes
from molt.core.ladder import Ladder
from molt.core.plan import Placement, Plan, Rest, Run, Wait, outcome
from molt.core.state import RETRY_NS, Phase, State
from molt.policies.molt import Molt
from tests.bare import Asked, BareWorld

# --- the world as it is ---


def beliefs_are_true(world: BareWorld) -> str | None:
    """What is believed of a tenant (rung, cells, tokens read and produced) is so, and no other tenant has a cache.

    A cache that is parked and empty could be of any rung.
    """
    admitted = [t for t in world.state.tenants.values() if t.phase is not Phase.WAITING]
    empty = {t.name for t in admitted if t.phase is Phase.PARKED and not t.cells}
    believed = {
        t.name: (t.name in empty or t.cache_rung, t.cells, t.read, t.produced, t.settled) for t in admitted
    }
    true = {
        name: (
            name in empty or cache.rung,
            len(cache.positions),
            cache.read,
            len(world.answers[name]),
            cache.settled,
        )
        for name, cache in world.caches.items()
    }
    return None if believed == true else f"believed {believed}, true {true}"


def no_token_is_lost_or_doubled(world: BareWorld) -> str | None:
    """Every answer goes on where its prompt ended, one token after the other, whatever its tenant went through."""
    for name, positions in world.answers.items():
        prompt = world.prompts[name]
        if positions != list(range(prompt, prompt + len(positions))):
            return f"the answer of {name!r} after {prompt} tokens has {positions}"
    return None


def caches_have_what_they_should(world: BareWorld) -> str | None:
    """A cache holds the first tokens and the last ones it has read, each once, in order."""
    for name, cache in world.caches.items():
        held = cache.positions
        rising = all(a < b for a, b in pairwise(held))
        gaps = sum(b - a > 1 for a, b in pairwise(held))
        if (
            not rising
            or (held and (held[0] != 0 or held[-1] != cache.read - 1))
            or gaps > 1 + world.sheds[name]
        ):
            return f"the cache of {name!r}, {cache.read} tokens read, holds {held}"
    return None


def parked_caches_are_unchanged(world: BareWorld) -> str | None:
    """A parked cache is to the cell what it was when it was put aside."""
    for name, content in world.parked.items():
        if world.caches[name].content() != content:
            return f"the parked cache of {name!r} was {content}, is {world.caches[name].content()}"
    return None


def excess_is_answered_in_time(world: BareWorld) -> str | None:
    """Usage is above the budget for no longer after the last fall than a step and the releases take."""
    longest = max((c.room for c in world.caches.values()), default=0)
    longest = max([longest, *world.longest.values()])
    limit_ns = reaction_ns_max(world.costs, world.ladder, longest, world.policy)
    for begin_ns, end_ns in world.excursions_ns:
        falls = [at_ns for at_ns in world.falls_ns if at_ns <= end_ns]
        if end_ns - max(falls, default=begin_ns) > limit_ns:
            return f"above the budget from {begin_ns} to {end_ns} ns, more than {limit_ns} ns after the last fall"
    return None


def nothing_grows_above_the_budget(world: BareWorld) -> str | None:
    """Usage is above the budget only because the budget fell, never because something was begun."""
    return world.inflicted[0] if world.inflicted else None


def a_failed_load_is_not_repeated_at_once(world: BareWorld) -> str | None:
    """After a load that failed the same rung is not tried again within ``RETRY_NS``, however often it is wanted."""
    failed_ns: dict[str, int] = {}
    for _, fact, _ in world.records:
        if isinstance(fact, e.LoadFailed):
            since_ns = fact.at_ns - failed_ns.get(fact.rung, -RETRY_NS)
            if since_ns < RETRY_NS:
                return f"{fact.rung!r} failed at {fact.at_ns} ns, {since_ns} ns after it failed before"
            failed_ns[fact.rung] = fact.at_ns
        elif isinstance(fact, e.RungLoaded):
            failed_ns.pop(fact.rung, None)
    return None


WORLD_RULES: tuple[Callable[[BareWorld], str | None], ...] = (
    beliefs_are_true,
    no_token_is_lost_or_doubled,
    caches_have_what_they_should,
    parked_caches_are_unchanged,
)
HISTORY_RULES: tuple[Callable[[BareWorld], str | None], ...] = (a_failed_load_is_not_repeated_at_once,)

# --- what is asked for: levers in order of harm ---


def _milder(seen: State, asked: Asked, place: Callable[[str], Placement]) -> Plan:
    """Every tenant that has begun, or does so now, placed; the others wait."""
    placements: dict[str, Placement] = {}
    beginning = {x.tenant for x in asked.decisions if isinstance(x, d.Admit)}
    for tenant in seen.tenants.values():
        has_begun = tenant.phase is not Phase.WAITING or tenant.name in beginning
        placements[tenant.name] = place(tenant.name) if has_begun else Wait()
    return Plan(placements)


def _rungs(seen: State, ladder: Ladder) -> list[str]:
    """The rungs there are to choose from: not those whose load just failed, unless all did."""
    names = [rung.name for rung in ladder.rungs]
    return [name for name in names if name not in seen.barred] or names


def _fits(seen: State, plan: Plan, ladder: Ladder) -> bool:
    return peak_bytes(outcome(seen, plan, ladder), ladder) <= seen.budget_bytes


def parking_is_needed(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """A tenant is parked only where not all can run on the smallest rung, their caches carried or prefilled again;
    for a newcomer only if it then runs."""
    if not any(isinstance(x, d.Park) for x in asked.decisions):
        return None
    for carry in (True, False):
        bottom = _rungs(asked.seen, ladder)[-1]
        plan = _milder(asked.seen, asked, lambda name, carry=carry, bottom=bottom: Run(bottom, carry))
        if _fits(asked.seen, plan, ladder):
            return f"all could run on {bottom!r} (carry={carry}), yet {_said(asked, d.Park)}"
    return None


def spilling_is_needed(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """A cache is written to disk only where what runs does not fit beside it, be it as little as nothing."""
    if not any(isinstance(x, d.Spill) for x in asked.decisions):
        return None
    for carry in (True, False):
        running = {t.name for t in asked.after.tenants.values() if t.phase is Phase.ACTIVE}
        bottom = _rungs(asked.seen, ladder)[-1]
        plan = _milder(
            asked.seen,
            asked,
            lambda name, carry=carry, running=running, bottom=bottom: (
                Run(bottom, carry) if name in running else Rest()
            ),
        )
        if _fits(asked.seen, plan, ladder):
            return f"parking would do, yet {_said(asked, d.Spill)}"
    return None


def shedding_is_needed(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """Context is shed only where parking all, and what is on disk staying there, does not do."""
    shed = any(isinstance(x, d.Shed) for x in asked.decisions)
    plan = _milder(asked.seen, asked, lambda name: Rest())
    if shed and _fits(asked.seen, plan, ladder):
        return f"parking all would do, yet {_said(asked, d.Shed)}"
    return None


def dropping_is_needed(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """A whole cache is dropped only where shedding all to the least does not do."""
    tenants = asked.seen.tenants
    cells = {tenant.name: tenant.cells for tenant in tenants.values()}
    dropped = any(isinstance(x, d.Shed) and x.keep_cells == 0 and cells[x.tenant] for x in asked.decisions)
    plan = _milder(
        asked.seen,
        asked,
        lambda name: Rest(None if tenants[name].spilled else min(policy.min_cells, cells[name])),
    )
    if dropped and _fits(asked.seen, plan, ladder):
        return f"{policy.min_cells} cells for each would do, yet {_said(asked, d.Shed)}"
    return None


def demotion_is_needed(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """A tenant goes to a smaller rung only where no larger one does, of those that it has not left already."""
    demoted = [ladder.index(x.dest) for x in asked.decisions if isinstance(x, d.Demote)]
    if not demoted or any(t.phase is Phase.PARKED for t in asked.seen.tenants.values()):
        return None
    here = max(ladder.index(t.target) for t in asked.seen.tenants.values() if t.target is not None)
    for rung in _rungs(asked.seen, ladder):
        if not here <= ladder.index(rung) < max(demoted):
            continue
        if _fits(asked.seen, _milder(asked.seen, asked, lambda name, rung=rung: Run(rung)), ladder):
            return f"all could run on {rung!r}, yet {_said(asked, d.Demote)}"
    return None


def releases_come_first(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """What frees is asked for before what takes: nothing is admitted, let go on or loaded before the last release."""
    kinds = [type(x) for x in asked.decisions]
    takes = next((n for n, kind in enumerate(kinds) if kind in {d.Admit, d.Unpark, d.Load}), len(kinds))
    late = [kind.__name__ for kind in kinds[takes:] if kind in {d.Release, d.Park, d.Spill, d.Shed}]
    return f"{late} asked for after {kinds[takes].__name__}" if late else None


def what_just_failed_is_left_out(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """No tenant is to run on a rung whose load just failed while there is another; nor is it loaded."""
    left = set(_rungs(asked.seen, ladder))
    targets = {t.name: t.target for t in asked.after.tenants.values() if t.target not in {None, *left}}
    return f"{targets} while {sorted(left)} have not failed" if targets else None


def recovery_waits(asked: Asked, ladder: Ladder, policy: Molt) -> str | None:
    """No tenant goes to a larger rung before the last change is ``cooldown_ns`` ago, but from a barred one."""
    changes = [t for t in (asked.seen.last_down_ns, asked.seen.last_up_ns) if t is not None]
    since_ns = asked.seen.now_ns - max(changes, default=-policy.cooldown_ns)
    before = asked.seen.tenants
    promoted = any(isinstance(x, d.Promote) and before[x.tenant].target != x.dest for x in asked.decisions)
    targets = {tenant.target for tenant in asked.seen.tenants.values()}
    if promoted and not targets & asked.seen.barred and since_ns < policy.cooldown_ns:
        return f"{_said(asked, d.Promote)} {since_ns} ns after a change"
    return None


DECISION_RULES: tuple[Callable[[Asked, Ladder, Molt], str | None], ...] = (
    parking_is_needed,
    spilling_is_needed,
    shedding_is_needed,
    dropping_is_needed,
    demotion_is_needed,
    releases_come_first,
    recovery_waits,
    what_just_failed_is_left_out,
)


def no_switch_without_cause(world: BareWorld) -> str | None:
    """A tenant that went up goes down again only after the budget fell below that, another came, a switch or a load
    failed, or a release kept something back."""
    risen_at: dict[str, int] = {}
    for asked in world.asked:
        budget = asked.seen.budget_bytes
        if isinstance(asked.fact, e.SwitchFailed | e.LoadFailed | e.RungReleased | e.TenantArrived) or any(
            isinstance(x, d.Admit | d.Unpark) for x in asked.decisions
        ):
            risen_at.clear()
        risen_at = {name: high for name, high in risen_at.items() if budget >= high}
        for decision in asked.decisions:
            if isinstance(decision, d.Demote) and decision.tenant in risen_at:
                return (
                    f"{decision.tenant!r} goes down again under {budget} bytes, no less than when it went up"
                )
            if isinstance(decision, d.Promote):
                risen_at[decision.tenant] = budget
    return None


CALM_HISTORY_RULES: tuple[Callable[[BareWorld], str | None], ...] = (
    excess_is_answered_in_time,
    nothing_grows_above_the_budget,
    no_switch_without_cause,
)
"""Of worlds in which nothing goes wrong: a signal that is late adds its delay, what fails is a cause of its own."""


def _said(asked: Asked, kind: type) -> str:
    return f"{[x for x in asked.decisions if isinstance(x, kind)]} at {asked.seen.now_ns} ns"
