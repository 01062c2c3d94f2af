"""The server against its own OpenAPI document: check 21 of ``docs/reference/server-checks.md``.

A thousand requests for every operation with ``MOLT_HYPOTHESIS=night``, a few of them otherwise. Whatever is asked,
valid or not: no 5xx but those that are documented, and every answer is of the kind that the document says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from molt.server.limits import Limits
from molt.server.openapi import document
from tests.server.local import ADMIN, Local, running

EXAMPLES = 1000 if os.environ.get("MOLT_HYPOTHESIS") == "night" else 12
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]
schema = schemathesis.openapi.from_dict(document(("pico", "molt"))).exclude(path="/molt/events")


@pytest.fixture(scope="module")
def patient() -> Iterator[Local]:
    """A server that answers at once, whatever the budget becomes: no tenant waits for memory for long."""
    with running(pace=0.0, limits=Limits(answer_s=2.0, answer_tokens=8)) as server:
        yield server
        assert server.bridge.failure is None


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_21_every_answer_is_as_documented(patient: Local, case: schemathesis.Case) -> None:
    case.call_and_validate(
        base_url=patient.url,
        headers={"authorization": f"Bearer {ADMIN}"},
        checks=CHECKS,
        timeout=20,
    )
