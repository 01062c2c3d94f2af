"""A job: a scenario on a ladder under some policies, read and checked, for any world; and where its results go."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from molt.core.costs import CostModel
from molt.core.ladder import Ladder
from molt.core.view import Policy
from molt.errors import InputError
from molt.formats import provenance
from molt.formats.log import plain
from molt.jobs import scenario
from molt.jobs.plugins import known_policies, make_policy
from molt.jobs.profile import load_profile, slowed
from molt.jobs.scenario import PolicySpec, ResolvedScenario
from molt.models.ladder_file import LadderSpec, resolve


@dataclass(frozen=True, slots=True)
class Job:
    """What every world needs; ``costs`` are those of the scenario's device."""

    scenario: ResolvedScenario
    spec: LadderSpec
    costs: CostModel
    policies: tuple[tuple[PolicySpec, Policy], ...]


def prepare(
    path: Path,
    *,
    policies: Sequence[str] = (),
    ladder: str | None = None,
    profile: str | None = None,
    seed: int | None = None,
) -> Job:
    """Read and check everything; raises ``InputError`` in one line, before anything is loaded or written.

    Policies, ladder, profile and seed take the place of the scenario's.
    """
    document = scenario.load(path)
    spec = resolve(ladder or document.ladder)
    chosen = [PolicySpec(name) for name in policies] or None
    resolved = document.resolve(spec, known_policies(), seed=seed, policies=chosen)
    if profile is not None:
        resolved = replace(resolved, profile=profile)
    costs = slowed(load_profile(resolved.profile, spec.ladder), resolved.slowdown)
    made = tuple((named, make_policy(named.name, named.params)) for named in resolved.policies)
    names = [policy.name for _, policy in made]
    for twice in (name for name in names if names.count(name) > 1):
        raise InputError(f"policies: {twice!r} a second time")
    if seed is not None and not 0 <= seed <= scenario.SEED_MAX:
        raise InputError(f"--seed: {seed} is not between 0 and {scenario.SEED_MAX}")
    return Job(resolved, spec, costs, made)


def header(job: Job, named: PolicySpec, policy: Policy) -> dict[str, Any]:
    """What the first line of a log says of a job and the policy that it is about; a world adds what it is."""
    run = job.scenario
    return {
        "scenario": {
            "name": run.name,
            "seed": run.seed,
            "horizon_ns": run.horizon_ns,
            "kill_after_ns": run.kill_after_ns,
            "budgets": plain(run.budgets),
            "profile": run.profile,
            "slowdown": run.slowdown,
            "tenants": [
                {
                    "name": tenant.name,
                    "kind": tenant.kind.value,
                    "arrives_ns": tenant.arrives_ns,
                    "prompt_tokens": len(tenant.request.prompt_ids),
                    "max_tokens": tenant.request.max_tokens,
                    "stop_at_eos": tenant.request.stop_at_eos,
                    "temperature": tenant.request.temperature,
                    "top_p": tenant.request.top_p,
                }
                for tenant in run.tenants
            ],
        },
        **grounds(job.spec.ladder, job.costs, named, policy),
    }


def grounds(ladder: Ladder, costs: CostModel, named: PolicySpec, policy: Policy) -> dict[str, Any]:
    """Everything that decisions depend on beside the facts, and where it was computed, for the first line of a log."""
    return {
        "policy": {
            "name": policy.name,
            "source": named.name,
            "params": plain(named.params),
            "promises": sorted(policy.promises),
        },
        "ladder": plain(ladder),
        "costs": plain(costs),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
    }


def new_folder(out: Path | None, name: str) -> Path:
    """The folder for a run's results, made now; an existing one is never written into."""
    if out is not None:
        return _made(out)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    stem = f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)}-{stamp}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return _made(next(folder for folder in map(Path("runs").joinpath, names) if not folder.exists()))


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError(f"{folder}: exists already; results are never overwritten") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from None
    return folder
