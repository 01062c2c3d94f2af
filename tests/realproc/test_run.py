"""A scenario with real processes, from the command to the tables: with a group that kills, and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from molt.core.engine_protocol import EngineKind
from molt.core.turns import SLICE_NS_MAX
from molt.errors import InputError
from molt.formats import log
from realproc.kernel.control_groups import ControlGroups
from realproc.supervisor import real_run as r
from realproc.supervisor.growth import WATCH_INTERVAL_NS
from realproc.supervisor.headroom import QUANTUM_BYTES
from realproc.supervisor.step_times import StepTimes
from reports import agreement
from reports.schema import read_summary
from sim.run import prepare, simulate

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = """
name: short
ladder: pico
horizon: 4s
seed: 7
trace:
  steps:
    - {at: 0s, budget: 190% of tier0}
    - {at: 1500ms, budget: 12MiB}
    - {at: 3s, budget: 190% of tier0}
policies: [hold, molt]
tenants:
  - name: chat
    kind: foreground
    arrives: 0s
    prompt: {text: Once upon a time there was a small house}
    max_tokens: 1500
    stop: never
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "short.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Done:
    """A command that was run."""

    pid: int
    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Done:
    running = subprocess.Popen(
        [sys.executable, "-m", "realproc.run", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    said, complained = running.communicate(timeout=280)
    return Done(running.pid, running.returncode, said, complained)


def records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    _, found = log.read(folder / "events.jsonl")
    return [record for record in found if record["kind"] in kinds]


def test_a_process_that_holds_is_killed_by_the_kernel(real_groups: ControlGroups, scenario: Path) -> None:
    """The engine is started again, and the kernel's counts are in the summary. No group is left."""
    out = scenario.parent / "out"
    done = command(str(scenario), "--policy", "hold", "--rate", "max", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "engine" in next(line for line in done.stdout.splitlines() if line.startswith("victims"))
    numbers = read_summary(out / "summary.json").policies["hold"]
    assert numbers.killed >= 1
    assert numbers.log_complete
    assert numbers.real is not None
    assert numbers.real.kernel_kills is not None
    assert numbers.real.kernel_kills >= 1
    assert numbers.real.victims
    ends = [record for record in records(out / "hold", "engine") if record["what"] == "ended"]
    assert ends[0]["status"] == -9
    limits = {record["limit_bytes"] for record in records(out / "hold", "kernel")}
    assert len(limits) == 1
    folders = [Path(folder) for folder in real_groups.memory_folders]
    assert not any(group for folder in folders for group in folder.glob(f"molt-run-{done.pid}-*"))


def test_without_a_group_it_reacts_to_a_declared_budget(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulator can replay the same budgets, and is compared with it."""
    out, simulated = scenario.parent / "out", scenario.parent / "simulated"
    done = command(str(scenario), "--policy", "molt", "--no-cgroup", "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)["policies"]["molt"]
    assert numbers["killed"] == 0
    assert numbers["real"]["kernel_kills"] is None
    assert numbers["real"]["release_ms"]["n"] >= 1
    reported = [record["budget_bytes"] for record in records(out / "molt", "signal")]
    assert min(reported) < 12 * 2**20 + QUANTUM_BYTES, "all but what is too little to be reported"
    assert max(record["taken_bytes"] for record in records(out / "molt", "pressure")) >= 39 * 2**20

    simulate(prepare(scenario, policies=["molt"], engine=EngineKind.MODELLED, memory_of=out), simulated)
    real, replayed = (
        [r["budget_bytes"] for r in records(one / "molt", "event") if r["type"] == "BudgetChanged"]
        for one in (out, simulated)
    )
    assert replayed == real[: len(replayed)]
    assert len(replayed) >= len(real) - 1, "but for a budget at the very end"
    assert agreement.main([str(simulated), str(out)]) == 0
    assert "met the memory of its real run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--signal", "poll-5ms"), "--signal: 'poll-5ms' is not known; did you mean 'poll-10ms'?"),
        (("--rate", "0MiB"), "--rate: '0MiB': rate must be positive"),
        (("--rate", "fast"), "--rate: 'fast'"),
        (("--margin", "4"), "--margin: '4'"),
        (("--slowdown", "0.5"), "slowdown: 0.5: must be at least 1"),
        (("--policy", "mold"), "'mold' is not known"),
    ],
)
def test_impossible_options_are_refused_in_a_line(
    scenario: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = command(str(scenario), *arguments, "--out", str(scenario.parent / "out"))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (scenario.parent / "out").exists()


def test_where_no_group_can_be_had(monkeypatch: pytest.MonkeyPatch, scenario: Path) -> None:
    """One line says so, and what to do; nothing was started."""
    nothing = ControlGroups("none", None, (), None, None, None)
    monkeypatch.setattr("realproc.supervisor.confinement.read_groups", lambda: nothing)
    run = r.job.prepare(scenario, policies=["hold"])
    (contender,) = r.contenders(run, mapped=False)
    with pytest.raises(InputError, match=r"no memory controller is mounted; `molt doctor`.*--no-cgroup"):
        r.run_contender(run, contender, r.Setting(), scenario.parent)


def test_hold_is_there_a_second_time_on_mapped_weights(scenario: Path) -> None:
    run = r.job.prepare(scenario)
    assert [c.name for c in r.contenders(run, mapped=True)] == ["hold", r.MAPPED, "molt"]
    mapped = r.contenders(run, mapped=True)[1]
    assert all(rung.mapped for rung in r.ladder_of(run, mapped).rungs)
    assert [c.name for c in r.contenders(run, mapped=False)] == ["hold", "molt"]
    assert r.log_header(run, mapped, r.Setting())["policy"]["name"] == r.MAPPED


def test_the_margin_is_a_share_where_budgets_are_large() -> None:
    assert r.Setting().margin_of(52 * 2**20) == 4 * 2**20
    assert r.Setting().margin_of(8500 * 2**20) == 85 * 2**20
    assert r.Setting(margin_bytes=7).margin_of(2**40) == 7


def test_a_reported_budget_must_hold_until_the_world_can_take_the_next(scenario: Path) -> None:
    """A look of 10 ms and the releases count once; boundary and stretch of a switch count twice, the stretch as much
    longer as tokens take longer than in the profile."""
    run, step_times = r.job.prepare(scenario), StepTimes(1)
    reaction_ns = r.reaction_time(run, step_times)
    fixed_ns = WATCH_INTERVAL_NS + sum(costs.release_ns for costs in run.costs.rungs.values())
    boundary_ns, slower = 7 * 10**6, 1.0
    step_times.boundary_ns = lambda: boundary_ns  # type: ignore[method-assign]
    step_times.slower = lambda token_ns: slower  # type: ignore[method-assign]
    stretches_ns = reaction_ns() - fixed_ns - 2 * boundary_ns
    assert 0 < stretches_ns <= 2 * SLICE_NS_MAX
    boundary_ns *= 3
    assert reaction_ns() == fixed_ns + 2 * boundary_ns + stretches_ns
    slower = 2.5
    assert reaction_ns() == pytest.approx(fixed_ns + 2 * boundary_ns + 2.5 * stretches_ns, abs=2)
