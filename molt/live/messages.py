"""What goes through the pipe between a world and its engine: JSON, each message behind its length in four bytes.

A call is answered by one reply with its number. A reply says, beside the result, what the tenant or the rung of the
call holds now, so that no further call has to ask for that. Nothing that arrives is trusted: what is no message, or is
another one than was due, is a ``MessageError``.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from molt.core.engine_protocol import Decoded, Destination, Request
from molt.core.events import Handoff

MESSAGE_BYTES_MAX = 64 << 20
LENGTH_BYTES = 4
PIPE_READ_BYTES = 1 << 16
LOOK_S = 0.2
"""How soon a deadline that was moved is noticed."""

Deadline: TypeAlias = Callable[[], float]


def never() -> float:
    """No deadline."""
    return float("inf")


class MessageError(Exception):
    """What came is no message, or not the one that was due."""


class Silence(Exception):
    """Nothing came in time."""


class Ended(Exception):
    """The other side has gone."""


# --- what is asked, one class a call of the protocol ---


@dataclass(frozen=True, slots=True)
class LoadCall:
    """``Engine.load``."""

    rung: str
    within_ns: int | None
    call: Literal["load"] = "load"


@dataclass(frozen=True, slots=True)
class ReleaseCall:
    """``Engine.release``."""

    rung: str
    call: Literal["release"] = "release"


@dataclass(frozen=True, slots=True)
class AdmitCall:
    """``Engine.admit``."""

    tenant: str
    request: Request
    rung: str
    capacity: int
    call: Literal["admit"] = "admit"


@dataclass(frozen=True, slots=True)
class PrefillCall:
    """``Engine.prefill``."""

    tenant: str
    tokens: int
    chunk: int
    within_ns: int | None
    call: Literal["prefill"] = "prefill"


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """``Engine.decode``."""

    tenant: str
    count: int
    heal: int
    call: Literal["decode"] = "decode"


@dataclass(frozen=True, slots=True)
class SwitchCall:
    """``Engine.switch``."""

    tenant: str
    destination: Destination
    within_ns: int | None
    call: Literal["switch"] = "switch"


@dataclass(frozen=True, slots=True)
class GrowCall:
    """``Engine.grow``."""

    tenant: str
    capacity: int
    call: Literal["grow"] = "grow"


@dataclass(frozen=True, slots=True)
class ShedCall:
    """``Engine.shed``."""

    tenant: str
    keep_cells: int
    rung: str
    call: Literal["shed"] = "shed"


@dataclass(frozen=True, slots=True)
class TenantCall:
    """The calls with no argument but their tenant."""

    tenant: str
    call: Literal["park", "spill", "restore", "finish"]


Call = (
    LoadCall
    | ReleaseCall
    | AdmitCall
    | PrefillCall
    | DecodeCall
    | SwitchCall
    | GrowCall
    | ShedCall
    | TenantCall
)


@dataclass(frozen=True, slots=True)
class NumberedCall:
    """A call with its number, from 1."""

    number: int
    call: Annotated[Call, Field(discriminator="call")]


# --- what is answered ---

FailureName = Literal["LoadError", "SwitchError", "SpillError", "InputError"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the call of this number; number 0 greets when the engine is ready.

    ``freed_bytes``, ``is_done``, ``decoded`` and ``handoff`` are results, each of the calls that have such a one.
    ``held_bytes`` is what the cache of the call's tenant, or the weights of its rung, take now; ``settled`` are the
    cells of that cache that need no healing. A ``failure`` is one that the protocol knows, with its ``reason``.
    """

    number: int
    freed_bytes: int | None = None
    is_done: bool | None = None
    decoded: Decoded | None = None
    handoff: Handoff | None = None
    held_bytes: Annotated[int, Field(ge=0)] = 0
    settled: Annotated[int, Field(ge=0)] = 0
    failure: FailureName | None = None
    reason: str = ""


CALLS: TypeAdapter[NumberedCall] = TypeAdapter(NumberedCall)
REPLIES: TypeAdapter[Reply] = TypeAdapter(Reply)
Message = TypeVar("Message")


class Pipe:
    """One side of the pipe: a descriptor to read from and one to write to, which their opener still owns.

    Deadlines are functions that give a time of ``time.monotonic``: they may change while a side waits.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        os.set_blocking(outgoing, False)
        self._readable = _waiting_for(incoming, selectors.EVENT_READ)
        self._writable = _waiting_for(outgoing, selectors.EVENT_WRITE)
        self._pending = b""

    def send(self, kind: TypeAdapter[Message], message: Message, until_s: Deadline = never) -> None:
        """Send a message. Raises ``Silence`` if it is not taken in time, ``Ended`` if the other side reads no more."""
        body = kind.dump_json(message)
        data = memoryview(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        while data:
            try:
                data = data[os.write(self._outgoing, data) :]
            except BlockingIOError:
                _wait(self._writable, until_s)
            except OSError as error:
                raise Ended(str(error)) from error

    def receive(self, kind: TypeAdapter[Message], until_s: Deadline = never) -> Message:
        """The next message.

        Raises ``Silence`` if none has come in time, ``Ended`` if none will come, ``MessageError`` if it is none.
        """
        size = int.from_bytes(self._take(LENGTH_BYTES, until_s), "little")
        if size > MESSAGE_BYTES_MAX:
            raise MessageError(f"a message of {size} bytes")
        try:
            return kind.validate_json(self._take(size, until_s))
        except ValidationError as error:
            raise MessageError(str(error.errors(include_url=False)[0])) from error

    def close(self) -> None:
        """Stop waiting for anything."""
        self._readable.close()
        self._writable.close()

    def _take(self, size: int, until_s: Deadline) -> bytes:
        while len(self._pending) < size:
            _wait(self._readable, until_s)
            try:
                some = os.read(self._incoming, PIPE_READ_BYTES)
            except OSError as error:
                raise Ended(str(error)) from error
            if not some:
                raise Ended("the pipe is closed")
            self._pending += some
        taken, self._pending = self._pending[:size], self._pending[size:]
        return taken


def _waiting_for(descriptor: int, event: int) -> selectors.BaseSelector:
    selector = selectors.DefaultSelector()
    selector.register(descriptor, event)
    return selector


def _wait(selector: selectors.BaseSelector, until_s: Deadline) -> None:
    while not selector.select(max(0.0, min(LOOK_S, until_s() - time.monotonic()))):
        if time.monotonic() >= until_s():
            raise Silence
