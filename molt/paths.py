"""The folders that Molt uses: where its packages lie, and where it keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path

from molt.errors import LadderError

IMPORT_ROOT = Path(__file__).resolve().parent.parent
"""The folder that ``molt``, ``sim``, ``realproc`` and ``reports`` are imported from; in a checkout, its root."""


def cache_folder() -> Path:
    """``$MOLT_CACHE``, or else ``~/.cache/molt``; it may not exist yet. ``LadderError``: there is no home folder."""
    folder = find_cache_folder()
    if folder is None:
        raise LadderError("this user has no home folder; set MOLT_CACHE to a folder for fetched weights")
    return folder


def find_cache_folder() -> Path | None:
    """``cache_folder``, or ``None`` where this user has no home folder: what is kept there is not here then."""
    if named := os.environ.get("MOLT_CACHE"):
        return Path(named)
    try:
        return Path.home() / ".cache" / "molt"
    except RuntimeError:  # neither HOME nor an entry for this user
        return None
