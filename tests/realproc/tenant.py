"""A tenant with 64 MiB in a group: ``python -m tests.realproc.tenant FOLDER hold|SIGNAL``.

It says ``ready`` when it holds them. Woken by a signal, it gives them back when the usage of the group will be at its
limit within half a second, and says ``released``. Of all in the group it is the one the kernel would rather kill, as an
app in the background is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from molt.live import lifeline
from realproc import cgroup
from realproc.cgroup import GroupV1
from realproc.lookout import SECOND_NS, Lookout, Reaction
from realproc.resident import MIB, Blocks
from realproc.signals import SIGNALS, Meter

HELD_BYTES = 64 * MIB
LIMIT_BYTES = 128 * MIB
RATE_BYTES_PER_S = 48 * MIB
REACTION = Reaction(duration_ns=SECOND_NS // 2, margin_bytes=4 * MIB)


def main(folder: Path, policy: str) -> None:
    """Hold, and react or not, until the input ends."""
    lifeline.tie_to_parent(os.getppid())
    lifeline.offer_to_oom_killer(1000)
    cgroup.join(folder)
    group, blocks = GroupV1(folder), Blocks()
    while blocks.resident_bytes < HELD_BYTES:
        blocks.grow(MIB)
    lookout = None
    if policy != "hold":
        signal = SIGNALS[policy](group, REACTION.wake_bytes(LIMIT_BYTES, RATE_BYTES_PER_S))
        lookout = Lookout(signal, Meter.of(group), REACTION)
    print("ready", flush=True)
    if lookout is not None and lookout.wait(60 * SECOND_NS) is not None:
        while blocks.resident_bytes:
            blocks.shrink()
        print("released", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
