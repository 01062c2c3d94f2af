"""Random logs: facts in any order, legal or not; every record is well formed and time does not go back."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from molt.core.ladder import RouteKind
from tests.reports.story import HANDOFF, Story

TENANTS = st.sampled_from(("chat", "digest", "<b>notes</b>"))
RUNGS = st.sampled_from(("tier0", "tier1", "tier2"))
SIZES = st.integers(0, 2000)
PIECES = st.sampled_from(("", "word ", "<script>", "\x1b[31m", "`|"))

Telling = Callable[[Story, int], Story]


@st.composite
def tellings(draw: st.DrawFn) -> Telling:
    """One thing that may happen at a given time."""
    tenant, rung, dest, size, number = (
        draw(TENANTS),
        draw(RUNGS),
        draw(RUNGS),
        draw(SIZES),
        draw(st.integers(1, 4)),
    )
    pieces = tuple(draw(st.lists(PIECES, max_size=number)))
    choices: dict[str, Telling] = {
        "arrive": lambda s, at: s.arrive(at, tenant, attempt=number),
        "admit": lambda s, at: s.admit(at, tenant, rung),
        "defer": lambda s, at: s.defer(at, tenant),
        "read": lambda s, at: s.read(at, number, tenant, rung),
        "tokens": lambda s, at: s.tokens(*range(at, at + number), tenant=tenant, rung=rung, pieces=pieces),
        "demote": lambda s, at: s.demote(at, rung, dest, route=RouteKind.REREAD, tenant=tenant),
        "switch": lambda s, at: s.switched(
            at, rung, dest, tenant=tenant, handoff=HANDOFF if size % 2 else None
        ),
        "park": lambda s, at: s.park(at, tenant),
        "unpark": lambda s, at: s.unpark(at, rung, tenant),
        "shed": lambda s, at: s.shed(at, size, tenant),
        "load": lambda s, at: s.load(at, rung),
        "release": lambda s, at: s.release(at, rung),
        "finish": lambda s, at: s.finish(at, tenant),
        "cancel": lambda s, at: s.cancel(at, tenant),
        "kill": lambda s, at: s.kill(at),
        "start": lambda s, at: s.start(at),
        "budget": lambda s, at: s.budget(at, size),
        "memory": lambda s, at: s.memory(at, 1000, size, enforced=number > 2, kv={tenant: size // 2}),
        "violation": lambda s, at: s.record("violation", at, invariant="floor", detail="<i>"),
        "unknown": lambda s, at: s.record("event", at, type="SomethingNew", tenant=tenant),
    }
    return choices[draw(st.sampled_from(sorted(choices)))]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A log of up to 30 records."""
    at = 0
    story = Story()
    for telling in draw(st.lists(tellings(), max_size=30)):
        at += draw(st.integers(0, 50))
        telling(story, at)
    return story.end(at + 10) if draw(st.booleans()) else story
