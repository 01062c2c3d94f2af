"""Tiny wheels that carry a piece of a file, and a pip that finds them and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

BOOBY_TRAP = "import pathlib; pathlib.Path(__file__).with_name('was-run').touch(); raise SystemExit('run')"


def write_wheel(folder: Path, name: str, piece: bytes, *, version: str = "1.0", path: str = "") -> Path:
    """A wheel with one piece at ``path`` (default ``<module>/data.bin``), whose own code must never run."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{module}/__init__.py", BOOBY_TRAP)
        archive.writestr(path or f"{module}/data.bin", piece)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def index_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder all that pip knows, as a user's own settings may."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder
