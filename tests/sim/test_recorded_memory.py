"""The memory of an earlier run, met once more: what others left, what was reported, and what no run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from molt.core.engine_protocol import EngineKind
from molt.core.events import BudgetChanged
from molt.errors import InputError
from molt.formats import log
from reports.metrics import killed
from reports.run_log import RunLog
from sim import recorded_memory
from sim.run import prepare, simulate
from tests.small import MS

SPIKE = Path("scenarios/spike_mid_answer.yaml")
NAME = "spike_mid_answer"
MIB = 2**20
ALL_BYTES = 52 * MIB


def real_log(
    folder: Path,
    *,
    pressure: dict[int, int] | None = None,
    reported: dict[int, int] | None = None,
    victims: tuple[int, ...] = (),
    policy: str = "molt",
    **header: Any,
) -> Path:
    """A log as a run with real processes writes it: MiB by milliseconds, and when an allocator was killed."""
    (folder / policy).mkdir(parents=True)
    reported = {0: 52} if reported is None else reported
    with (folder / policy / log.FILE_NAME).open("w", encoding="utf-8") as sink:
        scenario = {"name": NAME, "budgets": [[0, ALL_BYTES]], "kill_after_ns": 500 * MS}
        written = log.Log(sink, {"real": {}, "scenario": scenario, **header})
        for at_ms in sorted({*(pressure or {}), *reported, *victims}):
            at_ns = at_ms * MS
            if at_ms in (pressure or {}):
                size_bytes = (pressure or {})[at_ms] * MIB
                written.write("pressure", at_ns, taken_bytes=ALL_BYTES - size_bytes, budget_bytes=size_bytes)
            if at_ms in victims:
                written.write("victim", at_ns, what="allocator", pid=1)
            if at_ms in reported:
                written.event(BudgetChanged(at_ns=at_ns, budget_bytes=reported[at_ms] * MIB))
        written.write("end", 60_000 * MS, reason="horizon")
    return folder


def test_what_others_left_and_what_was_told_are_two_things(tmp_path: Path) -> None:
    run = real_log(tmp_path, pressure={800: 40, 900: 30}, reported={0: 52, 805: 20})
    memory = recorded_memory.read(run, "molt", NAME)
    assert memory.left == ((0, 52 * MIB), (800 * MS, 40 * MIB), (900 * MS, 30 * MIB))
    assert memory.reported == ((0, 52 * MIB), (805 * MS, 20 * MIB))


def test_what_a_killed_allocator_had_is_free_once_the_simulated_os_has_killed_too(tmp_path: Path) -> None:
    run = real_log(tmp_path, pressure={800: 30}, reported={0: 52, 805: 28}, victims=(900,))
    assert recorded_memory.read(run, "molt", NAME).left == (
        (0, ALL_BYTES),
        (800 * MS, 30 * MIB),
        (1400 * MS + 1, ALL_BYTES),
    )


def simulated(memory_of: Path, out: Path) -> RunLog:
    """The spike, under molt, with the memory of a run."""
    job = prepare(SPIKE, policies=["molt"], engine=EngineKind.MODELLED, memory_of=memory_of)
    simulate(job, out)
    return RunLog.read(out / "molt" / log.FILE_NAME)


def test_a_process_decides_upon_what_is_reported_and_lives_by_what_is_left(tmp_path: Path) -> None:
    """With less reported it makes itself small where nothing is taken; with nothing reported it is killed."""
    calm = simulated(real_log(tmp_path / "calm"), tmp_path / "calm_out")
    warned = simulated(real_log(tmp_path / "warned", reported={0: 52, 8000: 14}), tmp_path / "warned_out")
    hit = simulated(real_log(tmp_path / "hit", pressure={8000: 14}), tmp_path / "hit_out")
    assert [len(list(run.decisions("Demote"))) for run in (calm, warned, hit)] == [0, 1, 0]
    assert [killed(run) for run in (calm, warned, hit)] == [0, 0, 1]
    assert calm.header["memory"] == log.RETOLD


@pytest.mark.parametrize(
    ("made", "policy", "says"),
    [
        ({"reported": {}}, "molt", "no budget was reported"),
        ({}, "hold", "No such file"),
    ],
)
def test_a_run_that_has_no_such_memory_is_refused(
    tmp_path: Path, made: dict[str, Any], policy: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        recorded_memory.read(real_log(tmp_path, **made), policy, NAME)


def test_a_simulated_run_has_no_memory_to_tell(tmp_path: Path) -> None:
    simulated(real_log(tmp_path / "real"), tmp_path / "out")
    with pytest.raises(InputError, match="no run with real processes"):
        recorded_memory.read(tmp_path / "out", "molt", NAME)


def test_the_memory_of_another_scenario_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a run of spike_mid_answer, not of sawtooth"):
        recorded_memory.read(real_log(tmp_path), "molt", "sawtooth")


def test_the_memory_of_an_incomplete_run_is_refused(tmp_path: Path) -> None:
    """What others left after its last record is not known, and would be taken for what they left then."""
    path = real_log(tmp_path, pressure={800: 30}) / "molt" / log.FILE_NAME
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(InputError, match="incomplete: the log has no end"):
        recorded_memory.read(tmp_path, "molt", NAME)
