"""How fast the simulator's loop is: simulated seconds per wall second, modelled engine, best of several runs.

``python -m benchmarks.simulator [SCENARIO ...]``
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from sim.run import EngineKind, prepare, simulate

RUNS = 10


def loop_rate(path: Path) -> tuple[float, float]:
    """Simulated seconds of all policies, and the wall seconds of the fastest of ``RUNS`` runs."""
    job = prepare(path, engine=EngineKind.MODELLED)
    with tempfile.TemporaryDirectory() as folder:
        wall_s = min(simulate(job, Path(folder) / str(run)).loop_s for run in range(RUNS))
    return len(job.policies) * job.scenario.horizon_ns / 1e9, wall_s


def main(paths: list[str]) -> None:
    """Print one row a scenario."""
    rows = []
    for path in [Path(p) for p in paths] or sorted(Path("scenarios").glob("*.yaml")):
        simulated_s, wall_s = loop_rate(path)
        rows.append((path.stem, simulated_s, wall_s * 1e3, simulated_s / wall_s))
    print(
        tabulate(
            rows,
            ("scenario", "simulated s", "wall ms", "simulated s per s"),
            floatfmt=(".0f", ".0f", ".1f", ",.0f"),
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
