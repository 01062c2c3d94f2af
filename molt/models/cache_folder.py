"""Where Molt keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$MOLT_CACHE``, or else ``~/.cache/molt``; it may not exist yet."""
    return Path(os.environ.get("MOLT_CACHE") or Path.home() / ".cache" / "molt")
