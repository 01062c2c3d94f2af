"""``docs/reference/glossary.md`` has every lever, event and route, and each of its tables has whole rows."""

from __future__ import annotations

import re
import typing

import pytest

from molt.core import decisions, events
from molt.core.ladder import RouteKind
from molt.jobs.plugins import known_policies
from tests.test_docs import ROOT

TEXT = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^\| ([^|]+) \|", TEXT, re.MULTILINE)
NAMES = {name for term in TERMS for name in re.findall(r"[\w ]+", term)}


@pytest.mark.parametrize("lever", [one.__name__ for one in typing.get_args(decisions.AnyDecision)])
def test_every_lever_is_a_term(lever: str) -> None:
    assert lever in NAMES


@pytest.mark.parametrize("event", [one.__name__ for one in typing.get_args(events.AnyEvent)])
def test_every_event_is_a_term(event: str) -> None:
    assert event in NAMES


@pytest.mark.parametrize("kind", [kind.value for kind in RouteKind])
def test_every_kind_of_route_is_a_term(kind: str) -> None:
    assert kind in NAMES


@pytest.mark.parametrize("kind", [kind.value for kind in events.TenantKind])
def test_every_kind_of_tenant_is_a_term(kind: str) -> None:
    assert kind in NAMES


@pytest.mark.parametrize("policy", known_policies())
def test_every_policy_is_a_term(policy: str) -> None:
    assert policy in NAMES


def test_no_term_is_explained_twice() -> None:
    terms = [term for term in TERMS if term not in ("term", "event")]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


def test_every_row_has_all_of_its_columns() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE)
    assert tables
    for table in tables:
        columns = {line.count(" | ") for line in table.splitlines() if not line.startswith("|--")}
        assert len(columns) == 1, table
        assert all(cell.strip() for line in table.splitlines() for cell in line.strip("|").split("|"))
