"""The shape of ``summary.json`` as strict pydantic models, for readers; ``RunSummary.model_json_schema()`` is
the JSON schema. Writing needs none of this. Units are in the names, definitions in ``reports.metrics``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from reports.shapes import Number, Whole


class SummaryModel(BaseModel):
    """No unknown keys, no missing keys, no conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Percentiles(SummaryModel):
    """Nearest-rank percentiles; ``None`` when there were no values."""

    p50: Number | None
    p90: Number | None
    p99: Number | None


class HandoffNumbers(SummaryModel):
    """Means over the ``n`` switches whose quality was measured."""

    kl: Number | None
    jsd: Number | None
    jsd_floor: Number | None
    recovered_context: Number | None
    n: Whole


class StallNumbers(SummaryModel):
    """The longest gap between two tokens: whose, from when on the run's clock, how long."""

    tenant: str
    from_ms: Number
    ms: Number


class TenantSummary(SummaryModel):
    """One tenant's answer."""

    kind: str
    tokens: Whole
    finished: bool
    reason: str | None
    ttft_ms: Number | None
    stall_ms_max: Number | None
    attempts: Whole
    tokens_lost: Whole
    rung_tokens: dict[str, Whole]


class Spread(SummaryModel):
    """Nearest-rank percentiles in milliseconds over ``n`` cases."""

    p50: Number | None
    p99: Number | None
    n: Whole


class RealSummary(SummaryModel):
    """What only a run with real processes has; definitions in ``reports.real_processes``."""

    kernel_kills: Whole | None
    victims: list[str]
    kernel_peak_bytes: Whole | None
    kernel_room_bytes_min: Whole | None
    over_line_bytes_max: Whole | None
    own_peak_bytes: Whole | None
    major_faults: Whole | None
    stalled_ms: Number | None
    tokens_per_s_before: Number | None
    tokens_per_s_under_pressure: Number | None
    signal_ms: Spread
    boundary_ms: Spread
    release_ms: Spread
    told_to_relief_ms: Spread
    load_ms: Spread
    transplant_ms: Spread


class PolicySummary(SummaryModel):
    """The numbers of one policy."""

    killed: Whole
    answers_lost: Whole
    tokens_out: Whole
    switches_down: Whole
    switches_up: Whole
    tokens_healed: Whole
    deferrals: Whole
    parks: Whole
    sheds: Whole
    spills: Whole
    ttft_ms: Percentiles
    itl_ms: Percentiles
    stall_ms_max: Number | None
    overshoot_bytes_max: Whole | None
    overshoot_byte_seconds: Number
    transient_peak_bytes: Whole | None
    usage_peak_bytes: Whole | None
    file_mapped_peak_bytes: Whole
    rung_token_share: dict[str, Number]
    handoff: HandoffNumbers
    tenants: dict[str, TenantSummary]
    answers_asked: Whole
    answers_finished: Whole
    answers_unfinished: Whole
    tokens_lost: Whole
    tokens_reread: Whole
    context_lost_tokens: Whole
    foreground_stall_ms_max: Number | None
    switch_pause_ms_max: Number | None
    open_stall_ms_max: Number | None
    rung_seconds: dict[str, Number]
    refusals: Whole
    simulated_s: Number
    real: RealSummary | None = None
    stall: StallNumbers | None
    log_complete: bool
    log_sha256: str


class Violation(SummaryModel):
    """An invariant that did not hold, and the record that says so."""

    policy: str
    seq: Whole | None
    at_ns: Whole | None
    invariant: str | None
    detail: str | None


class RunSummary(SummaryModel):
    """One scenario under several policies."""

    scenario: str | None
    seed: Whole | None
    ladder: str | None
    engine: str | None
    simulated_s: Number
    wall_s: Number | None
    violations: list[Violation]
    policies: dict[str, PolicySummary]


def read_summary(path: Path) -> RunSummary:
    """A validated ``summary.json``. Raises ``pydantic.ValidationError``."""
    return RunSummary.model_validate_json(path.read_bytes())
