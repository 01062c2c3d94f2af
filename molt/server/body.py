"""Reads the body of a request within its limits, and notices that the client has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from molt.server.error_answers import ErrorAnswer
from molt.server.limits import Limits

T = TypeVar("T")


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The body of a request.

    ``ErrorAnswer`` where its content type is not JSON, where it is too long (whatever length its header gives), or
    where it takes too long to arrive.
    """
    headers = Headers(scope=scope)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ErrorAnswer(415, "body must be application/json", "unsupported_media_type", close=True)
    claimed = headers.get("content-length", "0")
    if not claimed.isdecimal() or int(claimed) > limits.body_bytes:
        raise _too_long(limits)
    try:
        async with asyncio.timeout(limits.body_s):
            return await _read(receive, limits)
    except TimeoutError:
        raise ErrorAnswer(
            408, f"body not received within {limits.body_s:.0f} s", "timeout", close=True
        ) from None


async def _read(receive: Receive, limits: Limits) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limits.body_bytes:
            raise _too_long(limits)
        if not message.get("more_body", False):
            return bytes(body)


def _too_long(limits: Limits) -> ErrorAnswer:
    return ErrorAnswer(413, f"body must have at most {limits.body_bytes} bytes", "body_too_long", close=True)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``; ``None`` if the client disconnects before. Then ``work`` is cancelled.

    To be called when the whole body has been read.
    """
    tasks = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
