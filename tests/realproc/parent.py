"""A program that starts an allocator, says which process it is, and waits to be killed."""

from __future__ import annotations

import signal

from molt.units import MIB
from realproc.kernel.pressure import Allocator, AllocatorSpec

if __name__ == "__main__":
    with Allocator(AllocatorSpec()) as allocator:
        allocator.hold(4 * MIB)
        print(allocator.pid, flush=True)
        signal.pause()
