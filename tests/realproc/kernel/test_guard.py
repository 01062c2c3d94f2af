"""Nothing of a run is left, however it ends; and none begins that could take the machine with it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.errors import InputError
from molt.units import MIB
from realproc.kernel.control_groups import ControlGroups
from realproc.kernel.guard import GIB, BreachError, Ceilings, Guard, default_ceilings, start_watchdog
from realproc.kernel.watchdog import Charge
from tests.realproc.waiting import until_gone

ROOT = Path(__file__).resolve().parents[3]


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_run_begins_only_within_its_ceilings(ceiling: int, keep: int, limit: int, available: int) -> None:
    ceilings = Ceilings(ceiling, keep)
    if limit <= ceiling and limit + keep <= available:
        ceilings.check(limit, available)
    else:
        with pytest.raises(InputError, match=r"^a run limited to [^\n]+$"):
            ceilings.check(limit, available)


def test_by_default_a_machine_keeps_more_than_the_threshold_of_other_killers() -> None:
    assert default_ceilings(24 * GIB) == Ceilings(12 * GIB, 3 * GIB)
    assert default_ceilings(4 * GIB) == Ceilings(2 * GIB, GIB)


def test_too_large_a_run_starts_nothing() -> None:
    before = psutil.Process().children()
    with pytest.raises(InputError, match="is over its ceiling"), Guard(2 * MIB, Ceilings(MIB, 0)):
        pass
    with pytest.raises(InputError, match="are available"), Guard(MIB, Ceilings(2**60, 2**60)):
        pass
    assert psutil.Process().children() == before


def test_without_a_group_no_watchdog_stays() -> None:
    nothing = ControlGroups("none", None, (), None, None, None)
    before = psutil.Process().children()
    with pytest.raises(InputError, match="no memory controller"), Guard(MIB, Ceilings(MIB, 0), nothing):
        pass
    assert psutil.Process().children() == before


def like_a_terminal() -> None:
    """Ctrl-C counts, also where these tests run in the background of a shell, which has its jobs ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(end: str) -> tuple[subprocess.Popen[bytes], dict[str, object]]:
    """A small run in a session of its own, as a terminal gives it, and where everything of it is."""
    small = subprocess.Popen(
        [sys.executable, "-m", "tests.realproc.small_run", end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=like_a_terminal,
    )
    assert small.stdout is not None
    facts = json.loads(small.stdout.readline())
    assert facts["held_bytes"] == 8 * MIB
    assert 8 * MIB <= facts["usage_bytes"] < 16 * MIB, "the blocks are counted, Python is not"
    return small, facts


@pytest.mark.parametrize("end", ["ctrl-c", "kill", "kill-all", "terminate", "raise", "abort"])
def test_nothing_is_left(real_groups: ControlGroups, end: str) -> None:
    """Ctrl-C goes to all processes of the terminal; ``kill-all`` kills all of those but the watchdog."""
    small, facts = run(end if end in ("raise", "abort") else "wait")
    match end:
        case "ctrl-c":
            os.killpg(small.pid, signal.SIGINT)
        case "kill":
            small.kill()
        case "kill-all":
            os.killpg(small.pid, signal.SIGKILL)
        case "terminate":
            small.terminate()
    small.wait()  # not for the end of its output, which a survivor would hold open
    assert small.stdout is not None
    small.stdout.close()
    assert small.returncode == {
        "ctrl-c": -signal.SIGINT,
        "terminate": -signal.SIGTERM,
        "raise": 1,
        "abort": -signal.SIGABRT,
    }.get(end, -signal.SIGKILL)
    until_gone(facts["pids"], Path(facts["folder"]))


def check_until_breach(guard: Guard) -> None:
    """Check as a supervisor does, again and again."""
    while True:
        guard.check()
        time.sleep(0.01)


def test_a_watchdog_that_was_killed_is_noticed(real_groups: ControlGroups) -> None:
    with Guard(MIB, Ceilings(MIB, 0)) as guard:
        guard.check()
        os.kill(guard.watchdog_pid, signal.SIGKILL)
        with pytest.raises(BreachError, match="has gone"):
            check_until_breach(guard)
    assert not guard.group.folder.exists()


def test_a_machine_with_too_little_left_ends_the_run(tmp_path: Path) -> None:
    """It must keep more than it has: the watchdog kills the child, says why, and goes on watching."""
    child = subprocess.Popen(["sleep", "600"])
    watchdog = start_watchdog(Charge(folders=(str(tmp_path / "gone"),), keep_free_bytes=2**60))
    assert watchdog.stdin is not None
    assert watchdog.stdout is not None
    watchdog.stdin.write(json.dumps({"child": child.pid}).encode() + b"\n")
    assert child.wait() == -signal.SIGKILL
    said = watchdog.stdout.readline()
    assert said.startswith(b"breach the machine had ")
    assert watchdog.poll() is None
    watchdog.communicate()
    assert watchdog.returncode == 0


class Unchecked(Ceilings):
    """Ceilings that let a run begin, so that it is stopped afterwards."""

    def check(self, limit_bytes: int, available_bytes: int) -> None:
        pass


def test_a_breach_reaches_the_supervisor(real_groups: ControlGroups) -> None:
    guard = Guard(MIB, Unchecked(MIB, 2**60))
    with (
        guard,
        pytest.raises(BreachError, match=r"^the machine had \S+ of memory left, less than the \S+ it must"),
    ):
        check_until_breach(guard)
    until_gone([guard.watchdog_pid], guard.group.folder)
