"""The page of the mutants is made of its JSON alone; the sample leaves out what is never run."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from benchmarks.mutants import PAGE, RESULTS, never_run, page, survivors, thin


def test_the_page_is_what_its_json_makes_and_every_survivor_is_judged() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(results)
    for sample in results:
        assert all(one["judgement"] for one in sample["survivors"])
        assert sample["killed"] + len(sample["survivors"]) == sample["tried"]


def test_a_session_is_thinned_and_read(tmp_path: Path) -> None:
    module, session = tmp_path / "module.py", tmp_path / "session.sqlite"
    module.write_text("def f(a: int | None) -> int:\n    return a + 1\n")
    assert len(never_run(str(module))) == 2
    with sqlite3.connect(session) as db:
        db.execute("CREATE TABLE work_items (job_id)")
        db.execute(
            "CREATE TABLE mutation_specs (module_path, operator_name, args, n, start_pos_row, c, er, ec, d, job_id)"
        )
        db.execute("CREATE TABLE work_results (test_outcome, diff, job_id)")
        places = {"annotation": (1, 13, 1, 14), "plus": (2, 13, 2, 14), "plus_again": (2, 13, 2, 14)}
        for job, span in places.items():
            db.execute("INSERT INTO work_items VALUES (?)", (job,))
            spec = (str(module), "core/ReplaceBinaryOperator", "{}", 0, *span, "f", job)
            db.execute("INSERT INTO mutation_specs VALUES (?,?,?,?,?,?,?,?,?,?)", spec)
    assert thin(session, 1, 10) == 1
    with sqlite3.connect(session) as db:
        ((job,),) = db.execute("SELECT job_id FROM work_items").fetchall()
        db.execute(
            "INSERT INTO work_results VALUES ('SURVIVED', '--- x\n+++ y\n-    a + 1\n+    a - 1\n', ?)",
            (job,),
        )
    found = survivors([session])
    assert (found["tried"], found["killed"]) == (1, 0)
    assert (found["survivors"][0]["was"], found["survivors"][0]["became"]) == ("a + 1", "a - 1")
