"""A child process that cannot outlive its parent.

On Linux the kernel sees to it; everywhere, a child that waits for its parent looks whether it is still there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def tie_to_parent(parent_pid: int) -> None:
    """Have this process killed when its parent ends; ends it at once if the parent is gone already.

    The kernel goes by the *thread* that started this process: start children from a thread that stays.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    end_if_orphaned(parent_pid)


def end_if_orphaned(parent_pid: int) -> None:
    """End this process, without any clearing up, if its parent is not there any more."""
    if os.getppid() != parent_pid:
        os._exit(1)


def offer_to_oom_killer(score: int) -> None:
    """Make this process a better victim: 0 (no more than it is) to 1000. A score is never lowered.

    Within one control group the kernel kills the process with most memory, after adding a thousandth of the limit for
    each point. Does nothing where there is no such score.
    """
    file = Path("/proc/self/oom_score_adj")
    if file.exists() and score > int(file.read_text(encoding="ascii")):
        file.write_text(str(score), encoding="ascii")
