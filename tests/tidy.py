"""Style as a habit: what a reader stumbles over, counted over the whole checkout. ``make tidy`` prints it.

What is *broken* fails the suite (``tests/test_tidy.py``): a folder without its line in the map of ``ARCHITECTURE.md``,
a path or module in prose that is not there, a public class name or a constant with two meanings. The rest is a matter
of taste, and a list to look at in a review: long functions and files, names that occur twice, values that are defined
twice, words that were retired.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("molt", "sim", "realproc", "reports")
CODE = (*PACKAGES, "tests", "benchmarks")
SHOWN = 12
EXAMPLES = (
    "molt/core/scheduler.py",
    "molt/worlds/conductor.py",
    "molt/core/legality.py",
    "reports/metrics.py",
)
"""What good looks like today."""

_PATH = re.compile(
    r"(?<![\w./<-])((?:molt|sim|realproc|reports|scenarios|tests|benchmarks|docs)/[\w./-]*\w(?:\.\w+|/))(?![\w<*{])"
)
_FILE = re.compile(r"``?(\w+\.py)``?")
_MODULE = re.compile(r"(?:``|-m )((?:molt|sim|realproc|reports|tests|benchmarks)(?:\.\w+)+)")
_MAPPED = re.compile(r"^\| `([\w./]+)/` \|", re.MULTILINE)
_MADE = ("reports/published/", "scenarios/traces/")  # whose files a command of the reader makes
_NO_MODULE = {"molt.json"}  # looks like a module, and is a file
_ELSEWHERE = {"convert_hf_to_gguf.py"}  # a file of llama.cpp
_PLACEHOLDER = re.compile(r"/[A-Z]+\.")
_RETIRED = re.compile(
    r"(?i)\b(whoever|nobody|somebody|fore(?:told|tells?)|told|heard|seams?|crossings?|migrat\w+)\b"
)


@dataclass(frozen=True, slots=True)
class Length:
    """Lines of a function or of a file, or how many of them have something."""

    lines: int
    where: str


def sources(*folders: str) -> list[Path]:
    """Python files below some folders, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def short(path: Path) -> str:
    """A path below the root, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


# --- a matter of taste ---


def function_lengths() -> list[Length]:
    """Functions of the packages, the longest first."""
    found = (
        Length((node.end_lineno or node.lineno) - node.lineno + 1, f"{short(path)}:{node.lineno} {node.name}")
        for path in sources(*PACKAGES)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sorted(found, key=lambda one: -one.lines)


def file_lengths() -> list[Length]:
    """Files of the packages, the longest first."""
    found = (Length(len(path.read_text("utf-8").splitlines()), short(path)) for path in sources(*PACKAGES))
    return sorted(found, key=lambda one: -one.lines)


def repeated_file_names() -> dict[str, list[str]]:
    """Names that several files of the packages have, but for those that Python asks for."""
    return _repeated((path.name, short(path)) for path in sources(*PACKAGES) if path.name[:2] != "__")


def values_defined_twice() -> dict[str, list[str]]:
    """Public constants with one value that several files define."""
    return {name: [place for place, _ in found] for name, found in _constants() if len(_values(found)) == 1}


def retired_words() -> list[Length]:
    """Files in whose prose or names words stand that have plainer ones, with how many; the most first."""
    found = (
        Length(len(_RETIRED.findall(prose.replace("_", " "))), short(path))
        for path, prose in (*_pages(), *((path, path.read_text("utf-8")) for path in sources(*CODE)))
    )
    return sorted((one for one in found if one.lines), key=lambda one: -one.lines)


# --- broken ---


def repeated_classes() -> dict[str, list[str]]:
    """Public class names of the packages that mean two things."""
    return _repeated(
        (node.name, short(path))
        for path in sources(*PACKAGES)
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )


def constants_with_two_meanings() -> dict[str, list[str]]:
    """Public constants that are not the same in every file that defines them; one of a single file is private."""
    return {
        name: [f"{place} = {value[:60]}" for place, value in found]
        for name, found in _constants()
        if len(_values(found)) > 1
    }


def unmapped_folders() -> list[str]:
    """Folders of the packages without a line in the map of ``ARCHITECTURE.md``."""
    return sorted(_folders() - _mapped())


def mapped_folders_that_are_not_there() -> list[str]:
    """Lines of that map without a folder."""
    return sorted(folder for folder in _mapped() if not (ROOT / folder).is_dir())


def dead_references() -> list[str]:
    """Paths, files and modules in prose (docstrings, comments, Markdown) that do not exist."""
    names = {path.name for path in ROOT.rglob("*") if ".venv" not in path.parts}
    found = []
    for path, prose in _prose():
        found += [
            f"{short(path)}: {name}"
            for name in _PATH.findall(prose)
            if not (name.startswith(_MADE) or _PLACEHOLDER.search(name) or (ROOT / name).exists())
        ]
        if path.suffix == ".py":
            found += [
                f"{short(path)}: {name}" for name in _FILE.findall(prose) if name not in names | _ELSEWHERE
            ]
        found += [
            f"{short(path)}: {name}"
            for name in _MODULE.findall(prose)
            if name not in _NO_MODULE and not _is_there(name)
        ]
    return sorted(set(found))


BROKEN = {
    "public class names with two meanings": repeated_classes,
    "constants with two meanings": constants_with_two_meanings,
    "folders that the map lacks": unmapped_folders,
    "folders of the map that are not there": mapped_folders_that_are_not_there,
    "paths and modules in prose that are not there": dead_references,
}


# --- reading ---


def _repeated(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for name, place in pairs:
        places[name].append(place)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def _constants() -> list[tuple[str, list[tuple[str, str]]]]:
    """Public constants that several files define: the files, and the expressions."""
    places = defaultdict(list)
    for path in sources(*PACKAGES):
        for node in parsed(path).body:
            for name, value in _assigned(node):
                if name.isupper() and name[0] != "_" and len(name) > 1:
                    places[name].append((short(path), ast.unparse(value)))
    return [(name, found) for name, found in sorted(places.items()) if len(found) > 1]


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((one.id, value) for one, value in pairs if isinstance(one, ast.Name))


def _values(found: Iterable[tuple[str, str]]) -> set[str]:
    return {value for _, value in found}


def _folders() -> set[str]:
    """Folders of the packages with code in them."""
    return {short(path.parent) for path in sources(*PACKAGES)}


def _mapped() -> set[str]:
    return set(_MAPPED.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))


def _pages() -> Iterator[tuple[Path, str]]:
    """Markdown, without generated pages and history."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    yield from ((page, page.read_text("utf-8")) for page in sorted(pages) if page.name != "CHANGELOG.md")


def _prose() -> Iterator[tuple[Path, str]]:
    """What people read: pages, docstrings and comments."""
    yield from _pages()
    for path in sources(*CODE):
        yield path, "\n".join(_words(path))


def _words(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def _is_there(module: str) -> bool:
    """Whether a dotted name is a module, or an attribute that a module names."""
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        if place.with_suffix(".py").is_file() or place.is_dir():
            file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
            rest = parts[count : count + 1]
            return not rest or (
                file.is_file() and bool(re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")))
            )
    return False


# --- the list ---


def report() -> str:
    """Everything, as text: what is broken first."""
    parts = []
    for title, look in BROKEN.items():
        found = look()
        lines = (
            found if isinstance(found, list) else [f"{name}: {', '.join(at)}" for name, at in found.items()]
        )
        parts.append("\n".join([f"{title}: {len(lines)}", *(f"  {line}" for line in lines)]))
    ranked = {
        "longest functions": function_lengths(),
        "longest files": file_lengths(),
        "retired words": retired_words(),
    }
    for title, lengths in ranked.items():
        rows = [(one.lines, one.where) for one in lengths[:SHOWN]]
        parts.append(f"{title} (of {len(lengths)})\n{tabulate(rows, tablefmt='plain')}")
    for title, twice in (
        ("file names that occur twice", repeated_file_names()),
        ("values that are defined twice", values_defined_twice()),
    ):
        parts.append(
            "\n".join([f"{title}: {len(twice)}", *(f"  {n}: {', '.join(at)}" for n, at in twice.items())])
        )
    parts.append(f"what good looks like: {', '.join(EXAMPLES)}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(report())
    sys.exit(1 if any(look() for look in BROKEN.values()) else 0)
