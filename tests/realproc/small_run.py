"""A small guarded run, to be ended in every way: ``python -m tests.realproc.small_run wait|raise|abort``.

An allocator holds 8 MiB in the group, another process is outside of it. It prints where everything is, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from molt.units import MIB
from realproc.kernel.guard import Ceilings, Guard
from realproc.kernel.pressure import Allocator, AllocatorSpec

LIMIT_BYTES = 64 * MIB
CEILINGS = Ceilings(limit_max_bytes=LIMIT_BYTES, keep_free_bytes=64 * MIB)


def main(end: str) -> None:
    """Run until the end that was asked for."""
    with Guard(LIMIT_BYTES, CEILINGS) as guard:
        outside = subprocess.Popen(["sleep", "600"])
        guard.child(outside.pid)
        with Allocator(AllocatorSpec(group=guard.group.folder)) as allocator:
            guard.child(allocator.pid)
            allocator.hold(8 * MIB)
            held = allocator.wait_until_held(8 * MIB, 60 * 10**9)
            guard.check()
            facts = {
                "folder": str(guard.group.folder),
                "pids": [outside.pid, allocator.pid, guard.watchdog_pid],
                "held_bytes": held.taken_bytes if held else None,
                "usage_bytes": guard.group.read().usage_bytes,
            }
            print(json.dumps(facts), flush=True)
            match end:
                case "wait":
                    signal.pause()
                case "raise":
                    raise RuntimeError("made up")
                case "abort":
                    os.abort()


if __name__ == "__main__":
    main(sys.argv[1])
