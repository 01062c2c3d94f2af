"""A slower device does the same and takes longer; warming up uses every rung and leaves nothing."""

from __future__ import annotations

import os

import pytest

from molt.core.engine_protocol import Destination
from molt.engine.modelled import ModelledEngine
from molt.live.messages import Reply
from molt.live.remote import ChildSpec, RemoteEngine
from realproc.supervisor import engine_process as r
from tests.small import LADDER


def test_warming_up_uses_every_rung_and_leaves_nothing() -> None:
    used: list[str] = []
    most = 0

    class Watched(ModelledEngine):
        def load(self, rung: str, within_ns: int | None = None) -> bool:
            nonlocal most
            used.append(rung)
            is_done = super().load(rung, within_ns)
            most = max(most, sum(self.weight_bytes(one.name) for one in LADDER.rungs))
            return is_done

        def switch(self, tenant: str, way: Destination, within_ns: int | None = None) -> None:
            used.append(f"to {way.dest}")
            super().switch(tenant, way, within_ns)

    watched = Watched(LADDER)
    r.warm_up(watched, LADDER)
    names = [rung.name for rung in LADDER.rungs]
    assert set(names) | {f"to {name}" for name in names[1:]} == set(used)
    assert [watched.weight_bytes(name) for name in names] == [0] * len(names)
    assert watched.cache_bytes("warm-up") == 0
    assert most == max(rung.weight_bytes for rung in LADDER.rungs), (
        "where one rung fits, it must come up again"
    )
    assert r.warm_up_budget(LADDER) > most


def test_a_slower_device_waits_for_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times slower: twice the time that was computed goes by on top, however long the call took."""
    computed, slept = iter((1_000_000, 5_000_000)), []
    monkeypatch.setattr(r, "computed_ns", lambda pid: next(computed))
    monkeypatch.setattr(r.time, "sleep", slept.append)
    monkeypatch.setattr(RemoteEngine, "_call", lambda self, call: Reply(1, is_done=True))
    slow = r.SlowedEngine(ChildSpec("pico", engine="modelled"), slowdown=3.0)
    assert slow.load("tier0", within_ns=30)
    assert slept == [0.008]


def test_what_a_process_has_computed_grows() -> None:
    before = r.computed_ns(os.getpid())
    sum(range(10**6))
    assert r.computed_ns(os.getpid()) > before
