"""The order of the house: who may import whom, read off the import statements.

The storeys and the absence of circles are contracts of import-linter in ``pyproject.toml``; imports inside of functions
count. What those contracts cannot say is here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("molt", "sim", "realproc", "reports")
PURE = ("molt/core", "molt/policies")
PURE_STANDARD = {
    "__future__",
    "abc",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "math",
    "types",
    "typing",
}
"""What the core and the policies may import beside the core itself."""
FORWARDING = {"molt.kv.corpus", "molt.kv.fit"}
"""Documented names of commands, which only forward to where the command is."""
SIMPY = {"sim/world.py", "sim/oom_killer.py"}


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Modules that a file imports, anywhere in it, each with the name that is taken from it or an empty one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from ((node.module, alias.name) for alias in node.names)


def _importers_of(libraries: set[str]) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for folder in PACKAGES
        for path in _sources(folder)
        if any(module.partition(".")[0] in libraries for module, _ in _imports(path))
    }


def test_every_contract_of_import_linter_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """The storeys, the order within them and the absence of circles, as ``lint-imports`` prints them."""
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Circles of files, counted over the whole graph of the four packages; lazy imports count."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imported = {
        module: graph.find_modules_directly_imported_by(module) for module in graph.modules - FORWARDING
    }
    TopologicalSorter(imported).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("folder", PURE)
def test_the_core_knows_no_world(folder: str) -> None:
    """Core and policies import the core and a few modules of the standard library, none with a clock or I/O."""
    for path in _sources(folder):
        for module, name in _imports(path):
            if module.startswith(("molt.core", "molt.policies")):
                continue
            assert module in PURE_STANDARD, f"{path.relative_to(ROOT)} imports {module} ({name})"


def test_only_the_command_line_knows_simulator_and_real_processes() -> None:
    """``molt`` is a library to the worlds around it; its command line alone calls them."""
    knowing = {path for path in _importers_of({"sim", "realproc", "reports"}) if path.startswith("molt/")}
    assert knowing == {f"molt/cli/panel_{name}.py" for name in ("measure", "prove", "simulate")}


def test_simpy_is_a_shell() -> None:
    """Two files know the clock of the simulator."""
    assert _importers_of({"simpy"}) == SIMPY


def test_only_the_training_of_pico_uses_transformers() -> None:
    """Rungs run on ``molt.models.decoder``; transformers' models are what tests compare it with."""
    assert all(path.startswith("molt/models/pico/") for path in _importers_of({"transformers"}))


def test_threads_wait_as_they_should_wherever_torch_is_used() -> None:
    """``molt.openmp`` is imported by a package before any file of it can import torch."""
    unprepared = {
        path
        for path in _importers_of({"torch"})
        if not any(
            (ROOT / parent / "__init__.py").is_file()
            and "import molt.openmp" in (ROOT / parent / "__init__.py").read_text(encoding="utf-8")
            for parent in Path(path).parents
        )
        and "import molt.openmp" not in (ROOT / path).read_text(encoding="utf-8")
    }
    assert unprepared == set()


def test_nothing_loads_code_from_data() -> None:
    """No pickle, no eval, no remote code, no unsafe YAML anywhere in the packages."""
    assert _importers_of({"pickle", "dill", "cloudpickle", "marshal", "shelve"}) == set()
    for folder in PACKAGES:
        for path in _sources(folder):
            text = path.read_text(encoding="utf-8")
            assert "trust_remote_code=True" not in text, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in {"eval", "exec"}, f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("what", "modules", "absent"),
    [
        ("the modelled engine", "sim.run, reports.from_run", {"torch", "transformers"}),
        ("the server's parent process", "molt.server.command", {"torch", "transformers"}),
        (
            "what bounds and presses real processes",
            "realproc.kernel.guard, realproc.kernel.pressure, realproc.kernel.watchdog, realproc.supervisor.growth, "
            "realproc.supervisor.monitor",
            {"torch", "transformers", "numpy"},
        ),
    ],
)
def test_what_needs_no_tensor_library_imports_none(what: str, modules: str, absent: set[str]) -> None:
    """Start-up of seconds, and memory, that these parts do without."""
    program = f"import sys, {modules}; print(sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]", what
