"""How many small faults in ``molt/core`` and ``molt/policies`` the tests notice: a sample of mutants, by cosmic-ray.

In a clone, with cosmic-ray installed:

    cosmic-ray init benchmarks/mutants.toml session.sqlite
    python -m benchmarks.mutants thin session.sqlite --seed 1 --places 400
    cosmic-ray exec benchmarks/mutants.toml session.sqlite     # may be stopped at any time
    python -m benchmarks.mutants show session.sqlite           # or several, where clones shared a sample

The sample goes to ``benchmarks/results/mutants.json``, in which every survivor is given a ``judgement``: a test is
missing and was added, or it is equivalent, or a test outside the subset notices. ``python -m benchmarks.mutants page``
makes ``docs/lab-notes/mutants.md``.

``thin`` leaves one mutant a place, in random order, so that a run that is stopped early is a fair sample. It leaves
out what is never run (annotations) and what cannot be survived (unions of types, patterns).
"""

from __future__ import annotations

import argparse
import ast
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tabulate import tabulate

from molt.units import show_percent
from reports.confidence import lower_bound

RESULTS = Path(__file__).resolve().parent / "results" / "mutants.json"
PAGE = RESULTS.parent.parent.parent / "docs" / "lab-notes" / "mutants.md"

Span = tuple[tuple[int, int], tuple[int, int]]


@cache
def never_run(path: str) -> tuple[Span, ...]:
    """Where a file has annotations, patterns, and unions at its top level."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    parts = [
        getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns", "pattern")
    ]
    parts += [
        node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)
    ]
    return tuple(_span(part) for part in parts if part is not None)


def _span(node: Any) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def thin(session: Path, seed: int, places: int) -> int:
    """Leave one mutant at each of so many places, in random order; returns the number of places there were."""
    with sqlite3.connect(session) as db:
        rows = db.execute("SELECT * FROM mutation_specs ORDER BY job_id").fetchall()
        Random(seed).shuffle(rows)  # noqa: S311
        chosen: dict[tuple[str, int, int], Any] = {}
        for row in rows:
            path, begin, end = row[0], (row[4], row[5]), (row[6], row[7])
            if not any(low <= begin and end <= high for low, high in never_run(path)):
                chosen.setdefault((path, *begin), row)
        db.execute("DELETE FROM mutation_specs")
        db.execute("DELETE FROM work_items")
        for row in list(chosen.values())[:places]:
            db.execute("INSERT INTO work_items VALUES (?)", (row[-1],))
            db.execute("INSERT INTO mutation_specs VALUES (?,?,?,?,?,?,?,?,?,?)", row)
    return len(chosen)


def survivors(sessions: Sequence[Path]) -> dict[str, Any]:
    """How many mutants were tried, and those that no test noticed: place, what it was and what it became."""
    rows = []
    for session in sessions:
        with sqlite3.connect(session) as db:
            rows += db.execute(
                "SELECT m.module_path, m.start_pos_row, m.operator_name, r.test_outcome, r.diff "
                "FROM work_results r JOIN mutation_specs m USING (job_id)"
            ).fetchall()
    alive = [
        {"place": f"{path}:{line}", "operator": operator.removeprefix("core/"), **_change(diff)}
        for path, line, operator, outcome, diff in sorted(rows)
        if outcome == "SURVIVED"
    ]
    return {"tried": len(rows), "killed": len(rows) - len(alive), "survivors": alive}


def _change(diff: str) -> dict[str, str]:
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    was, became = (" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return {"was": was, "became": became}


def page(samples: Sequence[dict[str, Any]]) -> str:
    """The samples as a page, in Markdown: what came of each, and every survivor with its judgement."""
    scores = [
        (one["when"], one["commit"], one["seed"], f"{one['tried']} of {one['places']:,}", *_score(one))
        for one in samples
    ]
    headers = ("sample", "commit", "seed", "tried of places", "equivalent", "noticed", "score", "95 % sure")
    sections = [
        "# Mutants",
        "How many small faults in `molt/core` and `molt/policies` the tests notice: random samples of mutants made by "
        "cosmic-ray, one a place, without annotations and unions of types (`benchmarks/mutants.py`). The score is the "
        "share that was noticed of those that are not equivalent, by the tests as they were when the sample was drawn: "
        "the fast ones that `benchmarks/mutants.toml` names. With 95 % confidence it is at least the last column for "
        "all such mutants. For every one that was missed a test was added.",
        tabulate(scores, headers, tablefmt="github", disable_numparse=True),
        *(_survivors(one) for one in samples),
    ]
    return "\n\n".join(sections) + "\n"


def _score(sample: dict[str, Any]) -> tuple[str, ...]:
    kinds = Counter(one["judgement"].partition(":")[0] for one in sample["survivors"])
    real = sample["tried"] - kinds["equivalent"]
    noticed = real - kinds["a test was missing, and kills it now"]
    return (
        str(kinds["equivalent"]),
        f"{noticed} of {real}",
        show_percent(noticed / real, 1),
        show_percent(lower_bound(noticed, real), 1),
    )


def _survivors(sample: dict[str, Any]) -> str:
    rows = [
        (one["place"], f"`{one['was']}`", f"`{one['became']}`", one["judgement"])
        for one in sample["survivors"]
    ]
    table = tabulate(rows, ("place", "was", "became", "judgement"), tablefmt="github")
    return "\n\n".join([f"## What was not noticed: {sample['when']}", *sample.get("notes", ()), table])


def main() -> None:
    """Thin a session, show what came of one, or make the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("thin", "show", "page"))
    parser.add_argument("session", type=Path, nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--places", type=int, default=400)
    asked = parser.parse_args()
    if asked.do == "thin":
        print(f"{thin(*asked.session, asked.seed, asked.places)} places")
    elif asked.do == "page":
        PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8", newline="\n")
    else:
        print(json.dumps(survivors(asked.session), indent=1))


if __name__ == "__main__":
    main()
