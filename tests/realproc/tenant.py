"""A tenant with 64 MiB in a group: ``python -m tests.realproc.tenant FOLDER hold|SIGNAL``.

It says ``ready`` when it holds them. Woken by a signal, it gives them back when the usage of the group will be at its
limit within half a second, and says ``released``. Of all in the group it is the one the kernel would rather kill, as an
app in the background is.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path

from molt.live import parent_death
from molt.units import MIB, SECOND_NS
from realproc.kernel import limited_group
from realproc.kernel.limited_group import GroupV1
from realproc.kernel.signals import SIGNALS, Meter, UsageReading
from realproc.kernel.touched_pages import TouchedBlocks
from realproc.supervisor.growth import WATCH_INTERVAL_NS, SignalWatch, growth, remember

HELD_BYTES = 64 * MIB
LIMIT_BYTES = 128 * MIB
RATE_BYTES_PER_S = 48 * MIB
REACTION_NS = SECOND_NS // 2
LINE_BYTES = LIMIT_BYTES - 4 * MIB


def wait_until_short(watch: SignalWatch) -> None:
    """Until usage would be above the line when the reaction is over."""
    recent: deque[UsageReading] = deque()
    while True:
        seen = watch.look(time.monotonic_ns() + SECOND_NS)
        if seen.usage_bytes + growth(recent, seen, 1) * REACTION_NS // SECOND_NS > LINE_BYTES:
            return
        remember(recent, seen)


def main(folder: Path, policy: str) -> None:
    """Hold, and react or not, until the input ends."""
    parent_death.tie_to_parent(os.getppid())
    parent_death.offer_to_oom_killer(1000)
    limited_group.join(folder)
    group, blocks = GroupV1(folder), TouchedBlocks()
    while blocks.taken_bytes < HELD_BYTES:
        blocks.grow(HELD_BYTES)
    watch = None
    if policy != "hold":
        growth_bytes = RATE_BYTES_PER_S * (REACTION_NS + WATCH_INTERVAL_NS) // SECOND_NS
        watch = SignalWatch(SIGNALS[policy](group, LINE_BYTES - growth_bytes), Meter.of(group).read)
    print("ready", flush=True)
    if watch is not None:
        wait_until_short(watch)
        while blocks.taken_bytes:
            blocks.shrink()
        print("released", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
