"""Facts in, requests out. ``handle`` is the only thing that changes the scheduler's state.

The policy is asked only when something happened that could change its mind. Tokens do not change memory (a cache is
allocated for the whole answer), and the outcomes of releasing, parking and shedding only confirm what is believed
since the decision went out; unless a release withholds something.

A policy may come from others, and may err. Its exception, and what it returns in place of a lawful plan, are refusals:
the state stays as it is, except that above the budget all are parked and weights released. Caches are kept.
"""

from __future__ import annotations

from dataclasses import replace

from molt.core import events as e
from molt.core.budget import usage_bytes
from molt.core.costs import CostModel
from molt.core.decisions import AnyDecision
from molt.core.ladder import Ladder
from molt.core.legality import Refusal, first_refusal
from molt.core.plan import Placement, Plan, Rest, requests
from molt.core.state import Phase, State, after_decision, after_event
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


_CORE = __file__.removesuffix("scheduler.py")
_REASON_CHARS_MAX = 300


class Scheduler:
    """One policy, one ladder, one process. ``asked`` counts how often the policy was asked, ``refused`` how often what
    it answered was refused."""

    def __init__(self, ladder: Ladder, costs: CostModel, policy: Policy) -> None:
        self.ladder = ladder
        self.costs = costs
        self.policy = policy
        self.state = State()
        self.refusal: Refusal | None = None
        self.asked = self.refused = 0
        self._revisit_ns: int | None = None

    def handle(self, event: e.AnyEvent) -> tuple[AnyDecision, ...]:
        """Take a fact in and return what is asked of the world because of it, in order.

        ``refusal`` is set when the policy erred or its plan broke a rule; then nothing is asked, or all are parked.
        """
        withheld = self.state.withheld
        self.state = after_event(self.state, event)
        self.refusal = None
        if isinstance(event, _QUIET) and self.state.withheld == withheld:
            return ()
        self._revisit_ns = None
        if not self.state.alive:
            return ()
        plan = self._plan()
        later = plan.revisit_ns is not None and plan.revisit_ns > self.state.now_ns
        self._revisit_ns = plan.revisit_ns if later else None
        asked = requests(self.state, plan, self.ladder, self.costs)
        for decision in asked:
            self.state = after_decision(self.state, decision)
        return tuple(asked)

    def _plan(self) -> Plan:
        """The policy's plan if it is lawful, else a refusal and the plan of ``_kept``."""
        self.asked += 1
        try:
            plan = self.policy.decide(View(self.state, self.ladder, self.costs))
        except Exception as error:  # whatever it is: the world, and what it holds, outlives it
            self.refusal = _raised(error)
        else:
            refusal = first_refusal(self.state, plan, self.ladder)
            if refusal is None:
                return plan
            self.refusal = replace(refusal, place=_defined_at(self.policy))
        self.refused += 1
        return _kept(self.state, self.ladder)

    def next_step(self) -> Step | None:
        """The step the world should take now; a query, it changes nothing."""
        return next_step(self.state) if self.state.alive else None

    def next_deadline_ns(self) -> int | None:
        """When a ``TimerFired`` is wanted if nothing else happens before: the policy's wish, or a load's next try."""
        barred = self.state.loading & self.state.barred
        tries = [self.state.failures[rung].again_ns for rung in barred]
        return min(tries if self._revisit_ns is None else [*tries, self._revisit_ns], default=None)


def _kept(state: State, ladder: Ladder) -> Plan:
    """Nothing changes; above the budget all are parked with their caches, and every rung is released."""
    if usage_bytes(state, ladder) <= state.budget_bytes:
        return Plan({}, keep=state.resident | state.loading)
    admitted = [tenant.name for tenant in state.tenants.values() if tenant.phase is not Phase.WAITING]
    resting: dict[str, Placement] = dict.fromkeys(admitted, Rest())
    return Plan(resting)


def _raised(error: Exception) -> Refusal:
    """A refusal that names an exception, and the last line outside of the core that it came through."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:
        said = type(error).__name__
    reason = "".join(char if char.isprintable() else " " for char in said[:_REASON_CHARS_MAX])
    place, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_CORE):
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return Refusal("decide_succeeds", reason, place)


def _defined_at(policy: Policy) -> str | None:
    """Where a policy's ``decide`` is defined; ``None`` where that cannot be seen."""
    code = getattr(getattr(type(policy), "decide", None), "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
