"""Policies and followers that err while they are loaded or made: one line with the user's file and line."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from molt.errors import InputError
from molt.jobs import plugins
from molt.jobs.plugins import make_policy
from molt.server import admin
from molt.server.admin import make_follower

BODIES = {
    "raises": "raise ValueError('two\\nlines')",
    "imports": "import nowhere_to_be_found",
    "syntax": "def",
    "exits": "raise SystemExit(3)",
    "lacks": "pass",
    "made": (
        "from dataclasses import dataclass\n@dataclass\nclass Wanted:\n    name = 'wanted'\n"
        "    promises = frozenset()\n"
        "    floor_cells = 0\n    def decide(self, view): ...\n    def __post_init__(self):\n        1 / 0\n"
    ),
}


@pytest.fixture(params=BODIES)
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"erring_plugin_{request.param}"
    (tmp_path / f"{name}.py").write_text(BODIES[request.param] + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(name, None)
    return name


def test_a_policy_by_its_module(module: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        make_policy(f"{module}:Wanted", {})
    _is_one_line(str(caught.value), f"policy '{module}:Wanted': ", module, tmp_path)


def test_an_installed_policy(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", f"{module}:Wanted", plugins.GROUP)
    monkeypatch.setattr(plugins, "_installed", lambda: {"mine": entry})
    with pytest.raises(InputError) as caught:
        make_policy("mine", {})
    _is_one_line(str(caught.value), "policy 'mine': ", module, tmp_path)


def test_a_follower(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", f"{module}:Wanted", admin.FOLLOWERS)
    monkeypatch.setattr(admin, "known_followers", lambda: {"mine": entry})
    with pytest.raises(InputError) as caught:
        make_follower("mine")
    _is_one_line(str(caught.value), "follower 'mine': ", module, tmp_path)


def _is_one_line(message: str, begin: str, module: str, folder: Path) -> None:
    assert message.startswith(begin)
    assert message.isprintable()
    if not module.endswith("lacks"):
        assert re.search(rf"{re.escape(str(folder / module))}\.py:\d+", message), message
