"""The shape of ``summary.json`` as strict pydantic models, for readers; ``RunSummary.model_json_schema()`` is
the JSON schema. Writing needs none of this. Units are in the names, definitions in ``reports.metrics``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class SummaryModel(BaseModel):
    """No unknown keys, no missing keys, no conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Percentiles(SummaryModel):
    """Nearest-rank percentiles; ``None`` when there were no values."""

    p50: float | None
    p90: float | None
    p99: float | None


class HandoffNumbers(SummaryModel):
    """Means over the ``n`` switches whose quality was measured."""

    kl: float | None
    jsd: float | None
    jsd_floor: float | None
    recovered_context: float | None
    n: int


class StallNumbers(SummaryModel):
    """The longest gap between two tokens: whose, from when on the run's clock, how long."""

    tenant: str
    from_ms: float
    ms: float


class TenantSummary(SummaryModel):
    """One tenant's answer."""

    kind: str
    tokens: int
    finished: bool
    reason: str | None
    ttft_ms: float | None
    stall_ms_max: float | None
    attempts: int
    tokens_lost: int
    rung_tokens: dict[str, int]


class Spread(SummaryModel):
    """Nearest-rank percentiles in milliseconds over ``n`` cases."""

    p50: float | None
    p99: float | None
    n: int


class RealSummary(SummaryModel):
    """What only a run with real processes has; definitions in ``reports.real_processes``."""

    kernel_kills: int | None
    victims: list[str]
    kernel_peak_bytes: int | None
    kernel_room_bytes_min: int | None
    over_line_bytes_max: int | None
    own_peak_bytes: int | None
    major_faults: int | None
    stalled_ms: float | None
    tokens_per_s_before: float | None
    tokens_per_s_under_pressure: float | None
    signal_ms: Spread
    boundary_ms: Spread
    release_ms: Spread
    told_to_relief_ms: Spread
    load_ms: Spread
    transplant_ms: Spread


class PolicySummary(SummaryModel):
    """The numbers of one policy."""

    killed: int
    answers_lost: int
    tokens_out: int
    switches_down: int
    switches_up: int
    tokens_healed: int
    deferrals: int
    parks: int
    sheds: int
    spills: int
    ttft_ms: Percentiles
    itl_ms: Percentiles
    stall_ms_max: float | None
    overshoot_bytes_max: int | None
    overshoot_byte_seconds: float
    transient_peak_bytes: int | None
    usage_peak_bytes: int | None
    file_mapped_peak_bytes: int
    rung_token_share: dict[str, float]
    handoff: HandoffNumbers
    tenants: dict[str, TenantSummary]
    answers_asked: int
    answers_finished: int
    answers_unfinished: int
    tokens_lost: int
    tokens_reread: int
    context_lost_tokens: int
    foreground_stall_ms_max: float | None
    switch_pause_ms_max: float | None
    open_stall_ms_max: float | None
    rung_seconds: dict[str, float]
    refusals: int
    simulated_s: float
    real: RealSummary | None = None
    stall: StallNumbers | None
    log_complete: bool
    log_sha256: str


class Violation(SummaryModel):
    """An invariant that did not hold, and the record that says so."""

    policy: str
    seq: int | None
    at_ns: int | None
    invariant: str | None
    detail: str | None


class RunSummary(SummaryModel):
    """One scenario under several policies."""

    scenario: str | None
    seed: int | None
    ladder: str | None
    engine: str | None
    simulated_s: float
    wall_s: float | None
    violations: list[Violation]
    policies: dict[str, PolicySummary]


def read_summary(path: Path) -> RunSummary:
    """A validated ``summary.json``. Raises ``pydantic.ValidationError``."""
    return RunSummary.model_validate_json(path.read_bytes())
