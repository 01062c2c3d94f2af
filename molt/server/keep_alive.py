"""Comments in a stream of server-sent events, which clients pass by, for as long as it has nothing else to say.

Proxies and clients take silence for the end of a connection; an answer may be parked, or wait, for longer than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

PING = b": ping\n\n"


async def kept_alive(events: AsyncIterator[bytes], every_s: float) -> AsyncGenerator[bytes]:
    """The events, and a comment whenever none came for ``every_s`` seconds."""
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait([coming], timeout=every_s)
            if not done:
                yield PING
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            finally:
                coming = None
            yield event
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)
