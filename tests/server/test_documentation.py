"""The examples of ``docs/guides/serve.md``, run as they stand against ``molt serve --ladder pico``."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from molt.server.answer import Answer
from molt.server.openapi import document
from tests.server.local import ADMIN
from tests.server.process import Process
from tests.test_docs import ROOT, blocks, commands

PAGE = ROOT / "docs" / "guides" / "serve.md"
REFERENCE = ROOT / "docs" / "reference" / "server-api.md"
CURLS = [command for command in commands(PAGE) if command.startswith("curl")]


@pytest.fixture(autouse=True)
def _roomy(pico: Process) -> Iterator[None]:
    yield
    pico.budget("90MiB")


def here(text: str, pico: Process) -> str:
    """An example with the address and the token of this server."""
    return text.replace("http://127.0.0.1:8080", pico.url).replace("Bearer ADMIN", f"Bearer {ADMIN}")


@pytest.mark.parametrize("command", CURLS, ids=range(len(CURLS)))
def test_curl(pico: Process, command: str) -> None:
    done = subprocess.run(
        [*shlex.split(here(command, pico)), "--fail-with-body", "--noproxy", "*"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    if '"stream": true' in command:
        assert done.stdout.endswith("data: [DONE]\n\n")
    elif "/admin/" in command:
        assert set(json.loads(done.stdout)) == {"source", "budget_bytes"}
    else:
        assert json.loads(done.stdout)["choices"][0]["finish_reason"]


def test_python(pico: Process) -> None:
    (program,) = blocks(PAGE, "python")
    done = subprocess.run(
        [sys.executable, "-c", here(program, pico)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("tier") for line in lines) == 24
    assert lines[-1] == "summary"


def test_every_field_of_the_summary_is_documented() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    summary = Answer(1, (), lambda *route: 0, may_begin_anew=True).summary()
    missing = [name for name in summary if f"`{name}`" not in text and name not in ("event", "prompt_tokens")]
    assert missing == []


def test_the_openapi_document_has_every_schema_that_it_refers_to_and_no_other() -> None:
    described = document(("pico", "molt"))
    used = re.findall(r"#/components/schemas/(\w+)", json.dumps(described))
    assert set(described["components"]["schemas"]) == set(used)
    assert {"ChatRequest", "CompletionRequest", "BudgetRequest", "TraceRequest", "FollowRequest"} < set(used)
