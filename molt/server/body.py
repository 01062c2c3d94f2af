"""Reading the body of a request, as far as that is allowed, and noticing that whoever asked is gone."""

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

    ``ErrorAnswer`` where its content type is not JSON, where it is too long (whatever length it claims), or where it
    takes too long to come.
    """
    headers = Headers(scope=scope)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ErrorAnswer(415, "the body has to be application/json", "unsupported_media_type", close=True)
    claimed = headers.get("content-length", "0")
    if not claimed.isdecimal() or int(claimed) > limits.body_bytes:
        raise _too_long(limits)
    try:
        async with asyncio.timeout(limits.body_s):
            return await _read(receive, limits)
    except TimeoutError:
        raise ErrorAnswer(
            408, f"the body did not come within {limits.body_s:.0f} s", "timeout", close=True
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
    return ErrorAnswer(413, f"a body has at most {limits.body_bytes} bytes", "body_too_long", close=True)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What ``work`` gives; ``None`` if whoever asked goes away before. Then it is cancelled.

    To be called when the whole body has been read.
    """
    tasks = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
