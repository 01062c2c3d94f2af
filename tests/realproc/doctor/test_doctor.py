"""The doctor: every cause of wrong results is found and named with its remedy, and nothing else is."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from molt.core.ladder import KVLayout, Ladder, Route, RouteKind, Rung
from realproc.doctor import checks, ladder_needs
from realproc.doctor.checks import findings
from realproc.doctor.diagnosis import Cache, Diagnosis, Severity
from realproc.doctor.ladder_needs import LadderNeed, needed_bytes
from realproc.doctor.page import UNAVAILABLE, facts, show
from realproc.doctor.torch_facts import Device, TorchFacts, read_torch
from realproc.kernel.control_groups import ControlGroups, LimitTrial
from realproc.kernel.machine import Machine, MachineMemory, Pressure, Processor, read_machine
from tests.realproc.trees import COMMON, GIB, HYBRID, V2, plant
from tests.strategies import names

SECOND_NS = 1_000_000_000
ROOT = Path(__file__).resolve().parents[3]

GOOD = Diagnosis(
    machine=Machine(
        system="Linux 6.0 x86_64",
        processor=Processor(
            "Made-up 9000", 8, 8, ("avx512_vnni", "fpu"), "performance", "acpi-cpufreq", False
        ),
        memory=MachineMemory(16 * GIB, 12 * GIB, None, None, 0, "madvise", 2 * 2**20, 0),
        groups=ControlGroups("v2", "v2", ("/sys/fs/cgroup",), None, None, None),
        pressure=Pressure(0.0, (SECOND_NS // 2, SECOND_NS)),
        load_1min=0.5,
        environment={"OMP_WAIT_POLICY": "passive"},
    ),
    limits=LimitTrial(True, "/sys/fs/cgroup"),
    torch=TorchFacts("2.9.0", 8, 8, "AVX512", True, "passive", ()),
    ladders=(LadderNeed("pico", 3, GIB, None),),
    cache=Cache("/home/me/.cache/models", 100 * GIB),
)
"""A machine with nothing to complain about."""


def changed(**fields: object) -> Diagnosis:
    """The good machine with something else; ``memory__swap_bytes`` is a field of ``machine.memory``, and so on."""
    diagnosis = GOOD
    for name, value in fields.items():
        part, _, field = name.partition("__")
        if not field:
            owner = "machine" if hasattr(GOOD.machine, part) else ""
        elif hasattr(GOOD.machine, part):
            inner = dataclasses.replace(getattr(diagnosis.machine, part), **{field: value})
            owner, value = "machine", inner
        else:
            owner, value = "", dataclasses.replace(getattr(diagnosis, part), **{field: value})
        if owner:
            value, part = dataclasses.replace(diagnosis.machine, **{part: value}), owner
        diagnosis = dataclasses.replace(diagnosis, **{part: value})
    return diagnosis


def complaints(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Severity and subject of everything that is not fine."""
    return [(f.severity.value, f.about) for f in findings(diagnosis) if f.severity is not Severity.OK]


def page(diagnosis: Diagnosis, width: int = 80) -> str:
    """What people see, without a terminal."""
    out = io.StringIO()
    show(diagnosis, findings(diagnosis), Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_a_good_machine_has_no_complaints() -> None:
    assert complaints(GOOD) == []
    assert {f.about for f in findings(GOOD)} >= {
        "load",
        "clock",
        "power",
        "threads",
        "room",
        "limits",
        "disk",
    }


NO_GROUPS = ControlGroups("none", None, (), None, None, None)

CAUSES: list[tuple[dict[str, object], tuple[str, str]]] = [
    ({"load_1min": 5.6}, ("wrong", "load")),
    ({"processor__governor": "powersave"}, ("wrong", "clock")),
    ({"processor__governor": "powersave", "processor__driver": "intel_pstate"}, ("note", "clock")),
    ({"processor__on_battery": True}, ("wrong", "power")),
    ({"processor__autogroup": True}, ("note", "niceness")),
    ({"processor__flags": ("fpu",)}, ("note", "INT8")),
    ({"environment": {"OMP_WAIT_POLICY": "ACTIVE"}}, ("wrong", "waiting threads")),
    ({"environment": {}}, ("note", "waiting threads")),
    ({"environment": None, "torch__wait_policy": "active"}, ("wrong", "waiting threads")),
    ({"torch__threads": 9}, ("wrong", "threads")),
    ({"groups__quota_cores": 7.5}, ("wrong", "threads")),
    ({"ladders": (LadderNeed("big", 3, 13 * GIB, None),)}, ("wrong", "room")),
    ({"groups__room_bytes": GIB - 1}, ("wrong", "room")),
    ({"groups__limit_bytes": 8 * GIB}, ("note", "own limit")),
    ({"memory__overcommit": 2}, ("wrong", "overcommit")),
    ({"memory__transparent": "always"}, ("wrong", "huge pages")),
    ({"memory__transparent": "never"}, ("note", "huge pages")),
    ({"memory__transparent": None}, ("note", "huge pages")),
    ({"memory__swap_bytes": 0}, ("note", "swap")),
    ({"memory__swap_bytes": GIB}, ("note", "swap")),
    ({"limits": LimitTrial(False, "/sys/fs/cgroup: Permission denied")}, ("note", "limits")),
    ({"groups": NO_GROUPS, "limits": LimitTrial(False, "no memory controller")}, ("note", "limits")),
    ({"pressure": None}, ("note", "pressure")),
    ({"pressure__windows_ns": ()}, ("note", "pressure")),
    ({"pressure__windows_ns": (2 * SECOND_NS,)}, ("note", "pressure")),
    ({"torch": None}, ("wrong", "torch")),
    ({"torch__onednn": False}, ("note", "torch")),
    ({"ladders": (LadderNeed("big", None, None, "not in the local cache"),)}, ("note", "ladders")),
    ({"cache__free_bytes": GIB}, ("note", "disk")),
]


@pytest.mark.parametrize(("cause", "complaint"), CAUSES, ids=[str(cause) for cause, _ in CAUSES])
def test_each_cause_is_named_once_with_its_remedy(
    cause: dict[str, object], complaint: tuple[str, str]
) -> None:
    """One thing wrong gives one complaint, and every complaint has a reason and a remedy, in the page too."""
    diagnosis = changed(**cause)
    assert complaints(diagnosis) == [complaint]
    (finding,) = (f for f in findings(diagnosis) if f.severity is not Severity.OK)
    assert finding.why
    assert finding.remedy
    words = " ".join(page(diagnosis).split())
    assert f"{finding.about}: {finding.found}" in words
    assert f"→ {finding.remedy}" in words


def test_the_worst_comes_first() -> None:
    said = findings(changed(memory__swap_bytes=0, load_1min=9.0))
    assert [f.severity for f in said[:2]] == [Severity.WRONG, Severity.NOTE]
    assert {f.severity for f in said[2:]} == {Severity.OK}


def test_a_policy_for_threads_is_judged_as_it_was_at_the_start() -> None:
    """Molt sets it to passive later; that hides nothing."""
    assert complaints(changed(environment={"OMP_WAIT_POLICY": "active"}, torch__wait_policy="passive")) == [
        ("wrong", "waiting threads")
    ]


def test_a_machine_without_readings_is_shown_and_not_accused(tmp_path: Path) -> None:
    """As on a system without any of the files: every fact has its line, what is missing is said."""
    nothing = dataclasses.replace(
        GOOD,
        machine=read_machine(tmp_path),
        limits=LimitTrial(False, "no memory controller"),
        torch=None,
        cache=Cache("/nowhere", None),
    )
    assert [c for c in complaints(nothing) if c[0] == "wrong"] == [("wrong", "torch")]
    shown = dict(facts(nothing))
    assert shown.keys() == dict(facts(GOOD)).keys()
    for name in ("processor", "memory", "swap", "overcommit", "control groups", "pressure (PSI)", "torch"):
        assert shown[name] == UNAVAILABLE
    assert UNAVAILABLE in page(nothing)


@pytest.mark.parametrize("tree", [HYBRID, V2], ids=["hybrid", "v2"])
def test_a_made_up_machine_is_shown(tmp_path: Path, tree: dict[str, str]) -> None:
    diagnosis = dataclasses.replace(GOOD, machine=read_machine(plant(tmp_path, COMMON, tree)))
    assert {about for severity, about in complaints(diagnosis) if severity == "wrong"} == {
        *("clock", "power", "waiting threads", "threads")
    }
    assert "Made-up 9000" in page(diagnosis)


@given(st.integers(60, 120), names, st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
def test_the_page_keeps_to_its_width_without_colours(width: int, name: str, text: str) -> None:
    """Whatever the machine is called; nothing in a name is taken for markup."""
    diagnosis = changed(
        processor__name=f"[bold]{text}",
        ladders=(LadderNeed(f"{name}[/red]{text}", None, None, "torn"),),
        load_1min=9.0,
    )
    shown = page(diagnosis, width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "\x1b" not in shown
    assert "[bold]" in shown


def test_accelerators_are_named() -> None:
    assert "Made-up GPU, 8GiB" in page(changed(torch__devices=(Device("Made-up GPU", 8 * GIB),)))


def test_torch_is_asked_for_its_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    made_up = SimpleNamespace(name="Made-up GPU", total_memory=8 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: made_up)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    found = read_torch()
    assert found is not None
    assert found.devices == (Device("Made-up GPU", 8 * GIB),) * 2


def test_a_torch_that_cannot_be_imported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert read_torch() is None


def test_json_has_everything() -> None:
    document = json.loads(checks.as_json(GOOD))
    assert document["machine"]["memory"]["total_bytes"] == 16 * GIB
    assert document["limits"] == {"settable": True, "detail": "/sys/fs/cgroup"}
    assert {finding["severity"] for finding in document["findings"]} == {"ok"}
    assert "python" in document["versions"]


# --- ladders ---


def rung(name: str, weight_bytes: int, max_positions: int = 100) -> Rung:
    """A rung whose cache takes 2 bytes a token."""
    return Rung(name, name, "fp32", weight_bytes, 10, KVLayout(1, 1, 1, 1), max_positions)


def test_a_ladder_takes_two_neighbours_a_map_and_two_caches() -> None:
    routes = (Route("a", "b", RouteKind.PROJECT, 7), Route("b", "a", RouteKind.PROJECT, 8))
    ladder = Ladder("made-up", (rung("a", 1000), rung("b", 500), rung("c", 100)), routes)
    assert needed_bytes(ladder) == 1000 + 500 + 2 * 10 + 2 * 200 + 8
    assert needed_bytes(Ladder("alone", (rung("a", 1000),), ())) == 1000 + 10 + 200


def test_the_cache_of_a_long_context_is_counted_to_a_limit() -> None:
    ladder = Ladder("long", (rung("a", 1000, 10**6),), ())
    assert needed_bytes(ladder) == 1010 + 2 * ladder_needs.CONTEXT_CELLS


def test_pico_is_present() -> None:
    (pico,) = (ladder for ladder in ladder_needs.ladder_needs() if ladder.name == "pico")
    assert pico.missing is None
    assert pico.rungs == 3
    assert pico.needed_bytes


def test_a_ladder_that_cannot_be_read_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_needs, "ladder_names", lambda: (str(tmp_path / "gone.yaml"),))
    (gone,) = ladder_needs.ladder_needs()
    assert gone.missing is not None
    assert "gone.yaml" in gone.missing
    assert (gone.rungs, gone.needed_bytes) == (None, None)


# --- the command ---


def molt(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this checkout with a policy that spins."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={"OMP_WAIT_POLICY": "active", "HOME": "/nonexistent"},
    )


def test_the_command_reads_the_real_machine() -> None:
    """Both forms, warnings or not, with status 0; a wrong option has status 2."""
    done = molt("realproc.doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("This machine", "Ladders", "pico", "OMP_WAIT_POLICY=active", "→"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = molt("realproc.doctor", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["machine"]["environment"] in ({"OMP_WAIT_POLICY": "active"}, None)
    assert document["torch"]["threads"] >= 1
    assert molt("realproc.doctor", "--nonsense").returncode == 2


def test_molt_doctor_is_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from molt.cli.main import app
    from molt.program import run_command

    (entry,) = (c for c in app.registered_commands if c.callback and c.callback.__name__ == "doctor")
    assert entry.callback is not None
    monkeypatch.setattr(checks, "diagnose", lambda: GOOD)
    monkeypatch.setattr(sys, "argv", ["molt doctor", "--json"])
    with pytest.raises(SystemExit) as exit_info:
        run_command(entry.callback)
    assert exit_info.value.code == 0
    assert json.loads(capsys.readouterr().out) == json.loads(checks.as_json(GOOD))
