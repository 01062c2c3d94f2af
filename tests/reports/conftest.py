"""A run folder of three policies, as a world leaves it behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.story import Story, survivor, victim

HOSTILE = "<script>alert('owned')</script>"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """``hold`` is killed, ``molt`` survives and writes hostile text, ``idle`` never gets to do anything."""
    victim().write(tmp_path / "hold")
    survivor((HOSTILE, " | `*x*`")).write(tmp_path / "molt")
    Story().write(tmp_path / "idle")
    return tmp_path
