"""Every hypothesis generator of the tests, in one place.

A strategy yields values of the kind in its name; one that ends in ``_texts`` yields text as a user writes it.
Sizes are bytes, durations and times nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from molt import units
from molt.core.events import TenantKind
from molt.jobs.scenario import (
    HardwareDocument,
    PolicySpec,
    PromptDocument,
    ResolvedScenario,
    ScenarioDocument,
    StepDocument,
    TenantDocument,
    TraceDocument,
)
from molt.jobs.trace import Budget, BudgetStep, Trace
from molt.policies.molt import Molt

SECOND_NS = 1_000_000_000
RUNGS = ("tier0", "tier1", "tier2")

# --- quantities ---


def sizes(max_bytes: int = units.QUANTITY_MAX) -> st.SearchStrategy[int]:
    """Bytes, round numbers of every unit among them."""
    return _quantities(units.SIZE, max_bytes)


def durations(max_ns: int = units.QUANTITY_MAX) -> st.SearchStrategy[int]:
    """Nanoseconds, round numbers of every unit among them."""
    return _quantities(units.DURATION, max_ns)


def _quantities(dimension: units.Dimension, maximum: int) -> st.SearchStrategy[int]:
    worths = [worth for worth in dimension.units.values() if worth <= maximum]
    round_ones = st.sampled_from(worths).flatmap(
        lambda worth: st.integers(0, min(5000, maximum // worth)).map(lambda count: count * worth)
    )
    return st.integers(0, maximum) | round_ones


def quantity_texts(dimension: units.Dimension) -> st.SearchStrategy[tuple[str, str]]:
    """Number and unit of a well-formed quantity; it need not be a whole number of base units."""
    wholes = st.integers(0, 10**6).map(str)
    fractions = st.just("") | st.text("0123456789", min_size=1, max_size=12).map(lambda digits: f".{digits}")
    return st.tuples(st.builds(str.__add__, wholes, fractions), st.sampled_from(list(dimension.units)))


# --- budgets and traces ---


def budgets(rungs: Sequence[str] = RUNGS) -> st.SearchStrategy[Budget]:
    """Budgets of both kinds; relative ones may come to nothing on a ladder."""
    small = 2**40
    absolute = st.builds(Budget, st.integers(1, small) | sizes(small).filter(bool))
    relative = st.builds(
        Budget,
        offset_bytes=st.just(0) | sizes(small) | sizes(small).map(lambda size: -size),
        share_millionths=st.integers(0, 10**7) | st.integers(0, 300).map(lambda percent: percent * 10_000),
        rung=st.sampled_from(rungs),
    )
    return absolute | relative


@st.composite
def traces(
    draw: st.DrawFn, end_ns: int = 60 * SECOND_NS, rungs: Sequence[str] = RUNGS, max_steps: int = 6
) -> Trace:
    """Traces whose last step comes at ``end_ns`` at the latest."""
    later_ns = draw(st.sets(st.integers(1, end_ns), max_size=min(max_steps - 1, end_ns)))
    return Trace(tuple(BudgetStep(at_ns, draw(budgets(rungs))) for at_ns in sorted({0} | later_ns)))


# --- scenarios ---

names = st.builds(
    str.__add__,
    st.sampled_from("abcxyz"),
    st.text("abcxyz0189_-", max_size=6),
)

prompt_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(str.strip)

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e6, 1e6)
    | st.text("aé1:- #", max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
"""What YAML can hold."""

policy_specs = st.builds(
    PolicySpec,
    name=st.sampled_from(("hold", "always_small", "restart", "molt")),
    params=st.dictionaries(names, plain_values, max_size=2),
)


def tenant_documents(horizon_ns: int) -> st.SearchStrategy[TenantDocument]:
    """Tenants that arrive before ``horizon_ns``."""
    return st.builds(
        TenantDocument,
        name=names,
        kind=st.sampled_from(TenantKind),
        arrives=st.integers(0, horizon_ns - 1).map(units.format_duration),
        prompt=st.builds(PromptDocument, text=prompt_texts),
        max_tokens=st.integers(1, 500),
        stop=st.sampled_from(("eos", "never")),
        temperature=st.floats(0, 2),
        top_p=st.floats(0, 1, exclude_min=True),
    )


@st.composite
def scenario_documents(draw: st.DrawFn) -> ScenarioDocument:
    """Scenario files that load, with prompts and trace inside the file."""
    horizon_ns = draw(st.integers(1, 100).map(lambda s: s * SECOND_NS) | st.integers(1, 10**12))
    tenants = st.lists(
        tenant_documents(horizon_ns), min_size=1, max_size=3, unique_by=lambda tenant: tenant.name
    )
    policies = st.lists(policy_specs, min_size=1, max_size=4, unique_by=lambda policy: policy.name)
    steps = [
        StepDocument.model_construct(at=step.at_ns, budget=step.budget)
        for step in draw(traces(horizon_ns, max_steps=4)).steps
    ]
    return ScenarioDocument.model_construct(
        name=draw(names),
        ladder=draw(st.just("pico") | st.just("ladders/mine.yaml")),
        horizon=horizon_ns,
        seed=draw(st.integers(0, 2**63 - 1)),
        kill_after=draw(durations(10 * SECOND_NS)),
        hardware=draw(
            st.builds(
                HardwareDocument,
                profile=st.none() | st.just("laptop"),
                slowdown=st.floats(0, 100, exclude_min=True),
            )
        ),
        trace=TraceDocument.model_construct(steps=tuple(steps), file=None),
        policies=tuple(draw(policies)),
        tenants=tuple(draw(tenants)),
    )


# --- damage ---

_NASTY = (
    *("012", "1:30", "NO", "2G", "1,024", ".nan", "-1", "1e999", "null", "~", "{}", "[]", "''"),
    *('"', "'", "|", ">", "? :", "&a", "*a", "<<: {}", "---", "...", "%YAML 1.1", "!!python/object:os"),
    *("\t", "\n", "\r", "\0", "\x85", "\u2028", "\ufeff", "\ud800", "\U0001f600"),
    *("tenants:", "file: /", "9" * 50, "[" * 50, "0x" + "f" * 50),
)


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """``text`` with a few pieces cut out, doubled, or replaced by something nasty."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = text[start:end]
        new = draw(st.sampled_from(("", piece * 2, *_NASTY)) | st.text(max_size=3))
        text = text[:start] + new + text[end:]
    return text


@st.composite
def worlds(draw: st.DrawFn) -> ResolvedScenario:
    """A scenario on the small ladder: up to four tenants under a budget that goes anywhere."""
    from tests import small

    sizes_mib = st.one_of(st.floats(0.01, 4), st.floats(2, 16), st.floats(16, 64))
    at_ns, budgets = 0, []
    for size in draw(st.lists(sizes_mib, min_size=1, max_size=8)):
        budgets.append((at_ns, max(1, round(size * small.MIB))))
        at_ns += draw(st.integers(1, 12_000)) * small.MS
    tenants = [
        small.tenant(
            f"t{index}",
            draw(st.sampled_from(TenantKind)),
            arrives_ns=draw(st.integers(0, 30_000)) * small.MS,
            prompt_tokens=draw(st.integers(1, 900)),
            max_tokens=draw(st.integers(1, 200)),
        )
        for index in range(draw(st.integers(1, 4)))
    ]
    horizon_ns = max(at_ns, 30 * small.S) + 20 * small.S
    return small.scenario(
        budgets, tenants, horizon_ns=horizon_ns, kill_after_ns=draw(st.integers(300, 2000)) * small.MS
    )


def untied(on: ResolvedScenario) -> ResolvedScenario:
    """The same scenario a few nanoseconds off, so that nothing from outside happens exactly when a step ends.

    Which of two things comes first that happen in the same nanosecond is not ruled.
    """
    return replace(
        on,
        budgets=tuple(
            (at_ns + 10 * (2 * index + 1) if at_ns else 0, budget)
            for index, (at_ns, budget) in enumerate(on.budgets)
        ),
        tenants=tuple(
            replace(tenant, arrives_ns=tenant.arrives_ns + 20 * (index + 1) + 1)
            for index, tenant in enumerate(on.tenants)
        ),
        horizon_ns=on.horizon_ns + 7,
        kill_after_ns=on.kill_after_ns + 3,
    )


# --- what may happen to a scheduler ---


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """A budget relative to what is going on: ``anchor`` plus ``offset_bytes``."""

    anchor: str
    offset_bytes: int


budget_choices = st.builds(
    BudgetChoice,
    st.sampled_from(("usage", "peak", "bottom", "caches", "now")),
    st.sampled_from((-1, 0, 1, -(1 << 16), 1 << 16, -(1 << 20), 1 << 20, -(3 << 20), 8 << 20, 24 << 20)),
) | st.builds(
    BudgetChoice,
    st.just("nothing"),
    st.sampled_from(
        (64 << 20, 40 << 20, 24 << 20, 14 << 20, 10 << 20, 6 << 20, 3 << 20, 1 << 20, 1 << 16, 1)
    ),
)
"""Budgets at the edges of what is used, what is reserved, what all need on the smallest rung, and anywhere."""

molt_policies = st.builds(
    Molt,
    cooldown_ns=st.sampled_from((0, 300_000_000, SECOND_NS, 2 * SECOND_NS)),
    margin=st.sampled_from((0.0, 0.05, 0.2)),
    min_cells=st.sampled_from((8, 32)),
    heal_tokens=st.sampled_from((0, 8, 32)),
    native_tokens=st.sampled_from((0, 16)),
    stall_ns=st.sampled_from((0, 200_000_000)),
    spill_within_ns=st.sampled_from((100_000_000, 1_000_000, 0)),
)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request that may come in."""

    kind: TenantKind
    prompt_tokens: int
    max_tokens: int


newcomers = st.builds(
    Newcomer,
    st.sampled_from(TenantKind),
    st.sampled_from((300, 60, 900, 9, 2, 1)),
    st.sampled_from((60, 120, 20, 2)),
)


# --- answers over the wire ---


@st.composite
def pieces_and_stops(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Pieces of a text, over so few letters that stop strings occur in it, and stop strings."""
    text = st.text("ab\n", max_size=6)
    return draw(st.lists(text, max_size=12)), draw(st.lists(text.filter(bool), max_size=4))
