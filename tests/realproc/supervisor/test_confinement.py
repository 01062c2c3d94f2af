"""Where the processes of a run live: the limit that is set, the counters, and which process the kernel kills first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from molt.core.engine_protocol import EngineDied, LoadError, SwitchError
from molt.errors import InputError
from molt.live.remote import ChildSpec, RemoteEngine, Timeouts
from molt.units import MIB
from realproc.kernel import limited_group
from realproc.kernel.control_groups import ControlGroups
from realproc.kernel.guard import BreachError, Ceilings, Guard
from realproc.kernel.limited_group import MemoryGroup
from realproc.supervisor.confinement import OOM_SCORE, DeclaredConfinement, GroupConfinement, confine
from realproc.supervisor.growth import WATCH_INTERVAL_NS
from realproc.supervisor.headroom import Share, anonymous_bytes
from realproc.supervisor.real_run import start_errors
from tests.realproc.conftest import Fake
from tests.realproc.waiting import until_gone

HELD_BYTES = 14_000 - 7_500
SHARE = Share(limit_bytes=100 * MIB, base_bytes=20 * MIB, margin_bytes=4 * MIB)


class Mute(ChildSpec):
    """An engine process that says nothing."""

    def arguments(self) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]


class Watched:
    """A guard that only records its children."""

    def __init__(self, group: MemoryGroup) -> None:
        self.group = group
        self.children: list[int] = []

    def child(self, pid: int) -> None:
        self.children.append(pid)

    def check(self) -> None:
        raise BreachError("made up")


def limited(groups: ControlGroups, nice: int | None = None) -> tuple[GroupConfinement, Watched]:
    guard = Watched(limited_group.make(groups, "run", 64 * MIB))
    return GroupConfinement(cast(Guard, guard), nice), guard


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_limit_leaves_what_was_asked_for(fake: Fake, version: str) -> None:
    """Beside what the engine holds at rest, which stays its base when another limit is set."""
    confinement, guard = limited(fake(version))
    share = confinement.set_limit(50 * MIB, 4 * MIB, os.getpid())
    assert share == Share(HELD_BYTES + 54 * MIB, HELD_BYTES, 4 * MIB)
    assert guard.group.limit_bytes == share.limit_bytes
    assert share.budget_bytes(0) == 50 * MIB
    larger = confinement.resize(share, 80 * MIB)
    assert larger == replace(share, limit_bytes=HELD_BYTES + 84 * MIB)
    assert guard.group.limit_bytes == larger.limit_bytes


def test_what_the_kernel_counts_has_the_names_of_the_log(fake: Fake) -> None:
    """A counter that the kernel does not have is left out."""
    confinement, guard = limited(fake("v2"))
    counted = confinement.counters()
    assert counted.pop("stall_ns", 0) >= 0
    assert counted == {"usage_bytes": 14_000, "kills": 2, "limit_hits": 7, "peak_bytes": 20_000}
    (guard.group.folder / "memory.peak").unlink()
    assert "peak_bytes" not in confinement.counters()


def test_the_peak_begins_anew(fake: Fake) -> None:
    confinement, guard = limited(fake("v1"))
    confinement.reset_peak()
    assert (guard.group.folder / "memory.max_usage_in_bytes").read_text() == "0"


def test_a_threshold_is_where_fast_growth_is_met_in_time(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1 GiB/s, 20 ms of reaction and 10 ms between two looks take 31 MiB; never is it below what is held at rest."""
    wakes: list[str] = []
    monkeypatch.setattr(
        limited_group.GroupV1, "_event", lambda self, file, *arguments: wakes.append(arguments[0]) or 0
    )
    monkeypatch.setattr(os, "close", lambda descriptor: None)
    confinement, _ = limited(fake("v1"))
    confinement.watch("threshold", SHARE, 2 * WATCH_INTERVAL_NS)
    confinement.watch("threshold", SHARE, 100 * WATCH_INTERVAL_NS)
    near, far = map(int, wakes)
    assert near == SHARE.line_bytes - 1024 * MIB * 3 * WATCH_INTERVAL_NS // 10**9
    assert far == SHARE.base_bytes


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="needs /proc")
def test_the_engine_is_the_first_to_be_taken(fake: Fake, sleeper: int) -> None:
    confinement, guard = limited(fake("v1"), nice=7)
    confinement.adopt_engine(sleeper)
    assert int(Path(f"/proc/{sleeper}/oom_score_adj").read_text()) == OOM_SCORE
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 7
    assert guard.children == [sleeper]
    confinement.adopt_engine(2**22 + 1)  # it has gone already: no error


def test_a_breach_comes_from_the_guard(fake: Fake) -> None:
    with pytest.raises(BreachError, match="made up"):
        limited(fake("v1"))[0].check()


def test_without_a_group_the_budget_is_what_the_allocator_leaves() -> None:
    with confine(
        limited=False, budget_bytes=2**60
    ) as confinement:  # nothing is refused where nothing is limited
        assert isinstance(confinement, DeclaredConfinement)
        share = confinement.set_limit(50 * MIB, 4 * MIB, os.getpid())
        assert share.budget_bytes(0) == 50 * MIB
        assert confinement.resize(share, 80 * MIB).budget_bytes(0) == 80 * MIB
        assert confinement.standing(None, 30 * MIB).others_bytes == 30 * MIB
        standing = confinement.standing(os.getpid(), 30 * MIB)
        assert standing.others_bytes == 30 * MIB
        assert standing.own_bytes == pytest.approx(anonymous_bytes(os.getpid()), abs=8 * MIB)
        assert (confinement.folder, confinement.counters()) == (None, {})
        confinement.adopt_engine(os.getpid())
        confinement.check()


def test_a_refusal_names_the_option_without_a_group(fake: Fake) -> None:
    with (
        pytest.raises(InputError, match=r"would not leave .* free.*--no-cgroup"),
        confine(limited=True, budget_bytes=0, ceilings=Ceilings(2**60, 2**60), groups=fake("v1")),
    ):
        pytest.fail("it began")


@pytest.mark.parametrize(("kills", "hint"), [(2, "its group was at its limit"), (0, "molt ladders fetch")])
def test_a_limit_below_what_an_interpreter_needs(fake: Fake, kills: int, hint: str) -> None:
    """The kernel kills the engine while it starts: one line says so, with what to do about it."""
    confinement, guard = limited(fake("v1"))
    (guard.group.folder / "memory.oom_control").write_text(f"oom_kill {kills}\n", encoding="ascii")
    with (
        pytest.raises(InputError, match=f"does not come up: killed by SIGKILL.*{hint}") as said,
        start_errors(confinement),
    ):
        raise EngineDied("killed by SIGKILL", -9)
    assert "\n" not in str(said.value)


def test_an_engine_that_does_not_answer_while_it_comes_up() -> None:
    """It is given up with one line, and its process is gone."""
    engine = RemoteEngine(Mute("pico"), Timeouts(start_s=0.2))
    with (
        pytest.raises(InputError, match="does not come up: it did not answer start in time"),
        start_errors(DeclaredConfinement()),
    ):
        engine.start()
    assert engine.pid is not None
    until_gone([engine.pid])
    engine.kill()


@pytest.mark.parametrize("refusal", [SwitchError("a.safetensors: altered"), LoadError("tier0: torn")])
def test_a_rung_or_map_that_cannot_be_used_is_refused_in_a_line(refusal: Exception) -> None:
    with (
        pytest.raises(InputError, match=f"the engine cannot be warmed up: {refusal}"),
        start_errors(DeclaredConfinement()),
    ):
        raise refusal
