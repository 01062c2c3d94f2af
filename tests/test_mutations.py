"""Two thousand damaged files of every kind that people hand us: each gives a result or one clear line.

``tests/mutations.py`` makes and tries them, in a process with little memory. At night there are ten times as many, from
another seed. What failed is tried again with ``python -m tests.mutations TARGET SEED COUNT``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from molt.formats.log import LogError
from molt.paths import IMPORT_ROOT
from reports.run_log import RunLog
from tests.mutations import TARGETS
from tests.reports.story import survivor

IS_NIGHT = os.environ.get("MOLT_HYPOTHESIS") == "night"
SEED = time.time_ns() if IS_NIGHT else 0
CASES = {
    **{
        "report": 500,
        "replay": 150,
        "recorded memory": 100,
        "agreement": 100,
        "publish": 150,
        "campaign": 250,
    },
    **{"tables": 100, "proof": 100, "session": 100, "trace": 100, "tokenizer": 100, "profile": 100},
    **{"scenario": 100, "ladder": 50},
}


def test_there_are_two_thousand_over_all_targets() -> None:
    assert set(CASES) == set(TARGETS)
    assert sum(CASES.values()) == 2000


@pytest.mark.timeout(3600 if IS_NIGHT else 120)
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_give_a_result_or_one_line(name: str) -> None:
    count = CASES[name] * (10 if IS_NIGHT else 1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutations", name, str(SEED), str(count)],
        capture_output=True,
        text=True,
        cwd=IMPORT_ROOT,
    )
    assert done.returncode == 0, done.stderr
    failures = [json.loads(line) for line in done.stdout.splitlines()]
    assert not failures, f"{len(failures)} of {count}, the first: {failures[0]}"


def test_a_count_of_tokens_that_the_record_does_not_have_is_refused(tmp_path: Path) -> None:
    """It would make a report hold a hundred thousand million tokens."""
    path = survivor().write(tmp_path)
    path.write_text(
        path.read_text(encoding="utf-8").replace('"count":3', '"count":99999999999'), encoding="utf-8"
    )
    with pytest.raises(LogError, match="99999999999 tokens with 3 of stamps_ns"):
        RunLog.read(path)


@pytest.mark.parametrize(
    ("module", "file", "text"),
    [
        ("molt.cli.main report {}", "molt/events.jsonl", '{"kind":"header","schema":1}\n{"kind":"end"}\n'),
        ("reports.publish {}", "summary.json", '{"scenario": "x"}'),
        ("reports.campaign {}/pairs.jsonl", "pairs.jsonl", '{"session": "x"}\n{"pair": [1]}\n'),
        ("reports.eval_page {}/table.json", "table.json", '{"table": "drift"}'),
        ("reports.prove_page {}/prove.json", "prove.json", "[" * 100_000),
        ("reports.demo_page {}", "session.json", '{"ladder": NaN}'),
        (
            "reports.chrome_trace {}/x.jsonl {}/trace.json",
            "x.jsonl",
            '{"kind":"header","schema":1,"ladder":[]}\n',
        ),
    ],
)
def test_a_command_ends_with_status_2_and_one_line(module: str, file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text, encoding="utf-8")
    name, *words = module.replace("{}", str(tmp_path)).split()
    call = ["-m", name] if name.startswith("reports.") else ["-c", f"from {name} import main; main()"]
    done = subprocess.run([sys.executable, *call, *words], capture_output=True, text=True, cwd=IMPORT_ROOT)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
