"""``molt eval``: bad input gets one line and status 2, a failing gate status 1 and nothing saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from molt.errors import InputError
from molt.evals import command
from molt.evals.result import Gate, Residuals, read

RUNNER = CliRunner()
QUICK = ["pico", "--documents", "2", "--context", "48", "--continuation", "4"]


def test_a_bad_option_gets_one_line_and_status_2() -> None:
    arguments = ["eval", "handoff", "pico", "--from", "tier9"]
    done = subprocess.run(
        [sys.executable, "-c", "from molt.cli.main import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("molt: --from: 'tier9' is no rung of")
    assert "tier" in line.rpartition(";")[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["handoff", "pik"], "no ladder is named 'pik'"),
        (["handoff", "pico", "--to", "big"], "--to: 'big' is no rung"),
        (
            ["handoff", "pico", "--from", "tier0", "--to", "tier0"],
            "no route takes a cache from tier0 to tier0",
        ),
        (["handoff", "pico", "--context", "5000"], "do not fit into 2048 positions"),
        (["handoff", "pico", "--text", "nowhere"], "no such folder"),
        (["handoff", "pico", "--first", "200", "--last", "60"], "leave nothing of 256 to transplant"),
        (["handoff", "pico", "--out", "nowhere/table.json"], "no such folder"),
        (["residuals", "pico", "--from", "tier1", "--to", "tier2"], "no map takes a cache"),
        (["ablation", "pico", "--from", "tier2", "--to", "tier1"], "no map takes a cache"),
        (["drift", "pico", "--from", "tier1", "--to", "tier1"], "have routes in both directions"),
        (["switch-cost", "pico", "--from", "tier9"], "is no rung"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        result = RUNNER.invoke(command.app, arguments)
    assert isinstance(result.exception, InputError), result.output
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_documents_that_are_too_short_are_counted(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("short", encoding="utf-8")
    (tmp_path / "two.bin").write_bytes(b"\xff\xfe")
    result = RUNNER.invoke(command.app, ["handoff", "pico", "--text", str(tmp_path)])
    assert isinstance(result.exception, InputError)
    assert "0 of 1 documents have" in str(result.exception)


def test_a_failing_gate_says_so_and_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = [
        Gate(name="good", rung="tier0", value=0.0, limit=0.0, detail=""),
        Gate(name="bad", rung="tier1", value=2.0, limit=1.0, detail=""),
    ]
    monkeypatch.setattr(command, "check_gates", lambda *_: gates)
    out = tmp_path / "table.json"
    result = RUNNER.invoke(command.app, ["residuals", *QUICK, "--out", str(out)])
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "passed" in result.stdout
    assert not out.exists()


def test_a_table_is_printed_and_saved_with_its_origin(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    arguments = ["residuals", *QUICK, "--from", "tier0", "--to", "tier1", "--seed", "7", "--out", str(out)]
    result = RUNNER.invoke(command.app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Gates")
    table = read(out)
    assert isinstance(table, Residuals)
    assert (table.origin.ladder, table.origin.seed) == ("pico", 7)
    assert table.texts.context == 48
    assert len(table.texts.documents) == 2
    assert all(gate.passed for gate in table.gates)


def test_where_it_saves_is_no_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["molt", "eval", "handoff", "pico", "--out", "a.json", "--seed", "1", "--out=b.json"]
    )
    assert command._command_line() == "molt eval handoff pico --seed 1"
