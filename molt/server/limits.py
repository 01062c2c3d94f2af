"""Every limit of the server: what a client may cost at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds.

    ``answers`` counts answers under way and waiting; further requests are refused with 503. ``backlog``: records that
    the client of an answer, or an observer of the events, may leave unread.
    """

    body_bytes: int = 1 << 20
    body_s: float = 30.0
    header_bytes: int = 16 << 10
    header_s: float = 10.0
    idle_s: float = 60.0
    send_buffer_bytes: int = 64 << 10
    stalled_reader_s: float = 10.0
    connections: int = 1000
    owner_connections: int = 32  # at the admin socket, beside those
    answers: int = 32
    answer_tokens: int = 256  # of a request without a limit of its own
    answer_s: float = 600.0
    ping_s: float = 15.0  # a stream that is silent for so long sends a comment
    backlog: int = 4096
    observers: int = 16
    owner_observers: int = 4  # at the admin socket, beside those
    retry_after_s: int = 2
    drain_s: float = 2.5  # from the first signal until connections are cut
    stop_s: float = 4.5  # from the first signal until the process ends without the world
