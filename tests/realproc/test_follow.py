"""Followers read the budget of a server off a machine, and refuse where its files do not give it."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.errors import InputError
from molt.server.admin import known_followers, make_follower
from realproc.follow import CALM_NS, FREE_SHARE, Available, ControlGroup, Stalls
from tests.realproc.trees import COMMON, GIB, V1, V2, plant

OWN = 100 * 2**20


def psi(total_us: int) -> dict[str, str]:
    return {
        "proc/pressure/memory": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\nfull total=0\n"
    }


def test_below_a_limit_it_is_what_is_used_and_what_is_free(tmp_path: Path) -> None:
    """Of 2 GiB, 1 is used, of which half are pages that can be dropped; a margin stays free."""
    root = plant(tmp_path, COMMON | V1)
    assert ControlGroup(root).budget_bytes(OWN) == OWN + 3 * GIB // 2 - 2 * GIB // FREE_SHARE


def test_a_limit_that_falls_is_followed(tmp_path: Path) -> None:
    root = plant(tmp_path, COMMON | V2)
    follower = ControlGroup(root)
    before = follower.budget_bytes(OWN)
    plant(tmp_path, {"sys/fs/cgroup/user.slice/molt.scope/memory.max": f"{2 * GIB}\n"})
    assert follower.budget_bytes(OWN) == before - GIB + GIB // FREE_SHARE
    plant(tmp_path, {"sys/fs/cgroup/user.slice/molt.scope/memory.max": "max\n"})
    with pytest.raises(OSError, match="gone"):
        follower.budget_bytes(OWN)


def test_what_is_available_bounds_a_generous_limit(tmp_path: Path) -> None:
    meminfo = {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 524288 kB\n"}
    root = plant(tmp_path, COMMON | V1 | meminfo)
    assert ControlGroup(root).budget_bytes(OWN) == Available(root).budget_bytes(OWN)
    assert Available(root).budget_bytes(OWN) == OWN + GIB // 2 - 8 * GIB // FREE_SHARE


def test_stalls_take_a_tenth_for_a_while(tmp_path: Path) -> None:
    now = [0]
    root = plant(tmp_path, COMMON | psi(1_000_000))
    follower = Stalls(root, lambda: now[0])
    roomy = follower.budget_bytes(OWN)
    assert roomy == Available(root).budget_bytes(OWN)
    plant(tmp_path, psi(1_019_000))  # too short to count
    assert follower.budget_bytes(OWN) == roomy
    plant(tmp_path, psi(1_050_000))
    assert follower.budget_bytes(OWN) == OWN * 9 // 10
    now[0] = CALM_NS - 1
    assert follower.budget_bytes(OWN * 9 // 10) == OWN * 9 // 10
    now[0] = CALM_NS
    assert follower.budget_bytes(OWN) == roomy


@pytest.mark.parametrize("follower", [ControlGroup, Available, Stalls])
def test_a_machine_without_the_files_is_refused(follower: type, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        follower(tmp_path)


def test_without_stall_information_psi_is_refused(tmp_path: Path) -> None:
    tree = {name: text for name, text in COMMON.items() if "pressure" not in name}
    with pytest.raises(InputError, match="psi"):
        Stalls(plant(tmp_path, tree))


def test_followers_are_found_by_name() -> None:
    assert set(known_followers()) >= {"cgroup", "memavailable", "psi"}
    assert make_follower("memavailable").budget_bytes(0) > 0
    with pytest.raises(InputError, match="did you mean 'cgroup'"):
        make_follower("cgruop")
