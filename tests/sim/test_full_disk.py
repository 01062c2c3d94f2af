"""A full disk ends a simulation with one line that names the file, and not with the status of a broken invariant."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BYTES_MAX = 4 << 10


def test_a_full_disk_is_one_line_and_no_broken_invariant(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sim.run", "scenarios/spike_mid_answer.yaml"),
            *("--policy", "hold", "--engine", "modelled", "--out", str(tmp_path / "out")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES_MAX, BYTES_MAX)),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("molt: ")]
    assert "events.jsonl: " in line
    assert str(tmp_path) in line
