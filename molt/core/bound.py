"""The bound: how far, and for how long, usage can be above the budget. ``docs/explanations/the-bound.md`` derives it.

After enforcement ``usage - budget <= overshoot_bytes_max``; until then at most ``reaction_ns_max`` go by after a fall.
"""

from __future__ import annotations

from molt.core.budget import floor_bytes
from molt.core.costs import CostModel
from molt.core.ladder import Ladder
from molt.core.state import State
from molt.core.turns import SLICE_NS_MAX, step_ns_max
from molt.core.view import Policy


def overshoot_bytes_max(state: State, ladder: Ladder, policy: Policy) -> int:
    """What usage may exceed the budget by once every decision is carried out: what the floor does, else nothing."""
    return max(0, floor_bytes(state, ladder, policy.floor_cells) - state.budget_bytes)


def usage_bytes_max(state: State, ladder: Ladder, policy: Policy) -> int:
    """The same bound on usage itself."""
    return state.budget_bytes + overshoot_bytes_max(state, ladder, policy)


def reaction_ns_max(costs: CostModel, ladder: Ladder, context: int, policy: Policy) -> int:
    """The longest time from a fall of the budget to the end of its enforcement, with caches of ``context`` cells.

    The step under way goes on to its boundary: a slice of a load, a switch or a chunk of prefill, a token (longer while
    it heals), or a cache that comes back from disk. Then caches may be written to disk for as long as the policy lets
    them, and every rung be released. Parking and shedding are counted as no time.
    """
    stretch = getattr(policy, "heal_stretch", 1.0)
    steps = (step_ns_max(costs.rungs[rung.name], rung.kv.layers, context, stretch) for rung in ladder.rungs)
    spill_ns = getattr(policy, "spill_within_ns", 0)
    restore_ns = round(spill_ns * costs.disk.read_byte_ns / costs.disk.write_byte_ns)
    releases_ns = sum(rung.release_ns for rung in costs.rungs.values())
    return max(SLICE_NS_MAX, restore_ns, *steps) + spill_ns + releases_ns
