"""Waiting for processes to be gone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

LOOKS = 1500


def gone(pid: int) -> bool:
    """Whether a process runs no more; its new parent may not have asked for its status yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until_gone(pids: Iterable[int], folder: Path = Path("/nonexistent")) -> None:
    """Fail if a process or a folder is still there after a while that is long on a busy machine."""
    pids = list(pids)
    for _ in range(LOOKS):
        left = [pid for pid in pids if not gone(pid)] + [folder] * folder.exists()
        if not left:
            return
        time.sleep(0.02)
    pytest.fail(f"still there: {left}")
