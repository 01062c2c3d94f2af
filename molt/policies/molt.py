"""Molt: change the model between two tokens and take the attention state along.

The policy is a list of *postures* in order of increasing harm; it takes the first that fits the budget with every
transient until it is reached:

====  =====================================================================================================
0     all tenants run, on the largest rung possible; batch newcomers wait if they do not fit (defer, demote)
1     all run, but their tokens are prefilled again (where the transient of carrying caches does not fit)
2     on the smallest rung, some are parked: batch before foreground, the latest first (park); if that is not
      enough, their caches are written to disk (spill)
3     all are parked, with their caches (park)
4     all are parked and caches are written to disk, the least protected first, as far as needed (spill)
5     what cannot be written fast enough loses its oldest context, down to ``min_cells`` (shed)
6     whole caches go, to be prefilled again later: the tokens are still known, so even this loses no answer
====  =====================================================================================================

A rung whose load failed is left out until it may be tried again; the smallest is then the smallest of the others.

Going to a better posture than the present one (recovery, the levers in reverse) takes a margin and a cool-down, so that
an oscillating budget does not make the models oscillate. Only a tenant that stands still may come back sooner, on the
smallest rung, and after the cool-down even without the margin. Where both rungs fit, the larger one is brought in while
the smaller goes on answering, and only the switch itself is a pause.

A cache that was carried is healed afterwards, a few tokens with every decode step (``molt.core.healing``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from molt.core.events import TenantKind
from molt.core.healing import most_within
from molt.core.plan import NATIVE_TOKENS, Placement, Plan, Rest, Run
from molt.core.state import Phase, Tenant
from molt.core.view import View, by_protection
from molt.policies.admission import admit_while_room, others_wait

DIAL = (1024, 512, 256, 128, 64, 32)
"""Settings of the dial between a pure map and a full prefill, beside all tokens: prefilled natively at the end."""

Rank = tuple[int, int]
"""How harmful a posture is: (0, level of the rung), (1, tenants not running), (2, 0) all parked, or worse."""


@dataclass(frozen=True, slots=True)
class Molt:
    """Parameters: ``cooldown_ns`` between a change and the next recovery; ``margin``, the share of the budget
    that must stay free for a recovery; ``min_cells`` that shedding leaves (sinks and the most recent tokens);
    ``heal_tokens`` of a carried cache that a decode step heals at most (0: none), as many as keep it within
    ``heal_stretch`` times a bare step; ``native_tokens``, the last ones that a projected switch prefills natively,
    and more of them if all of it is expected to take no longer than ``stall_ns``; ``spill_within_ns``, the time that
    writing caches to disk may take at once, while usage may be over the budget (0: none is written)."""

    cooldown_ns: int = 2_000_000_000
    margin: float = 0.05
    min_cells: int = 32
    heal_tokens: int = 32
    heal_stretch: float = 2.0
    native_tokens: int = NATIVE_TOKENS
    stall_ns: int = 0
    spill_within_ns: int = 100_000_000

    name: ClassVar[str] = "molt"
    promises: ClassVar[frozenset[str]] = frozenset({"never_killed", "bounded_overshoot"})
    floor_cells: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.cooldown_ns < 0:
            raise ValueError(f"cooldown must not be negative, is {self.cooldown_ns} ns")
        if not 0.0 <= self.margin < 1.0:
            raise ValueError(f"margin must be at least 0 and below 1, is {self.margin}")
        if self.min_cells < 8:
            raise ValueError(f"min_cells must be at least 8 (4 sinks and 4 recent), is {self.min_cells}")
        if self.heal_tokens < 0:
            raise ValueError(f"heal_tokens must not be negative, is {self.heal_tokens}")
        if self.native_tokens < 0:
            raise ValueError(f"native_tokens must not be negative, is {self.native_tokens}")
        if self.spill_within_ns < 0:
            raise ValueError(f"spill_within must not be negative, is {self.spill_within_ns} ns")
        if self.stall_ns < 0:
            raise ValueError(f"stall must not be negative, is {self.stall_ns} ns")
        if self.heal_stretch < 1.0:
            raise ValueError(f"heal_stretch must be at least 1, is {self.heal_stretch}")

    def decide(self, view: View) -> Plan:
        """The least harmful posture that fits."""
        here = _present_rank(view)
        cool_ns = self._cool_at_ns(view)
        cooling = view.now_ns < cool_ns
        bottom = view.ladder.index(view.rungs[-1].name)
        better: Plan | None = None
        tight = False
        for rank, plan in self._postures(view):
            recovery = rank < here
            # Where a tenant stands still, little is better than nothing.
            back = recovery and here[0] > 0
            if not view.fits(plan, self.margin if recovery and (cooling or not back) else 0.0):
                tight = tight or view.fits(plan)
                continue
            if tight and Rest(spill=True) in plan.placements.values():
                continue  # a margin is waited for, and not made by writing to disk
            if recovery and cooling and not (back and (rank[0] == 1 or rank == (0, bottom))):
                continue
            if recovery and view.level() is not None and _rungs(plan) - view.state.resident:
                better = better or plan
                continue
            chosen = plan if better is None else self._meanwhile(view, plan, better)
            break
        else:
            chosen = self._shed(view)
        later = [at_ns for at_ns in (cool_ns if cooling else None, view.retry_ns) if at_ns is not None]
        return replace(self._dialled(view, self._healing(view, chosen)), revisit_ns=min(later, default=None))

    def _dialled(self, view: View, plan: Plan) -> Plan:
        """``plan`` with as much of every cache that is to go through a map prefilled natively as the stall allows."""
        dialled = {
            tenant.name: replace(placement, native=self._native_tokens(view, tenant, placement.rung))
            for tenant in view.admitted()
            if isinstance(placement := plan.placements.get(tenant.name), Run)
            and tenant.cache_rung != placement.rung
        }
        return replace(plan, placements={**plan.placements, **dialled})

    def _native_tokens(self, view: View, tenant: Tenant, rung: str) -> int:
        source = tenant.cache_rung
        assert source is not None, "an admitted tenant has a cache"
        if view.costs.route(source, rung) is None:
            return self.native_tokens
        dial = (tokens for tokens in (tenant.cells, *DIAL) if tokens > self.native_tokens)
        within = (n for n in dial if view.costs.switch_ns(source, rung, tenant.cells, n) <= self.stall_ns)
        return next(within, self.native_tokens)

    def _healing(self, view: View, plan: Plan) -> Plan:
        """``plan`` with carried caches healed where they are; not while another rung is being brought in for them,
        which would throw the work away."""
        if plan.keep - view.state.resident:
            return plan
        healed = {
            tenant.name: replace(placement, heal=self._heal_tokens(view, tenant, placement.rung))
            for tenant in view.admitted()
            if isinstance(placement := plan.placements.get(tenant.name), Run)
            and tenant.settled < tenant.cells
        }
        return replace(plan, placements={**plan.placements, **healed})

    def _heal_tokens(self, view: View, tenant: Tenant, rung: str) -> int:
        return most_within(view.costs.rungs[rung], self.heal_stretch, tenant.cells, self.heal_tokens)

    def _meanwhile(self, view: View, plan: Plan, better: Plan) -> Plan:
        """``plan``, with the rung of the better one brought in aside; the better one at once if not both fit."""
        beside = replace(plan, keep=plan.keep | _rungs(better))
        return beside if view.fits(beside, self.margin) else better

    def _cool_at_ns(self, view: View) -> int:
        changes = [t for t in (view.state.last_down_ns, view.state.last_up_ns) if t is not None]
        return max(changes, default=-self.cooldown_ns) + self.cooldown_ns

    def _postures(self, view: View) -> Iterator[tuple[Rank, Plan]]:
        """Those in which all with a claim run, then the same without the last of the newcomers among them, and so on:
        nothing is changed for a newcomer that would have to wait all the same."""
        admitted, newcomers = view.admitted(), _claims(view)
        for count in range(len(newcomers), -1, -1):
            must = by_protection(admitted + newcomers[:count])
            yield from self._where_newcomers_run(view, must) if must else ()
        if admitted:
            yield (2, 0), others_wait(view, self._aside(view, admitted))
        else:
            yield (0, 0), replace(others_wait(view, {}), keep=view.state.resident)
            yield (0, 0), others_wait(view, {})

    def _where_newcomers_run(self, view: View, must: list[Tenant]) -> Iterator[tuple[Rank, Plan]]:
        for carry in (True, False):
            for rung in view.rungs:
                level = view.ladder.index(rung.name)
                yield (0, level), self._all_run(view, must, rung.name, carry=carry)
        last_newcomer = max((i for i, t in enumerate(must) if t.phase is Phase.WAITING), default=0)
        for spill in (False, True):
            for out in range(1, len(must) - last_newcomer):
                aside = self._aside(view, must[-out:], spill=spill)
                for carry in (True, False):
                    yield (1, out), _some_run(view, must[:-out], aside, carry=carry)

    def _all_run(self, view: View, must: list[Tenant], rung: str, *, carry: bool) -> Plan:
        plan = Plan(placements={tenant.name: Run(rung, carry) for tenant in must})
        others = [tenant for tenant in view.waiting() if tenant not in must]
        return admit_while_room(view, plan, others, rung, self.margin)

    def _shed(self, view: View) -> Plan:
        """All parked; caches written to disk, then contexts shortened to ``min_cells``, then dropped whole, the
        least protected first, until the rest fits."""
        admitted = view.admitted()
        parked = self._aside(view, admitted)
        excess = view.peak_of(others_wait(view, parked)) - view.budget_bytes
        placements = self._aside(view, admitted, spill=True, enough=excess)
        excess = view.peak_of(others_wait(view, placements)) - view.budget_bytes
        shrinking = [
            tenant
            for tenant in by_protection(admitted)[::-1]
            if not tenant.spilled and placements[tenant.name] == Rest()
        ]
        kept = {tenant.name: tenant.cells for tenant in shrinking}
        for least in (self.min_cells, 0):
            for tenant in shrinking:
                cell_bytes = _cell_bytes(view, tenant)
                spare = max(0, kept[tenant.name] - least)
                cells = min(spare, -(-excess // cell_bytes)) if least else spare * (excess > 0)
                if cells > 0:
                    kept[tenant.name] -= cells
                    placements[tenant.name] = Rest(keep_cells=kept[tenant.name])
                    excess -= cells * cell_bytes
        return others_wait(view, placements)

    def _aside(
        self, view: View, tenants: list[Tenant], *, spill: bool = False, enough: int | None = None
    ) -> dict[str, Placement]:
        """Tenants that have begun, parked.

        With ``spill``, caches go to disk, the least protected first, as long as writing them stays within
        ``spill_within_ns`` and until ``enough`` bytes are free (``None``: all that can).
        """
        placements: dict[str, Placement] = {tenant.name: Rest() for tenant in tenants}
        left_ns, freed = self.spill_within_ns, 0
        for tenant in by_protection(tenants)[::-1] if spill else ():
            if tenant.spilled or tenant.cells == 0:
                continue
            size = _cell_bytes(view, tenant) * tenant.cells
            took_ns = view.costs.spill_ns(size)
            if took_ns <= left_ns and (enough is None or freed < enough):
                placements[tenant.name] = Rest(spill=True)
                left_ns, freed = left_ns - took_ns, freed + size
        return placements


def _cell_bytes(view: View, tenant: Tenant) -> int:
    assert tenant.cache_rung is not None
    return view.ladder.rung(tenant.cache_rung).kv.bytes_per_token


def _rungs(plan: Plan) -> frozenset[str]:
    return frozenset(placement.rung for placement in plan.placements.values() if isinstance(placement, Run))


def _present_rank(view: View) -> Rank:
    """The best where no tenant has begun, or one is to run on a rung that cannot be had: nothing is a recovery."""
    admitted = view.admitted()
    if not admitted or any(tenant.target in view.state.barred for tenant in admitted):
        return (0, 0)
    parked = sum(tenant.phase is Phase.PARKED for tenant in admitted)
    if parked == len(admitted):
        return (2, 0)
    return (1, parked) if parked else (0, view.level() or 0)


def _claims(view: View) -> list[Tenant]:
    """Newcomers with a claim to run beside all that are admitted, the best protected first.

    Those of the foreground: a person does not wait for a batch job. With none admitted: the first in the queue that can
    run at all.
    """
    feasible = [tenant for tenant in view.waiting() if _could_run(view, tenant)]
    claims = [tenant for tenant in feasible if tenant.kind is TenantKind.FOREGROUND]
    return claims if claims or view.admitted() else feasible[:1]


def _could_run(view: View, newcomer: Tenant) -> bool:
    """Whether a newcomer would fit on the smallest rung with all others parked; if not, it has no claim yet."""
    placements: dict[str, Placement] = {tenant.name: Rest() for tenant in view.admitted()}
    return view.fits(others_wait(view, {**placements, newcomer.name: Run(view.rungs[-1].name)}))


def _some_run(view: View, running: list[Tenant], aside: dict[str, Placement], *, carry: bool) -> Plan:
    bottom = view.rungs[-1].name
    placements: dict[str, Placement] = {tenant.name: Run(bottom, carry) for tenant in running}
    return others_wait(view, {**placements, **aside})
