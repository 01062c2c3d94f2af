"""``summary.json``: the numbers of one scenario under several policies, for programs.

``reports.schema`` describes the shape; keys come in a fixed order, policies in the order given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from molt.units import MS_NS
from reports import metrics
from reports.real_processes import real_numbers
from reports.run_log import RunLog

Metric = Callable[[RunLog], Any]

METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        metrics.killed,
        metrics.answers_lost,
        metrics.tokens_out,
        metrics.switches_down,
        metrics.switches_up,
        metrics.tokens_healed,
        metrics.deferrals,
        metrics.parks,
        metrics.sheds,
        metrics.spills,
        metrics.ttft_ms,
        metrics.itl_ms,
        metrics.stall_ms_max,
        metrics.overshoot_bytes_max,
        metrics.overshoot_byte_seconds,
        metrics.transient_peak_bytes,
        metrics.usage_peak_bytes,
        metrics.file_mapped_peak_bytes,
        metrics.rung_token_share,
        metrics.handoff,
        metrics.tenants,
        metrics.answers_asked,
        metrics.answers_finished,
        metrics.answers_unfinished,
        metrics.tokens_lost,
        metrics.tokens_reread,
        metrics.context_lost_tokens,
        metrics.foreground_stall_ms_max,
        metrics.switch_pause_ms_max,
        metrics.open_stall_ms_max,
        metrics.rung_seconds,
        metrics.refusals,
        metrics.simulated_s,
    )
}
"""Every number of a policy by its key, in the order of ``summary.json``."""


def summarise(log_paths: Mapping[str, Path], *, wall_s: float | None) -> dict[str, Any]:
    """The summary of the logs of one scenario, by policy. ``wall_s`` is what the run took on the wall, the
    only number that is not in the logs. Raises ``molt.formats.log.LogError``."""
    return summarise_runs({policy: RunLog.read(path) for policy, path in log_paths.items()}, wall_s=wall_s)


def summarise_runs(runs: Mapping[str, RunLog], *, wall_s: float | None) -> dict[str, Any]:
    """As ``summarise``, of logs already read."""
    header = next((run.header for run in runs.values()), {})
    scenario = header.get("scenario", {})
    return {
        "scenario": scenario.get("name"),
        "seed": scenario.get("seed"),
        "ladder": header.get("ladder", {}).get("name"),
        "engine": header.get("engine"),
        "simulated_s": max(map(metrics.simulated_s, runs.values()), default=0.0),
        "wall_s": wall_s,
        "violations": [
            {"policy": policy, **violation}
            for policy, run in runs.items()
            for violation in metrics.violations(run)
        ],
        "policies": {policy: _policy(run) for policy, run in runs.items()},
    }


def summary_json(summary: Mapping[str, Any]) -> str:
    """The text of ``summary.json``."""
    return json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _policy(run: RunLog) -> dict[str, Any]:
    numbers = {key: metric(run) for key, metric in METRICS.items()}
    longest = metrics.stall(run)
    real = real_numbers(run)
    return {
        **numbers,
        **({} if real is None else {"real": real}),
        "stall": None
        if longest is None
        else {
            "tenant": longest.tenant,
            "from_ms": longest.from_ns / MS_NS,
            "ms": longest.duration_ns / MS_NS,
        },
        "log_complete": run.complete,
        "log_sha256": run.sha256,
    }
