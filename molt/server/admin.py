"""The source of the budget: an administrator, a trace or the machine. The one chosen last replaces the others."""

from __future__ import annotations

import asyncio
import contextlib
import sys
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
from molt.jobs.plugins import loaded, said_by
from molt.jobs.trace import Budget, BudgetStep, Trace, read_csv, trace_of
from molt.server.body import read_body
from molt.server.bridge import Bridge
from molt.server.error_answers import ErrorAnswer
from molt.server.request_bodies import BadRequest, BudgetRequest, FollowRequest, TraceRequest, parse

MANUAL, TRACE = "manual", "trace"
FOLLOWERS = "molt.followers"
"""The group of entry points with the followers."""

FOLLOW_S = 0.05
MEMORY_REPORTS_MAX = 5
"""Different mistakes of a follower that are reported on stderr."""

DEAD_BAND = 64
"""A followed budget is passed on when it has changed by more than one part in this many: readings are noisy."""


class Follower(Protocol):
    """Reads a budget from the machine. Made without arguments; ``InputError`` where it cannot read."""

    def budget_bytes(self, usage_bytes: int) -> int:
        """The budget of a process that uses ``usage_bytes`` now."""


def known_followers() -> dict[str, EntryPoint]:
    """The installed followers, by name."""
    return {entry.name: entry for entry in entry_points(group=FOLLOWERS)}


def make_follower(name: str) -> Follower:
    """The follower of that name; ``InputError`` if there is none, or it cannot read here."""
    known = known_followers()
    if name not in known:
        raise InputError(f"{name!r} is no source of a budget; {nearest(name, (MANUAL, *known))}")
    return loaded(f"follower {name!r}", lambda: known[name].load()())


def shipped_traces() -> dict[str, Path]:
    """The traces that ship with Molt, by name."""
    folder = Path(str(files("scenarios"))) / "traces"
    return {path.stem: path for path in sorted(folder.glob("*.csv"))}


def budget_on(budget: Budget, ladder: Ladder) -> int:
    """Bytes of a budget on a ladder; ``InputError`` for a rung that it has not, or less than a byte."""
    ((_, size),) = trace_of([BudgetStep(0, budget)], "").on(ladder)
    if size > units.QUANTITY_MAX:
        raise InputError(f"budget must be at most {units.QUANTITY_MAX} bytes")
    return size


class Budgeting:
    """Sets the budget of the server, once or over time."""

    def __init__(self, bridge: Bridge, default_bytes: int) -> None:
        self.source = MANUAL
        self.default_bytes = default_bytes
        self._bridge = bridge
        self._task: asyncio.Task[None] | None = None

    def by_hand(self, budget_bytes: int) -> None:
        """This budget from now on."""
        self._replace(MANUAL, None)
        self._bridge.set_budget(budget_bytes)

    def stay(self) -> None:
        """The present budget from now on; the source that set it is stopped."""
        self._replace(MANUAL, None)

    def replay(self, trace: Trace) -> None:
        """The steps of a trace, the first at once; ``InputError`` if they do not suit the ladder."""
        (_, first_bytes), *rest = trace.on(self._bridge.ladder)
        self._replace(TRACE, self._replayed(tuple(rest)))
        self._bridge.set_budget(first_bytes)

    def follow(self, name: str, follower: Follower) -> None:
        """The budget that a follower reads from the machine, at once and from now on."""
        reported: set[str] = set()
        self._read(name, follower, reported)
        self._replace(name, self._followed(name, follower, reported))

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
            self._bridge.set_budget(budget_bytes)
        self.source = MANUAL

    async def _followed(self, name: str, follower: Follower, reported: set[str]) -> None:
        while True:
            await asyncio.sleep(FOLLOW_S)
            self._read(name, follower, reported)

    def _read(self, name: str, follower: Follower, reported: set[str]) -> None:
        """Read once; ``reported`` are the mistakes that the user has read of."""
        try:
            wanted = self._wanted(follower)
        except OSError:
            pass  # a file that is gone for a moment: read again next time
        except Exception as error:  # it may be a plug-in's; the last budget stays in force
            if (said := said_by(error)) not in reported and len(reported) < MEMORY_REPORTS_MAX:
                reported.add(said)
                with contextlib.suppress(OSError, ValueError):  # stderr is closed
                    print(
                        f"molt: follower {name!r}: {said}; the last budget stays in force",
                        file=sys.stderr,
                    )
        else:
            now = self._bridge.budget_bytes
            if abs(wanted - now) * DEAD_BAND > now:
                self._bridge.set_budget(wanted)

    def _wanted(self, follower: Follower) -> int:
        """The follower's budget; it cannot rise while a rung is loading, whose memory is counted but not yet in use."""
        held = self._bridge.holdings
        read = follower.budget_bytes(held.usage_bytes)
        if not isinstance(read, int) or isinstance(read, bool):
            raise TypeError(f"budget_bytes gives {read!r}, not a whole number of bytes")
        wanted = min(max(1, read), units.QUANTITY_MAX)
        return min(wanted, self._bridge.budget_bytes) if held.parts.get("transient") else wanted


# --- over HTTP ---


class Administration:
    """The handlers of ``/admin/…``. A wrong body is answered with 422 and changes nothing."""

    def __init__(self, bridge: Bridge, budgeting: Budgeting) -> None:
        self._bridge = bridge
        self._budgeting = budgeting

    async def budget(self, request: Request) -> Response:
        """Set the budget by hand."""
        body = await self._body(request, BudgetRequest)
        try:
            self._budgeting.by_hand(budget_on(body.budget, self._bridge.ladder))
        except InputError as error:
            raise _unprocessable(error, "budget") from None
        return self._now()

    async def trace(self, request: Request) -> Response:
        """Replay a trace."""
        body = await self._body(request, TraceRequest)
        try:
            self._budgeting.replay(_trace(body))
        except InputError as error:
            raise _unprocessable(error, "steps" if body.name is None else "name") from None
        return self._now()

    async def follow(self, request: Request) -> Response:
        """Follow a signal of the machine, or stop following."""
        body = await self._body(request, FollowRequest)
        try:
            if body.source == MANUAL:
                self._budgeting.stay()
            else:
                self._budgeting.follow(body.source, make_follower(body.source))
        except InputError as error:
            raise _unprocessable(error, "source") from None
        return self._now()

    async def _body(self, request: Request, model: type[Any]) -> Any:
        try:
            return parse(model, await read_body(request.scope, request.receive, self._bridge.limits))
        except BadRequest as error:
            raise ErrorAnswer(422, error.message, param=error.param) from None

    def _now(self) -> Response:
        return JSONResponse({"source": self._budgeting.source, "budget_bytes": self._bridge.budget_bytes})


def _trace(body: TraceRequest) -> Trace:
    if (body.steps is None) == (body.name is None):
        raise InputError("give either steps or the name of a trace")
    if body.name is not None:
        known = shipped_traces()
        if body.name not in known:
            raise InputError(f"no such trace; {nearest(body.name, known)}")
        return read_csv(known[body.name])
    steps = [BudgetStep(step.at, step.budget, f"steps[{i}].") for i, step in enumerate(body.steps or ())]
    return trace_of(steps, "steps: ")


def _unprocessable(error: InputError, param: str) -> ErrorAnswer:
    return ErrorAnswer(422, str(error), param=param)
