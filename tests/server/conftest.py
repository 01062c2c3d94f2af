"""Servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.local import Local, running
from tests.server.process import Process, started


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    """A server in this process, whose answers are `` w0 w1 w2 …``."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """``molt serve --ladder pico``: a real process, with real models in a child of its own."""
    folder: Path = tmp_path_factory.mktemp("pico")
    with started(folder, "--ladder", "pico") as server:
        yield server
