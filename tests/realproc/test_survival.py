"""With a real kernel: under pressure a tenant that holds is killed, a tenant that reacts to usage is not.

A tenant with 64 MiB and an allocator that takes 96 MiB share a group with 128 MiB. Once each, and small: this shows
that the parts work together, not how often.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from molt.units import MIB, SECOND_NS
from realproc.kernel.control_groups import ControlGroups
from realproc.kernel.guard import Ceilings, Guard
from realproc.kernel.limited_group import GroupV1
from realproc.kernel.pressure import Allocator, AllocatorSpec
from tests.realproc.tenant import HELD_BYTES, LIMIT_BYTES, RATE_BYTES_PER_S

ROOT = Path(__file__).resolve().parent.parent.parent
TAKEN_BYTES = 96 * MIB


@pytest.mark.parametrize("policy", ["hold", "threshold"])
def test_a_tenant_under_pressure(real_v1: ControlGroups, policy: str) -> None:
    """In either case the allocator takes all it should, and the kernel's peak counter has seen the limit kept."""
    with Guard(LIMIT_BYTES, Ceilings(LIMIT_BYTES, keep_free_bytes=64 * MIB), real_v1) as guard:
        folder = guard.group.folder
        tenant = subprocess.Popen(
            [sys.executable, "-m", "tests.realproc.tenant", str(folder), policy],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        guard.child(tenant.pid)
        assert tenant.stdout is not None
        assert tenant.stdout.readline() == b"ready\n"
        assert guard.group.read().usage_bytes >= HELD_BYTES
        with Allocator(AllocatorSpec(RATE_BYTES_PER_S, group=folder)) as allocator:
            guard.child(allocator.pid)
            allocator.hold(TAKEN_BYTES)
            assert allocator.wait_until_held(TAKEN_BYTES, 60 * SECOND_NS) is not None
            reading = guard.group.read()
        survived = tenant.poll() is None
        said, _ = tenant.communicate()
    assert (survived, tenant.returncode, reading.kills) == (
        (True, 0, 0) if policy != "hold" else (False, -9, 1)
    )
    assert said == (b"released\n" if policy != "hold" else b"")
    assert reading.peak_bytes is not None
    assert (reading.peak_bytes < LIMIT_BYTES) == (policy != "hold")


def test_an_allocator_that_was_killed_is_seen(real_groups: ControlGroups) -> None:
    """Alone in its group, it is the process that the kernel kills; later orders have no effect."""
    with Guard(16 * MIB, Ceilings(16 * MIB, keep_free_bytes=64 * MIB), real_groups) as guard:
        with Allocator(AllocatorSpec(group=guard.group.folder)) as allocator:
            allocator.hold(24 * MIB)
            assert allocator.wait_until_held(24 * MIB, 60 * SECOND_NS) is None
            assert not allocator.alive
            allocator.hold(MIB)
            assert allocator.holding().taken_bytes < 16 * MIB
        assert guard.group.read().kills == 1


def test_v1_pauses_instead_of_killing(real_v1: ControlGroups) -> None:
    """At the limit the allocator sleeps until there is room, and no process is killed."""
    with Guard(16 * MIB, Ceilings(48 * MIB, keep_free_bytes=64 * MIB), real_v1) as guard:
        group = guard.group
        assert isinstance(group, GroupV1)
        group.pause_at_limit(True)
        event = group.oom_event()
        with Allocator(AllocatorSpec(group=group.folder)) as allocator:
            guard.child(allocator.pid)
            allocator.hold(24 * MIB)
            assert select.select([event], [], [], 60)[0] == [event]
            assert group.paused
            assert allocator.holding().taken_bytes < 16 * MIB
            group.set_limit(48 * MIB)
            assert allocator.wait_until_held(24 * MIB, 60 * SECOND_NS) is not None
            assert not group.paused
            assert group.read().kills == 0
        os.close(event)
