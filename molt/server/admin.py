"""Who says what the budget is: a person, a trace, or the machine; one at a time, and the last one asked wins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from molt import units
from molt.core.ladder import Ladder
from molt.errors import InputError
from molt.formats.yaml_file import nearest
from molt.jobs.trace import Budget, BudgetStep, Trace, read_csv, trace_of
from molt.server.body import read_body
from molt.server.bridge import Bridge
from molt.server.error_answers import ErrorAnswer
from molt.server.request_bodies import BadRequest, BudgetRequest, FollowRequest, TraceRequest, parse

MANUAL, TRACE = "manual", "trace"
FOLLOWERS = "molt.followers"
"""The group of entry points that machine signals are found in."""

FOLLOW_S = 0.05
DEAD_BAND = 64
"""A followed budget is passed on when it has moved by more than one part in so many: readings tremble."""


class Follower(Protocol):
    """Reads from the machine what may be used. Made without arguments; ``InputError`` where it cannot read."""

    def budget_bytes(self, usage_bytes: int) -> int:
        """What may be used by somebody who uses ``usage_bytes`` now."""


def known_followers() -> dict[str, EntryPoint]:
    """The followers there are, by name."""
    return {entry.name: entry for entry in entry_points(group=FOLLOWERS)}


def make_follower(name: str) -> Follower:
    """The follower of that name; ``InputError`` if there is none, or it cannot read here."""
    known = known_followers()
    if name not in known:
        raise InputError(f"{name!r} is nothing to follow; {nearest(name, (MANUAL, *known))}")
    return known[name].load()()


def shipped_traces() -> dict[str, Path]:
    """The traces that ship with Molt, by name."""
    folder = Path(str(files("scenarios"))) / "traces"
    return {path.stem: path for path in sorted(folder.glob("*.csv"))}


def budget_on(budget: Budget, ladder: Ladder) -> int:
    """Bytes of a budget on a ladder; ``InputError`` for a rung that it has not, or less than a byte."""
    ((_, size),) = trace_of([BudgetStep(0, budget)], "").on(ladder)
    if size > units.QUANTITY_MAX:
        raise InputError(f"a budget is at most {units.QUANTITY_MAX} bytes")
    return size


class Budgeting:
    """Sets the budget of a hub, once or over time."""

    def __init__(self, hub: Bridge, default_bytes: int) -> None:
        self.source = MANUAL
        self.default_bytes = default_bytes
        self._hub = hub
        self._task: asyncio.Task[None] | None = None

    def by_hand(self, budget_bytes: int) -> None:
        """This much from now on."""
        self._replace(MANUAL, None)
        self._hub.set_budget(budget_bytes)

    def stay(self) -> None:
        """What it is now, from now on."""
        self._replace(MANUAL, None)

    def replay(self, trace: Trace) -> None:
        """The steps of a trace, from now on; ``InputError`` if they do not suit the ladder."""
        self._replace(TRACE, self._replayed(trace.on(self._hub.ladder)))

    def follow(self, name: str, follower: Follower) -> None:
        """What the machine has room for."""
        self._replace(name, self._followed(follower))

    def _replace(self, source: str, work: Coroutine[Any, Any, None] | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self.source = source
        self._task = None if work is None else asyncio.create_task(work)

    async def _replayed(self, steps: tuple[tuple[int, int], ...]) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for at_ns, budget_bytes in steps:
            await asyncio.sleep(begin_s + at_ns / 1e9 - loop.time())
            self._hub.set_budget(budget_bytes)
        self.source = MANUAL

    async def _followed(self, follower: Follower) -> None:
        while True:
            with contextlib.suppress(OSError):  # a file that is gone for a moment: the next look will tell
                wanted = self._wanted(follower)
                now = self._hub.budget_bytes
                if abs(wanted - now) * DEAD_BAND > now:
                    self._hub.set_budget(wanted)
            await asyncio.sleep(FOLLOW_S)

    def _wanted(self, follower: Follower) -> int:
        """What is being brought in counts as used before it takes any memory; until then, nothing is free for more."""
        held = self._hub.holdings
        wanted = max(1, follower.budget_bytes(held.usage_bytes))
        return min(wanted, self._hub.budget_bytes) if held.parts.get("transient") else wanted


# --- over HTTP ---


class Administration:
    """The handlers of ``/admin/…``. What is wrong with a body is a 422 here, and changes nothing."""

    def __init__(self, hub: Bridge, budgeting: Budgeting) -> None:
        self._hub = hub
        self._budgeting = budgeting

    async def budget(self, request: Request) -> Response:
        """Set the budget by hand."""
        asked = await self._asked(request, BudgetRequest)
        try:
            self._budgeting.by_hand(budget_on(asked.budget, self._hub.ladder))
        except InputError as error:
            raise _unprocessable(error, "budget") from None
        return self._now()

    async def trace(self, request: Request) -> Response:
        """Replay a trace."""
        asked = await self._asked(request, TraceRequest)
        try:
            self._budgeting.replay(_trace(asked))
        except InputError as error:
            raise _unprocessable(error, "steps" if asked.name is None else "name") from None
        return self._now()

    async def follow(self, request: Request) -> Response:
        """Follow a signal of the machine, or stop following."""
        asked = await self._asked(request, FollowRequest)
        try:
            if asked.source == MANUAL:
                self._budgeting.stay()
            else:
                self._budgeting.follow(asked.source, make_follower(asked.source))
        except InputError as error:
            raise _unprocessable(error, "source") from None
        return self._now()

    async def _asked(self, request: Request, model: type[Any]) -> Any:
        try:
            return parse(model, await read_body(request.scope, request.receive, self._hub.limits))
        except BadRequest as error:
            raise ErrorAnswer(422, error.message, param=error.param) from None

    def _now(self) -> Response:
        return JSONResponse({"source": self._budgeting.source, "budget_bytes": self._hub.budget_bytes})


def _trace(asked: TraceRequest) -> Trace:
    if (asked.steps is None) == (asked.name is None):
        raise InputError("either steps or the name of a trace")
    if asked.name is not None:
        known = shipped_traces()
        if asked.name not in known:
            raise InputError(f"no such trace; {nearest(asked.name, known)}")
        return read_csv(known[asked.name])
    steps = [BudgetStep(step.at, step.budget, f"steps[{i}].") for i, step in enumerate(asked.steps or ())]
    return trace_of(steps, "steps: ")


def _unprocessable(error: InputError, param: str) -> ErrorAnswer:
    return ErrorAnswer(422, str(error), param=param)
