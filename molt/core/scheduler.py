"""Facts in, requests out. ``handle`` is the only thing that changes the scheduler's state.

The policy is asked only when something happened that could change its mind. Tokens do not change memory (a cache is
allocated for the whole answer), and the outcomes of releasing, parking and shedding only confirm what is believed
since the decision went out; unless a release withholds something.
"""

from __future__ import annotations

from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.decisions import AnyDecision
from molt.core.ladder import Ladder
from molt.core.legality import Refusal, first_refusal
from molt.core.plan import requests
from molt.core.state import State, after_decision, after_event
from molt.core.turns import Step, next_step
from molt.core.view import Policy, View

_QUIET = (
    e.LoadProgressed,
    e.PromptRead,
    e.TokensProduced,
    e.RungReleased,
    e.TenantParked,
    e.CacheSpilled,
    e.CacheRestored,
    e.ContextShed,
)


class Scheduler:
    """One policy, one ladder, one process."""

    def __init__(self, ladder: Ladder, costs: CostModel, policy: Policy) -> None:
        self.ladder = ladder
        self.costs = costs
        self.policy = policy
        self.state = State()
        self.refusal: Refusal | None = None
        self._revisit_ns: int | None = None

    def handle(self, event: e.AnyEvent) -> tuple[AnyDecision, ...]:
        """Take a fact in and return what is asked of the world because of it, in order.

        ``refusal`` is set when the policy's plan broke a rule; then nothing is asked.
        """
        withheld = self.state.withheld
        self.state = after_event(self.state, event)
        self.refusal = None
        if isinstance(event, _QUIET) and self.state.withheld == withheld:
            return ()
        self._revisit_ns = None
        if not self.state.alive:
            return ()
        plan = self.policy.decide(View(self.state, self.ladder, self.costs))
        later = plan.revisit_ns is not None and plan.revisit_ns > self.state.now_ns
        self._revisit_ns = plan.revisit_ns if later else None
        self.refusal = first_refusal(self.state, plan, self.ladder)
        if self.refusal is not None:
            return ()
        asked = requests(self.state, plan, self.ladder, self.costs)
        for decision in asked:
            self.state = after_decision(self.state, decision)
        return tuple(asked)

    def next_step(self) -> Step | None:
        """The step the world should take now; a query, it changes nothing."""
        return next_step(self.state) if self.state.alive else None

    def next_deadline_ns(self) -> int | None:
        """When a ``TimerFired`` is wanted if nothing else happens before: the policy's wish, or a load's next try."""
        barred = self.state.loading & self.state.barred
        tries = [self.state.failures[rung].again_ns for rung in barred]
        return min(tries if self._revisit_ns is None else [*tries, self._revisit_ns], default=None)
