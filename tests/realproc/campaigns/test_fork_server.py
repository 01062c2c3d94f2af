"""Forked engines are engines: they answer, can be killed, are seen to be gone, and end with their fork server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from molt.core.engine_protocol import EngineDied, EngineKind
from molt.errors import InputError
from molt.live.remote import ChildSpec
from molt.models.ladder_file import resolve
from realproc.campaigns.fork_server import ForkedEngine, ForkServer
from tests.realproc.waiting import until_gone

LADDER = resolve("pico").ladder


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer(ChildSpec("pico", threads=1).environment())
    yield made
    made.close()


def engine(fork_server: ForkServer, ladder: str = "pico") -> ForkedEngine:
    return ForkedEngine(ChildSpec(ladder, EngineKind.MODELLED, threads=1), LADDER, fork_server)


def test_a_forked_engine_answers_and_dies(fork_server: ForkServer) -> None:
    one = engine(fork_server)
    one.start()
    pid = one.pid
    assert pid is not None
    assert pid != os.getpid()
    one.load("tier0")
    assert one.weight_bytes("tier0") == LADDER.rung("tier0").weight_bytes
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="SIGKILL") as death:
        one.load("tier1")
    assert death.value.status == -signal.SIGKILL
    one.kill()
    one.start()
    assert one.pid not in (None, pid)
    assert one.weight_bytes("tier0") == 0
    last = one.pid
    one.kill()
    until_gone([last])


def test_a_refusal_is_that_of_the_engine(fork_server: ForkServer) -> None:
    one = engine(fork_server, "pick")
    with pytest.raises(InputError, match="pick"):
        one.start()
    one.kill()


def test_children_end_with_their_fork_server() -> None:
    fork_server = ForkServer(ChildSpec("pico", threads=1).environment())
    one = engine(fork_server)
    one.start()
    pid = one.pid
    fork_server.close()
    until_gone([pid])
    with pytest.raises(EngineDied):
        one.load("tier0")
    one.kill()
