"""What the benchmarks share: candidates timed in turns, and the speed at which this machine reads memory.

A shared machine is fast in one minute and slow in the next, so everything that is compared is timed in turns within
one process, and a median is taken of each. How much of the processor other programs used meanwhile is reported with
the result.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from molt.formats import provenance

ROOF_BYTES = 512 * 1024 * 1024  # far more than a cache holds


def medians(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each candidate, run in turns; one round before those that count."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(rounds + 1):
        for name, run in candidates.items():
            begin = time.perf_counter()
            run()
            if round_number:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def roof(rounds: int = 9) -> float:
    """Bytes a second at which this process reads memory: the best of a sum and a matrix-vector product.

    Of each, the fastest run counts: this is what the machine can do. A kernel may still be faster by a little.
    """
    floats = torch.ones(ROOF_BYTES // 4).view(-1, 1024)
    vector, fastest = torch.ones(1024), float("inf")
    for _ in range(rounds):
        for read in (lambda: floats.view(torch.int64).sum(), lambda: torch.mv(floats, vector)):
            begin = time.perf_counter()
            read()
            fastest = min(fastest, time.perf_counter() - begin)
    return ROOF_BYTES / fastest


class Others:
    """How many cores other processes keep busy from its creation on."""

    def __init__(self) -> None:
        self._begin = self._now()

    def cores(self) -> float:
        """Mean number of cores until now."""
        wall, busy, own = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        return max(0.0, (busy - own) / wall)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return time.perf_counter(), sum(times[:8]) - idle, time.process_time()


def write(path: Path, content: Mapping[str, Any]) -> None:
    """A result with where it comes from, as JSON."""
    origin = {
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "threads": torch.get_num_threads(),
        "isa": torch.backends.cpu.get_cpu_capability(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**origin, **content}, indent=1) + "\n", encoding="utf-8")
