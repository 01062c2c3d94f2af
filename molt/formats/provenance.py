"""Where a result comes from: machine, versions, commit. Goes into every header and every JSON of figures."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from molt.paths import IMPORT_ROOT

_PACKAGES = ("molt", "torch", "transformers", "simpy", "tokenizers", "numpy")


def machine() -> dict[str, object]:
    """Processor, cores this process may use, memory in bytes, operating system and the number of its release."""
    return {
        "processor": _processor(),
        "cores": len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on; absent packages are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@functools.cache
def commit() -> str:
    """Commit of the checkout this code runs from, ``+`` appended if it has changes; ``"unknown"`` outside one."""
    head = _git(IMPORT_ROOT, "rev-parse", "HEAD")
    if head is None or not (IMPORT_ROOT / "pyproject.toml").exists():
        return "unknown"
    return head + ("+" if _git(IMPORT_ROOT, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(root), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cpuinfo(key: str, path: Path = Path("/proc/cpuinfo")) -> str | None:
    """What Linux says of the first processor under a key such as ``model name``; ``None`` where it does not."""
    try:
        with path.open(encoding="utf-8") as info:
            found = (line.partition(":")[2].strip() for line in info if line.startswith(key))
            return next(found, None)
    except OSError:
        return None


def _processor() -> str:
    return cpuinfo("model name") or platform.processor() or platform.machine()
