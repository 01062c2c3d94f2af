"""Values: nothing changes them, nothing is put beside their fields, and what is left out of one is nothing."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.core import decisions as d
from molt.core import events as e
from molt.core.ladder import Ladder
from molt.core.plan import Run
from molt.core.state import Phase, State, Tenant
from molt.core.values import changed
from tests.test_architecture import PURE, ROOT

MODULES = [
    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for folder in PURE
    for path in sorted((ROOT / folder).glob("[a-z]*.py"))
]
VALUES = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and inspect.isclass(kind) and kind.__module__ == module.__name__
]
FACTS, REQUESTS = (
    [kind for kind in VALUES if issubclass(kind, anything) and not kind.__subclasses__()]
    for anything in (e.Event, d.Decision)
)
"""Each is of one kind; what is common to several is never made."""
NOTHING = (None, 0, (), frozenset(), d.Prediction())
MOSTLY: dict[tuple[type, str], object] = {
    (e.TenantArrived, "attempt"): 1,
    (Tenant, "phase"): Phase.WAITING,
    (State, "alive"): True,
    (State, "load_turn"): True,
    (Run, "carry"): True,
    (Run, "native"): 16,
}


def named(kind: type) -> str:
    return kind.__qualname__


@pytest.mark.parametrize("kind", VALUES, ids=named)
def test_a_value_never_changes(kind: Any) -> None:
    """Frozen, and with slots of its own, which ``changed`` copies; a ladder has none, since it keeps its look-ups."""
    assert kind.__dataclass_params__.frozen
    assert "__dataclass_fields__" in vars(kind)
    assert ("__slots__" in vars(kind)) == (kind is not Ladder)


@pytest.mark.parametrize("kind", [*FACTS, *REQUESTS, e.Handoff], ids=named)
def test_facts_and_requests_are_made_with_names(kind: Any) -> None:
    assert all(field.kw_only for field in dataclasses.fields(kind))


def test_the_unions_are_closed() -> None:
    """What may happen, and what may be asked for, is in one union each; an outcome knows what it is an outcome of."""
    assert set(get_args(e.AnyEvent)) == set(FACTS)
    assert set(get_args(d.AnyDecision)) == set(REQUESTS)
    decided = {kind for kind in FACTS if "decision" in kind.__dataclass_fields__}
    assert set(get_args(e.Outcome)) == decided


DEFAULTS = [
    pytest.param(kind, field.name, field.default, id=f"{kind.__qualname__}.{field.name}")
    for kind in VALUES
    for field in dataclasses.fields(kind)
    if field.default is not dataclasses.MISSING and kind.__module__.startswith("molt.core")
]


@pytest.mark.parametrize(("kind", "name", "default"), DEFAULTS)
def test_what_is_left_out_is_nothing(kind: type, name: str, default: object) -> None:
    """No bytes, no tokens, not known, not done; but for a few, which are what they mostly are."""
    assert default in ((MOSTLY[kind, name],) if (kind, name) in MOSTLY else NOTHING)


tenants = st.builds(
    Tenant,
    st.text(),
    st.sampled_from(e.TenantKind),
    *[st.integers(0, 2000)] * 4,
    phase=st.sampled_from(Phase),
    read=st.integers(0, 2000),
    spilled=st.booleans(),
)


@given(tenants, st.integers(), st.booleans())
def test_a_changed_value_is_what_replace_makes(tenant: Tenant, heal: int, spilled: bool) -> None:
    before = dataclasses.asdict(tenant)
    assert changed(tenant, heal=heal, spilled=spilled) == dataclasses.replace(
        tenant, heal=heal, spilled=spilled
    )
    assert changed(tenant) == tenant
    assert dataclasses.asdict(tenant) == before


def test_a_field_that_is_not_there_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        changed(State(), budget=1)
