"""The folders that Molt uses: where its packages lie, and where it keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path

IMPORT_ROOT = Path(__file__).resolve().parent.parent
"""The folder that ``molt``, ``sim``, ``realproc`` and ``reports`` are imported from; in a checkout, its root."""


def cache_folder() -> Path:
    """``$MOLT_CACHE``, or else ``~/.cache/molt``; it may not exist yet."""
    return Path(os.environ.get("MOLT_CACHE") or Path.home() / ".cache" / "molt")
