"""The main command from end to end, as a user runs it: scenarios, engines, determinism, refusals, exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from molt.errors import LadderError
from molt.formats import log
from molt.jobs.replay import replay
from molt.models.ladder_file import resolve
from sim.run import EngineKind, prepare, simulate

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "scenarios"
SHIPPED = sorted(path.name for path in SCENARIOS.glob("*.yaml"))


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the main command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sim.run", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, **environment},
    )


def logs(folder: Path) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Header and records of every policy of a run."""
    return {path.parent.name: log.read(path) for path in sorted(folder.glob("*/events.jsonl"))}


def of(records: list[dict[str, Any]], *types: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get("type") in types or record["kind"] in types]


def test_the_shipped_scenarios_are_these() -> None:
    assert {
        "below_floor.yaml",
        "no_pressure.yaml",
        "sawtooth.yaml",
        "spike_mid_answer.yaml",
        "three_tenants.yaml",
    } <= set(SHIPPED)


@pytest.mark.parametrize("name", ["spike", "ramp", "rivals"])
def test_a_recording_is_replayed(name: str, tmp_path: Path) -> None:
    """Memory as it really went away: who holds is killed by it, molt is not and finishes."""
    path = SCENARIOS / "recorded" / f"{name}.yaml"
    job = prepare(path, policies=["hold", "molt"], engine=EngineKind.MODELLED)
    assert len(job.scenario.budgets) > 350
    outcome = simulate(job, tmp_path / "out")
    records = {policy: records for policy, (_, records) in logs(tmp_path / "out").items()}
    assert of(records["hold"], "ProcessKilled")
    assert not of(records["molt"], "ProcessKilled")
    assert len(of(records["molt"], "TenantFinished")) == 2
    assert outcome.violations == []


@pytest.mark.parametrize("name", ["spike_mid_answer", "three_tenants"])
def test_the_scenarios_of_the_published_models_run(name: str, tmp_path: Path) -> None:
    """Costs only; with real steps they take minutes and gigabytes."""
    try:
        job = prepare(
            SCENARIOS / "qwen" / f"{name}.yaml", policies=["hold", "molt"], engine=EngineKind.MODELLED
        )
    except LadderError as missing:
        pytest.skip(f"needs the weights of qwen2.5-coder: {missing}")
    outcome = simulate(job, tmp_path / "out")
    hold, molt = (log.read(tmp_path / "out" / policy / "events.jsonl")[1] for policy in ("hold", "molt"))
    assert outcome.violations == []
    assert of(hold, "ProcessKilled")
    assert not of(molt, "ProcessKilled")
    assert {record["rung"] for record in of(molt, "TokensProduced")} == {"tier0", "tier1", "tier2"}


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = command(str(SCENARIOS / "no_pressure.yaml"), "--device", "tpu", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "molt: --device: 'tpu' is no device; did you mean 'cpu'?\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module", params=SHIPPED)
def modelled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Every shipped scenario under every built-in policy, modelled."""
    out = tmp_path_factory.mktemp("modelled")
    names = ("hold", "always_small", "per_request", "restart", "molt")
    outcome = simulate(prepare(SCENARIOS / request.param, policies=names, engine=EngineKind.MODELLED), out)
    assert outcome.violations == []
    return request.param, out


def test_every_log_replays_identically(modelled: tuple[str, Path]) -> None:
    for path in modelled[1].glob("*/events.jsonl"):
        assert replay(path).difference is None


def test_molt_and_restart_lose_nothing_and_stay_within_the_budget(modelled: tuple[str, Path]) -> None:
    for policy in ("molt", "restart"):
        _, records = logs(modelled[1])[policy]
        rounds = [r for r in of(records, "memory") if r["round"]]
        assert of(records, "ProcessKilled", "refusal") == []
        assert max(r["usage_bytes"] - r["budget_bytes"] for r in rounds) <= 0


def test_hold_dies_wherever_there_is_pressure(modelled: tuple[str, Path]) -> None:
    """The control of every scenario: with a fall of the budget hold is killed, without one it is not."""
    name, out = modelled
    killed = bool(of(logs(out)["hold"][1], "ProcessKilled"))
    assert killed == (name not in {"no_pressure.yaml", "below_floor.yaml"})


def test_below_the_floor_nothing_runs_and_nothing_dies(tmp_path: Path) -> None:
    done = command(
        str(SCENARIOS / "below_floor.yaml"), "--engine", "modelled", "--out", "out", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for numbers in json.loads(done.stdout)["policies"].values():
        assert numbers["tokens_out"] == numbers["killed"] == 0
    assert "nothing" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8").lower()


def test_without_pressure_molt_is_hold(tmp_path: Path) -> None:
    """Same tokens at the same times."""
    simulate(
        prepare(SCENARIOS / "no_pressure.yaml", policies=("hold", "molt"), engine=EngineKind.MODELLED),
        tmp_path,
    )
    produced = {
        policy: [(r["tenant"], r["rung"], r["stamps_ns"]) for r in of(records, "TokensProduced")]
        for policy, (_, records) in logs(tmp_path).items()
    }
    assert produced["hold"] == produced["molt"] != []


def test_three_tenants_uses_every_rung_and_pulls_every_lever(tmp_path: Path) -> None:
    simulate(
        prepare(SCENARIOS / "three_tenants.yaml", policies=("molt",), engine=EngineKind.MODELLED), tmp_path
    )
    _, records = logs(tmp_path)["molt"]
    assert {r["rung"] for r in of(records, "TokensProduced")} == {
        rung.name for rung in resolve("pico").ladder.rungs
    }
    for lever in ("Defer", "Demote", "Park", "Spill", "Unpark", "Promote"):
        assert of(records, lever), f"{lever} was never used"
    assert len(of(records, "TenantFinished")) == 3
    assert of(records, "TokensProduced")[-1]["rung"] == "tier0"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spike with real model steps, by the command itself."""
    folder = tmp_path_factory.mktemp("real")
    done = command(
        str(SCENARIOS / "spike_mid_answer.yaml"),
        "--policy",
        "restart",
        "--policy",
        "molt",
        "--out",
        "out",
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_real_and_modelled_engines_decide_the_same(real: Path, tmp_path: Path) -> None:
    """Everything but the texts and the measured quality is identical."""
    names = ("restart", "molt")
    simulate(
        prepare(SCENARIOS / "spike_mid_answer.yaml", policies=names, engine=EngineKind.MODELLED), tmp_path
    )
    for policy, (_, modelled_records) in logs(tmp_path).items():
        real_records = logs(real)[policy][1]
        assert [_without_text(r) for r in real_records] == [_without_text(r) for r in modelled_records]


def _without_text(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in {"pieces", "handoff"}}


def test_real_runs_are_byte_identical_too(real: Path, tmp_path: Path) -> None:
    """The same tokens, texts and measured qualities, in another process with another PYTHONHASHSEED."""
    arguments = (str(SCENARIOS / "spike_mid_answer.yaml"), "--policy", "molt", "--out", "again")
    assert command(*arguments, cwd=tmp_path, PYTHONHASHSEED="7").returncode == 0
    first, again = (
        (folder / "molt" / "events.jsonl").read_bytes().split(b"\n", 1)[1]
        for folder in (real, tmp_path / "again")
    )
    assert first == again


def test_real_switches_are_measured(real: Path) -> None:
    summary = json.loads((real / "summary.json").read_text(encoding="utf-8"))
    handoff = summary["policies"]["molt"]["handoff"]
    assert handoff["n"] >= 2
    assert handoff["kl"] >= 0
    assert handoff["recovered_context"] > 0.5


def test_molt_stalls_less_than_restart(real: Path) -> None:
    """Point of it all: the worst gap between two tokens is well below that of reading the prompt again."""
    policies = json.loads((real / "summary.json").read_text(encoding="utf-8"))["policies"]
    assert policies["molt"]["stall_ms_max"] < 0.6 * policies["restart"]["stall_ms_max"]
    assert policies["molt"]["killed"] == policies["molt"]["answers_lost"] == 0


def test_the_wall_clock_in_place_of_the_profile(tmp_path: Path) -> None:
    """``--clock measured``: other times, the same guarantees, and no switch is charged for its own judging."""
    text = (SCENARIOS / "spike_mid_answer.yaml").read_text(encoding="utf-8")
    patient = text.replace("kill_after: 500ms", "kill_after: 30s")  # however busy this machine is
    (tmp_path / "patient.yaml").write_text(patient, encoding="utf-8")
    (tmp_path / "prompts").symlink_to(SCENARIOS / "prompts")
    arguments = ("patient.yaml", "--policy", "molt", "--clock", "measured")
    done = command(*arguments, "--out", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)["policies"]["molt"]
    assert numbers["killed"] == 0
    assert numbers["tokens_out"] > 0
    assert numbers["overshoot_bytes_max"] <= 0
    assert numbers["handoff"]["n"] == 0


def test_the_text_of_a_real_run_is_whole(real: Path) -> None:
    _, records = logs(real)["molt"]
    text = "".join(piece for r in of(records, "TokensProduced") for piece in r["pieces"])
    assert text.strip()
    assert text in _unmarked((real / "molt" / "chat.txt").read_text(encoding="utf-8"), text)


def _unmarked(marked: str, text: str) -> str:
    """The file of an answer holds its text, cut by marks in brackets; give the text back if it is all there."""
    position = 0
    for char in text:
        position = marked.find(char, position) + 1
        if position == 0:
            return ""
    return text


def test_two_runs_are_byte_identical_whatever_the_hash_seed(tmp_path: Path) -> None:
    """Same scenario and seed, other PYTHONHASHSEED: every byte after the headers is the same; another seed differs
    only with the real engine."""
    contents = []
    for seed in ("0", "1"):
        out = f"out{seed}"
        arguments = (str(SCENARIOS / "three_tenants.yaml"), "--engine", "modelled", "--out", out)
        assert command(*arguments, cwd=tmp_path, PYTHONHASHSEED=seed).returncode == 0
        contents.append(
            {
                path.parent.name: path.read_bytes().split(b"\n", 1)[1]
                for path in sorted((tmp_path / out).glob("*/events.jsonl"))
            }
        )
    assert contents[0] == contents[1]
    assert len(contents[0]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scenarios/three_tenant.yaml",), ("three_tenant.yaml",)),
        (("scenarios/three_tenants.yaml", "--policy", "mold"), ("mold", "molt")),
        (("scenarios/three_tenants.yaml", "--ladder", "picco"), ("picco", "pico")),
        (("scenarios/three_tenants.yaml", "--profile", "picco"), ("picco", "pico")),
        (
            ("scenarios/three_tenants.yaml", "--engine", "modelled", "--clock", "measured"),
            ("--clock", "real"),
        ),
        (
            ("scenarios/three_tenants.yaml", "--engine", "modelled", "--out", "scenarios"),
            ("scenarios", "exists"),
        ),
        (("scenarios/three_tenants.yaml", "--engine", "fake"), ("fake", "modelled")),
        (("scenarios/three_tenants.yaml", "--policy", "molt", "--policy", "molt"), ("molt", "second")),
        (("scenarios/three_tenants.yaml", "--seed", "-1"), ("-1", "between")),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "scenarios").symlink_to(SCENARIOS)
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_device_too_slow_to_react_is_warned_about(tmp_path: Path) -> None:
    text = (
        (SCENARIOS / "below_floor.yaml").read_text(encoding="utf-8").replace("slowdown: 10", "slowdown: 100")
    )
    (tmp_path / "slow.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "prompts").symlink_to(SCENARIOS / "prompts")
    slow = command("slow.yaml", "--engine", "modelled", "--out", "slow", cwd=tmp_path)
    usual = command(
        str(SCENARIOS / "below_floor.yaml"), "--engine", "modelled", "--out", "usual", cwd=tmp_path
    )
    assert slow.returncode == usual.returncode == 0
    assert "may be killed" in slow.stderr
    assert "may be killed" not in usual.stderr


def test_a_violation_is_status_1(tmp_path: Path) -> None:
    """The control: a policy that promises what it does not keep is caught and the run fails."""
    (tmp_path / "liar.py").write_text(
        "from dataclasses import dataclass\n"
        "from molt.policies.hold import Hold\n"
        "@dataclass(frozen=True)\n"
        "class Liar(Hold):\n"
        "    name = 'liar'\n"
        "    promises = frozenset({'never_killed', 'bounded_overshoot'})\n",
        encoding="utf-8",
    )
    arguments = (str(SCENARIOS / "spike_mid_answer.yaml"), "--policy", "liar:Liar", "--engine", "modelled")
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert "overshoot_is_bounded" in done.stderr
