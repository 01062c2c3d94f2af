"""The rules of the layout, read off the import statements."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("molt", "sim", "realproc", "reports")
PURE = ("molt/core", "molt/policies")
WORLDLY = {
    "time",
    "random",
    "threading",
    "asyncio",
    "os",
    "subprocess",
    "socket",
    "secrets",
    "datetime",
    "pathlib",
    "io",
}


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _offenders(folder: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _sources(folder)
        for name in _imports(path)
        if any(name == bad or name.startswith(bad + ".") for bad in forbidden)
    ]


@pytest.mark.parametrize("folder", PURE)
def test_the_core_knows_no_world(folder: str) -> None:
    """Core and policies import the standard library and the core, and nothing that has a clock or does I/O."""
    for path in _sources(folder):
        for name in _imports(path):
            top = name.partition(".")[0]
            assert (
                top in sys.stdlib_module_names
                or name.startswith(PURE[0].replace("/", "."))
                or name.startswith(PURE[1].replace("/", "."))
            ), f"{path.relative_to(ROOT)} imports {name}"
            assert top not in WORLDLY, f"{path.relative_to(ROOT)} imports {name}"


def test_the_worlds_do_not_know_each_other() -> None:
    assert _offenders("sim", {"realproc"}) == []
    assert _offenders("realproc", {"sim"}) == []
    assert _offenders("molt", {"realproc", "sim", "reports"}) == [
        f"molt/cli.py imports {name}"
        for name in _imports(ROOT / "molt/cli.py")
        if name.startswith(PACKAGES[1:])
    ]


def test_simpy_is_a_shell() -> None:
    """At most three files know the clock of the simulator."""
    knowing = {
        path.name for folder in PACKAGES for path in _sources(folder) if "simpy" in set(_imports(path))
    }
    assert knowing <= {"world.py", "memory.py", "workload.py"}


def test_only_the_training_of_pico_uses_transformers() -> None:
    """Rungs run on ``molt.models.decoder``; transformers' models are what tests compare it with."""
    offenders = [o for o in _offenders("molt", {"transformers"}) if "molt/models/pico/" not in o]
    assert offenders == []


def test_nothing_loads_code_from_data() -> None:
    """No pickle, no eval, no remote code, no unsafe YAML anywhere in the packages."""
    for folder in PACKAGES:
        assert _offenders(folder, {"pickle", "dill", "cloudpickle", "marshal", "shelve"}) == []
        for path in _sources(folder):
            text = path.read_text(encoding="utf-8")
            assert "trust_remote_code=True" not in text, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in {"eval", "exec"}, f"{path}:{node.lineno}"


def test_the_modelled_engine_needs_no_torch() -> None:
    """Everything that ``--engine modelled`` imports at start leaves torch and transformers alone."""
    import subprocess

    program = (
        "import sys, sim.run, reports.from_run; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_what_bounds_and_presses_real_processes_needs_no_torch() -> None:
    """The supervisor and the allocators of a real run are small: groups, pressure, signals and the guard."""
    import subprocess

    program = (
        "import sys, realproc.guard, realproc.lookout, realproc.pressure, realproc.watchdog, realproc.attendant; "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
