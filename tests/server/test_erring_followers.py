"""A follower that errs while it is followed: the last budget stays in force, one line says why, the server goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from molt.server import admin
from molt.server.admin import Budgeting


class FakeBridge:
    """As much of a bridge as a budget needs."""

    def __init__(self) -> None:
        self.budget_bytes = 1000
        self.holdings: Any = type("Held", (), {"usage_bytes": 0, "parts": {}})()

    def set_budget(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes


class Erring:
    """Answers in turn; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def budget_bytes(self, usage_bytes: int) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("wrong", [ZeroDivisionError("no"), "500", None, 1.5, True], ids=str)
def test_the_last_budget_stays_until_the_follower_answers_again(
    wrong: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin, "FOLLOW_S", 0.001)
    bridge = FakeBridge()

    async def main() -> None:
        budgeting = Budgeting(bridge, 1000)  # type: ignore[arg-type]
        budgeting.follow("mine", Erring(2000, wrong, wrong, wrong, 3000))
        await asyncio.sleep(0.05)
        assert budgeting.source == "mine"
        budgeting.stay()

    seen: list[int] = []
    set_budget = bridge.set_budget
    bridge.set_budget = lambda size: (seen.append(size), set_budget(size))[1]  # type: ignore[method-assign,func-returns-value]
    asyncio.run(main())
    assert seen == [2000, 3000]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("molt: follower 'mine': ")
    if isinstance(wrong, Exception):
        assert f"{__file__}:" in lines[0]
