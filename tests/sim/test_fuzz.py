"""Simulation fuzz: worlds from seeds keep every promise, and the fuzz notices when one does not."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from molt.policies.hold import Hold
from sim import fuzz
from sim.faults import Faults
from sim.fuzz import MECHANISMS, FuzzCampaign, make_case, run_campaign, run_seed

SEEDS = 250


@pytest.fixture(scope="module")
def campaign() -> FuzzCampaign:
    return run_campaign(0, SEEDS, jobs=1)


def test_no_world_breaks_a_promise(campaign: FuzzCampaign) -> None:
    assert campaign.failures == [], "each line reproduces one"
    assert campaign.seeds == SEEDS
    assert campaign.overshoot_bytes_max is not None
    assert campaign.overshoot_bytes_max <= 0


def test_nearly_every_mechanism_fires_even_in_so_few_worlds(campaign: FuzzCampaign) -> None:
    quiet = {name for name in MECHANISMS if not campaign.fired[name]}
    assert quiet <= {
        "SpillFailed",
        "RestoreFailed",
        "SwitchFailed",
        "switch abandoned",
        "fall during a switch",
    }


def test_a_seed_is_one_world() -> None:
    assert make_case(7) == make_case(7)
    assert make_case(7) != make_case(8)
    assert run_seed(7) == run_seed(7)


class Promising(Hold):
    """Control: a policy that holds, and says that it is never killed."""

    promises = frozenset({"never_killed"})


def test_a_policy_that_holds_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "_policy", lambda random: Promising())
    found = run_campaign(0, 30, jobs=1)
    assert any("process_is_alive" in line or line.endswith("killed") for line in found.failures)
    assert all(line.startswith("molt fuzz --seeds 1 --start ") for line in found.failures)


def test_an_answer_that_is_not_complete_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_case(3)
    hours = replace(
        whole, scenario=replace(whole.scenario, horizon_ns=whole.scenario.tenants[0].arrives_ns + 1)
    )
    monkeypatch.setattr(fuzz, "make_case", lambda seed: hours)
    failure = run_seed(3).failure
    assert failure is not None
    assert "tokens although memory came back" in failure


def test_two_runs_that_differ_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter(range(10))
    monkeypatch.setattr(fuzz, "Random", lambda seed: Random(next(seeds) if seed == 12 else seed))
    shaky = replace(make_case(11), faults=Faults(switch=0.5, doubled=0.5))
    monkeypatch.setattr(fuzz, "make_case", lambda seed: shaky)
    assert run_seed(11).failure == "two runs, two logs"


def test_a_mechanism_that_never_fires_fails_a_long_campaign() -> None:
    long = FuzzCampaign(0, seeds=fuzz.CAMPAIGN)
    long.fired.update(dict.fromkeys(MECHANISMS, 1))
    assert long.silent == ()
    del long.fired["Heal"]
    assert long.silent == ("Heal",)
    assert FuzzCampaign(0, seeds=fuzz.CAMPAIGN - 1).silent == ()
