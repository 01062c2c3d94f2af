"""An engine in another process: as good as one in this one, and gone without harm however it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from molt.core import events as e
from molt.core.engine_protocol import Destination, Engine, EngineDied, EngineKind, Request, SwitchError
from molt.core.ladder import RouteKind
from molt.engine.modelled import ModelledEngine
from molt.errors import InputError, LadderError
from molt.jobs.plugins import make_policy
from molt.jobs.profile import load_profile
from molt.live import messages
from molt.live.child import answer
from molt.live.live_world import Decided
from molt.live.remote import ChildSpec, RemoteEngine, Timeouts
from molt.models.ladder_file import resolve
from tests.live.stage import GENEROUS_S, Life, finished, living, together, tokens
from tests.small import MIB

SPEC = resolve("pico")
COSTS = load_profile("pico", SPEC.ladder)
MOLT = make_policy("molt", {})
ROOT = Path(__file__).resolve().parent.parent.parent
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def request(prompt_tokens: int = 8, max_tokens: int = 20) -> Request:
    return Request((1,) * prompt_tokens, max_tokens, stop_at_eos=False, temperature=0.0, top_p=1.0, seed=1)


@pytest.fixture
def engine() -> Iterator[RemoteEngine]:
    remote = RemoteEngine(ChildSpec("pico", EngineKind.MODELLED))
    yield remote
    remote.kill()


def paced(pace: float, patience: Timeouts | None = None) -> RemoteEngine:
    return RemoteEngine(ChildSpec("pico", EngineKind.MODELLED, pace=pace), patience)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int) -> None:
    end_s = time.monotonic() + GENEROUS_S
    while not is_gone(pid):
        assert time.monotonic() < end_s, f"{pid} lives on"
        time.sleep(0.02)


def script(engine: Engine) -> list[object]:
    """What an engine says and holds through a life in which every call is made."""
    said: list[object] = []

    def note(result: object) -> None:
        rungs = [engine.weight_bytes(rung.name) for rung in SPEC.ladder.rungs]
        said.append((result, engine.cache_bytes("a"), rungs))

    top, low = SPEC.ladder.rungs[0].name, SPEC.ladder.rungs[1].name
    note(engine.load(top))
    note(engine.admit("a", request(), top, 27))
    note(engine.prefill("a", 7, 128))
    note(engine.decode("a", 3))
    note(engine.park("a"))
    note(engine.spill("a"))
    note(engine.grow("a", 10))
    note(engine.restore("a"))
    note(engine.load(low, 1))
    note(engine.settled_cells("a"))
    with pytest.raises(SwitchError) as refused:
        engine.switch("a", Destination(low, RouteKind.PROJECT, 2))
    note(str(refused.value))
    note(engine.switch("a", Destination(low, RouteKind.PROJECT, 27)))
    note(engine.release(top))
    note(engine.settled_cells("a"))
    note(engine.decode("a", 100, 4))
    note(engine.settled_cells("a"))
    note(engine.shed("a", 8, low))
    note(engine.shed("a", 0, top))
    note(engine.finish("a"))
    engine.kill()
    note(None)
    return said


def test_the_parent_needs_no_tensor_library() -> None:
    """Neither the live world nor the child with a modelled engine imports one."""
    program = (
        "import sys, molt.live.live_world, molt.live.remote, molt.live.child; "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_it_is_as_good_as_an_engine_in_this_process(engine: RemoteEngine) -> None:
    """Every call gives the same, and the same is held after it."""
    engine.start()
    assert script(engine) == script(ModelledEngine(SPEC.ladder))


def test_it_comes_up_again_cold(engine: RemoteEngine) -> None:
    """After ``kill`` nothing is held, and ``start`` brings up another process."""
    engine.start()
    engine.load("tier2")
    pid = engine.pid
    engine.kill()
    assert (engine.pid, engine.weight_bytes("tier2")) == (None, 0)
    engine.start()
    engine.start()
    assert engine.pid not in (pid, None)
    assert engine.load("tier2")


# --- children that do not do as they should ---


@dataclass(frozen=True, slots=True)
class Liar(ChildSpec):
    """Starts ``liar.py``."""

    how: str = ""

    def arguments(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("liar.py")), self.how]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}


def liar(how: str, patience: Timeouts) -> RemoteEngine:
    return RemoteEngine(Liar("pico", how=how), patience)


QUICK = Timeouts(start_s=GENEROUS_S, call_s=0.5)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("is silent", "it did not answer load in time: killed for it"),
        ("answers in part", "it did not answer load in time: killed for it"),
        ("ends", "it ended during load: exit status 3"),
        ("closes its pipe", "it ended during load: killed for it"),
        ("speaks another language", "its answer to load is none: .*: killed for it"),
        ("boasts", "its answer to load is none: a message of 2147483648 bytes: killed for it"),
        ("answers another call", "it answered call 2, not 1, load: killed for it"),
        ("leaves the result out", "its answer to load lacks the result: killed for it"),
        ("answers with words", "its answer to load is none: .*is_done.*: killed for it"),
        ("counts below nothing", "its answer to load is none: .*held_bytes.*: killed for it"),
        ("fails in its own way", "it answered load with InputError: no such rung: killed for it"),
        ("answers for another", "its answer to load lacks the result: killed for it"),
    ],
)
def test_a_child_that_does_not_keep_to_the_protocol_counts_as_dead(how: str, reason: str) -> None:
    """It is killed, the call says why, and so does every other until ``kill``; then it can be started again."""
    engine = liar(how, QUICK)
    try:
        engine.start()
        pid = engine.pid
        assert pid is not None
        with pytest.raises(EngineDied, match=f"^{reason}$"):
            engine.load("tier2")
        assert is_gone(pid)
        for _ in range(2):
            with pytest.raises(EngineDied, match=f"^{reason}$"):
                engine.check()
        with pytest.raises(EngineDied):
            engine.release("tier2")
        engine.finish("unknown")
        engine.kill()
        engine.start()
        assert engine.pid != pid
    finally:
        engine.kill()


def test_a_death_says_whether_the_engine_failed_at_a_tenant(engine: RemoteEngine) -> None:
    """It has, when it ends by itself during a call that is about a tenant; not, when it is killed."""
    engine.start()
    with pytest.raises(EngineDied, match="it ended during decode: exit status 1") as failed:
        engine.decode("unknown", 1)
    assert (failed.value.status, failed.value.tenant) == (1, "unknown")
    engine.kill()
    engine.start()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="killed by SIGKILL") as killed:
        engine.decode("chat", 1)
    assert (killed.value.status, killed.value.tenant) == (-signal.SIGKILL, None)


def test_who_does_not_come_up_is_told() -> None:
    """Not in time, or not at all; and a refusal is bad input."""
    for how, kind, reason in (
        ("does not greet", EngineDied, "it did not answer start in time: killed for it"),
        ("ends at once", EngineDied, "it ended during start: exit status 3"),
        ("refuses", InputError, "no such thing"),
    ):
        engine = liar(how, Timeouts(start_s=2.0 if how == "does not greet" else GENEROUS_S))
        with pytest.raises(kind, match=f"^{reason}$"):
            engine.start()
        engine.kill()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (ChildSpec("pcio", "modelled"), "ladder: no ladder is named 'pcio'"),
        (ChildSpec("pico", EngineKind.MODELLED, group=Path("/nonexistent/group")), "cannot be moved into it"),
        (ChildSpec("pico", EngineKind.MODELLED, profile="pcio", pace=1.0), "no such profile"),
        (ChildSpec("pico", weights="mapped"), "is to be mapped, but no image of it"),
        (ChildSpec("pico", device="cude"), "'cude' is no device; did you mean 'cuda'"),
    ],
    ids=["ladder", "group", "profile", "weights", "device"],
)
def test_what_cannot_be_started_is_bad_input(
    spec: ChildSpec, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, from the child to the user; nothing is left."""
    monkeypatch.setenv("MOLT_CACHE", str(tmp_path))
    engine = RemoteEngine(spec)
    with pytest.raises(InputError, match=reason):
        engine.start()
    engine.kill()
    assert engine.pid is None


def test_weights_that_cannot_be_used_are_a_load_that_fails() -> None:
    """Which is no reason to end: there are other rungs."""

    class Damaged(ModelledEngine):
        def load(self, rung: str, within_ns: int | None = None) -> bool:
            raise LadderError("weights: truncated")

    reply = answer(Damaged(SPEC.ladder), 1, messages.LoadCall("tier2", 50_000_000))
    assert (reply.failure, reply.reason, reply.held_bytes) == ("LoadError", "weights: truncated", 0)


def test_a_full_pipe_keeps_no_caller_waiting() -> None:
    """A child that takes nothing in is dead in time, however much there is to say."""
    engine = RemoteEngine(ChildSpec("pico", EngineKind.MODELLED), QUICK)
    try:
        engine.start()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineDied, match="did not answer admit in time"):
            engine.admit("a", request(prompt_tokens=500_000), "tier2", 10)
    finally:
        engine.kill()


def test_there_may_be_a_hurry(engine: RemoteEngine) -> None:
    """A caller that cannot wait any longer says so, and the call under way ends."""
    engine.start()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    engine.hurry(0.1)
    with pytest.raises(EngineDied, match="did not answer load in time"):
        engine.load("tier2")


# --- where it lives ---


@LINUX
def test_it_enters_its_group_before_anything_else(tmp_path: Path) -> None:
    """The folder's ``cgroup.procs`` is written, by a process that has not imported a tensor library."""
    (tmp_path / "cgroup.procs").touch()
    engine = RemoteEngine(ChildSpec("pico", EngineKind.MODELLED, group=tmp_path))
    engine.start()
    engine.kill()
    assert (tmp_path / "cgroup.procs").read_text() == "0"


@LINUX
def test_its_environment_gives_memory_back(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """malloc and OpenMP are configured, unless the user has configured them already."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    engine.start()
    environment = psutil.Process(engine.pid).environ()
    assert environment["MALLOC_ARENA_MAX"] == "7"
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "131072"


def test_the_interrupt_of_a_terminal_is_not_for_it(engine: RemoteEngine) -> None:
    """It is in a process group of its own, and would ignore it even so."""
    engine.start()
    assert engine.pid is not None
    assert os.getpgid(engine.pid) != os.getpgid(0)
    os.kill(engine.pid, signal.SIGINT)
    assert engine.load("tier2")


@LINUX
@pytest.mark.parametrize("stopped", [False, True], ids=["at rest", "stopped"])
def test_it_dies_with_its_parent(stopped: bool) -> None:
    """Even if the parent is killed, and the child takes nothing in."""
    parent = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("parent.py"))],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_gone(pid)


# --- in a world ---


def live(engine: RemoteEngine, path: Path):  # type: ignore[no-untyped-def]
    return living(MOLT, SPEC.ladder, COSTS, engine, path, budget_bytes=60 * MIB)


def ask(life: Life, tenant: str, **sizes: int) -> None:
    life.world.ask(tenant, e.TenantKind.FOREGROUND, request(**sizes))


def check_that_all_was_told(life: Life) -> None:
    """Besides the kill, nothing is wrong; and the log says how the processes came and went."""
    assert {violation["invariant"] for violation in life.world.violations} <= {"process_is_alive"}


def test_a_killed_engine_is_a_fact_and_answers_begin_anew(tmp_path: Path) -> None:
    """kill -9 in the middle of two answers: both are complete in the end, as attempt 2."""
    engine = paced(0.2)
    with live(engine, tmp_path / "log") as life:
        ask(life, "a", max_tokens=60)
        ask(life, "b", max_tokens=60)
        life.until(together(tokens("a", 5), tokens("b", 5)))
        first = engine.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        life.until(finished("a", "b"))
        assert engine.pid != first
    assert len(life.of(e.ProcessKilled)) == len(life.of(e.ProcessStarted)) == 1
    assert len(life.pieces("a", 2)) == len(life.pieces("b", 2)) == 60
    processes = life.records("engine")
    assert [r["what"] for r in processes] == ["started", "ended", "started"]
    assert (processes[1]["status"], processes[0]["pid"]) == (-signal.SIGKILL, first)
    assert processes[1]["reason"].endswith("killed by SIGKILL")
    check_that_all_was_told(life)


def test_a_kill_between_two_answers_is_noticed(tmp_path: Path) -> None:
    """An idle engine's death is reported, too, and the next answer is served by another one."""
    engine = paced(0.05)
    with live(engine, tmp_path / "log") as life:
        ask(life, "a", max_tokens=3)
        life.until(finished("a"))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        life.until(lambda now: now.of(e.ProcessStarted))
        ask(life, "b", max_tokens=3)
        life.until(finished("b"))
    assert life.records("engine")[1]["reason"] == "it ended between two calls: killed by SIGKILL"
    assert [one.attempt for one in life.of(e.TenantArrived)] == [1, 1]


def test_an_engine_that_hangs_is_replaced(tmp_path: Path) -> None:
    """It is stopped, does not answer in time, is killed, and its answer begins anew."""
    engine = paced(0.2, Timeouts(start_s=GENEROUS_S, call_s=1.0))
    with live(engine, tmp_path / "log") as life:
        ask(life, "a", max_tokens=30)
        life.until(tokens("a", 5))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        life.until(finished("a"))
    assert len(life.pieces("a", 2)) == 30
    assert "did not answer decode in time" in life.records("engine")[1]["reason"]
    check_that_all_was_told(life)


def test_a_load_is_abandoned_in_the_middle(tmp_path: Path) -> None:
    """The budget falls a second time while a rung is brought in: it never gets there, a smaller one does."""
    engine = paced(50.0)
    with live(engine, tmp_path / "log") as life:
        ask(life, "a", max_tokens=3)
        life.until(lambda now: "Load" in [type(one.decision).__name__ for one in now.of(Decided)])
        life.world.budget(9 * MIB)
        life.until(lambda now: now.of(e.RungReleased))
        assert life.of(e.RungLoaded) == []
        life.until(finished("a"))
    assert "tier0" not in {one.rung for one in life.of(e.RungLoaded)}
    assert life.world.violations == []


def test_it_stops_in_the_middle_of_a_load(tmp_path: Path) -> None:
    """``run`` returns, the log has its end, and the child is gone."""
    engine = paced(100_000.0)
    with live(engine, tmp_path / "log") as life:
        ask(life, "a")
        life.until(lambda now: now.of(Decided))
        pid = engine.pid
        assert pid is not None
    assert is_gone(pid)
    assert life.failure is None
    assert life.records("end")[0]["reason"] == "the test is over"


def test_it_stops_although_the_engine_hangs(tmp_path: Path) -> None:
    """The step under way gets a little time; then the engine is killed, which is no kill of the answer's."""
    engine = paced(0.2)
    with live(engine, tmp_path / "log") as life:
        ask(life, "a")
        life.until(tokens("a", 2))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        seen = -1
        while seen != len(life.observed):
            seen = len(life.observed)
            time.sleep(0.5)
    assert life.failure is None
    assert [r["what"] for r in life.records("engine")] == ["started", "ended"]
    assert life.of(e.ProcessKilled) == []
    assert life.records("end")[0]["reason"] == "the test is over"


def test_it_stops_before_there_is_an_engine(tmp_path: Path) -> None:
    """One that does not come up in time is no failure of a world that is to stop."""
    engine = liar("does not greet", Timeouts())
    with live(engine, tmp_path / "log") as life:
        pass
    assert life.failure is None
    assert life.records("end")[0]["reason"] == "the test is over"


def test_a_world_without_an_engine_says_so(tmp_path: Path) -> None:
    """What the child refuses comes out of ``run``."""
    engine = RemoteEngine(ChildSpec("pcio", "modelled"))
    with live(engine, tmp_path / "log") as life, pytest.raises(AssertionError, match="no ladder is named"):
        life.until(lambda now: False)
    assert isinstance(life.failure, InputError)
