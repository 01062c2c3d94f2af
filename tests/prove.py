"""Everything that is claimed of the core and the simulator, tried again: ``molt prove``, and ``molt prove --full``.

One JSON says what was tried, how often, from which seeds, on which commit, what fired, and the worst that was found
beside the bound. A rule that breaks fails the proof; so does a mechanism that never fired, since then nothing was
shown of it.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import multiprocess
import typer
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from rich.console import Console

from molt.formats import provenance
from molt.formats.new_file import check_folder, check_new_file, save_new, unused
from molt.jobs.plugins import make_policy
from sim.fuzz import run_campaign
from tests.core.test_machine import EVERY_TIME, CalmMachine
from tests.exhaustive import ALONE, LEVELS, PLENTY, Broken, Search
from tests.worst import worst_of_both

ROOT = Path(__file__).resolve().parent.parent
MACHINES = {machine.__name__: machine for machine in EVERY_TIME}
PROVE = Path("prove.json")
BATCH, STEPS = 20, 100
"""Examples drawn from one seed, and steps in each at most."""
WAVE = 4
"""Seeds that are drawn before it is looked whether there are steps enough."""
SUITES = {
    "metamorphic_and_analytic": (
        "tests/sim/test_metamorphic.py",
        "tests/sim/test_differential.py",
        "tests/sim/test_queue.py",
        "tests/core/test_bound.py",
    ),
    "allocation_failures": ("tests/engine/test_allocation_failures.py",),
}
"""Tests that are a part of the proof as they are."""


@dataclass(frozen=True, slots=True)
class Form:
    """How much is tried: steps of the rule machines, depth of the search of worlds of three tenants and of one
    ``alone``, seeds of the fuzz, and worlds in which the worst is looked for."""

    steps: int
    depth: int
    alone: int
    seeds: int
    worlds: int


QUICK = Form(steps=20_000, depth=5, alone=16, seeds=1000, worlds=200)
FULL = Form(steps=1_000_000, depth=7, alone=60, seeds=10_000, worlds=2000)


# --- the rule machines ---


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of the examples drawn for one machine from one seed: what fired, ``steps`` among it, and what broke."""

    machine: str
    seed: int
    fired: dict[str, int]
    failure: str | None
    commit: str


@dataclass(slots=True)
class Machines:
    """What the rule machines did, and what fired in which of them.

    A batch that broke a rule is done again when the proof goes on; where it holds by then, it is ``mended``.
    """

    steps: int = 0
    batches: set[tuple[str, int]] = field(default_factory=set)
    commits: Counter[str] = field(default_factory=Counter)
    """Steps by commit."""
    fired: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in MACHINES})
    broken: dict[tuple[str, int], str] = field(default_factory=dict)
    mended: list[str] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Count one more batch."""
        task = (batch.machine, batch.seed)
        self.steps += batch.fired["steps"]
        self.commits[batch.commit] += batch.fired["steps"]
        self.fired[batch.machine].update(batch.fired)
        if batch.failure is not None:
            self.broken[task] = f"{batch.machine}, seed {batch.seed}: {batch.failure}"
            return
        self.batches.add(task)
        if task in self.broken:
            self.mended.append(self.broken.pop(task))

    def document(self) -> dict[str, Any]:
        """What the JSON holds."""
        return {
            "steps": self.steps,
            "examples": BATCH * len(self.batches),
            "seeds": 1 + max((number for _, number in self.batches), default=-1),
            "commits": dict(self.commits),
            "fired": {name: dict(sorted(counts.items())) for name, counts in self.fired.items()},
            "silent": self.silent,
            "failures": list(self.broken.values()),
            "mended": self.mended,
        }

    @property
    def silent(self) -> list[str]:
        """What should have fired in a machine and never did."""
        return [
            f"{machine.__name__}: {name}"
            for machine, expected in EVERY_TIME.items()
            for name in sorted(expected - (+self.fired[machine.__name__]).keys())
        ]


def run_batch(task: tuple[str, int]) -> Batch:
    """Draw one batch of examples for a machine from a seed."""
    name, number = task
    parent = MACHINES[name]
    fired: Counter[str] = Counter()
    machine: type[CalmMachine] = seed(number)(type(name, (parent,), {"fired": fired}))
    drawn = settings(
        max_examples=BATCH,
        stateful_step_count=STEPS,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    failure = None
    try:
        run_state_machine_as_test(machine, settings=drawn)
    except Exception as error:  # whatever it is, the proof has failed, and goes on to see what else does
        failure = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Batch(name, number, dict(fired), failure, provenance.commit())


def run_machines(steps: int, jobs: int, log: Path | None = None) -> Machines:
    """Batches of all machines in turn, from one seed after the other, until so many steps are done.

    ``log`` gets a line a batch; those it has already are counted, and not done again but where they broke a rule.
    """
    done = Machines()
    for line in log.read_text(encoding="utf-8").splitlines() if log is not None and log.exists() else ():
        done.add(Batch(**json.loads(line)))
    tasks = ((name, number) for number in itertools.count() for name in MACHINES)
    left = (task for task in tasks if task not in done.batches)
    with multiprocess.get_context("spawn").Pool(jobs) as pool:
        while done.steps < steps:
            for batch in pool.imap_unordered(run_batch, list(itertools.islice(left, WAVE * len(MACHINES)))):
                done.add(batch)
                if log is not None:
                    with log.open("a", encoding="utf-8") as sink:
                        print(json.dumps(asdict(batch)), file=sink)
    return done


# --- the parts ---


def small_worlds(depth: int, alone: int = 60) -> dict[str, Any]:
    """Every state of three tenants to a depth, and of one to the depth ``alone``, where there are no more."""
    policy = make_policy("molt", {})
    searches = {
        "three_tenants": (Search(policy), depth),
        "one_tenant": (Search(policy, (LEVELS[0], ALONE + 4, PLENTY), (1, 0)), alone),
    }
    failures = []
    for name, (search, limit) in searches.items():
        try:
            search.run(limit)
        except Broken as broken:
            failures.append(f"{name}: {broken}")
    return {**{name: asdict(search.found) for name, (search, _) in searches.items()}, "failures": failures}


def run_suite(files: tuple[str, ...]) -> dict[str, Any]:
    """Run test files as they are; how many tests there were, and the names of those that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--no-header", *files]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    counts = {word: int(number) for number, word in _pairs(lines[-1])} if lines else {}
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode != 0 and not failed:
        failed = [f"pytest ended with {done.returncode}: {done.stderr.strip()[-300:]}"]
    return {"files": list(files), "passed": counts.get("passed", 0), "failed": failed}


def _pairs(summary: str) -> Iterator[tuple[str, str]]:
    words = summary.replace(",", "").split()
    return ((number, word) for number, word in itertools.pairwise(words) if number.isdigit())


def prove(form: Form, jobs: int, work: Path | None = None, say: Any = print) -> dict[str, Any]:
    """Try everything; the document, whose ``failures`` are empty where all held.

    With a folder ``work``, a part that is finished there is not done again; each says on which commit it was.
    """
    began, begin = datetime.now(UTC), time.perf_counter()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "small_worlds": lambda: small_worlds(form.depth, form.alone),
        "worst_found": lambda: worst_of_both(form.worlds, 1),
        **{name: lambda files=files: run_suite(files) for name, files in SUITES.items()},  # type: ignore[misc]
        "fuzz": lambda: run_campaign(0, form.seeds, jobs).document(),
        "rule_machines": lambda: run_machines(
            form.steps, jobs, None if work is None else work / "machines.jsonl"
        ).document(),
    }
    done = {}
    for name, run in parts.items():
        say(name)
        done[name] = _kept(None if work is None else work / f"{name}.json", run)
    machines, fuzzed, worst = done["rule_machines"], done["fuzz"], done["worst_found"]
    return {
        "asked": asdict(form),
        "began": began.isoformat(timespec="seconds"),
        "wall_s": round(time.perf_counter() - begin, 1),
        "jobs": jobs,
        "nice": os.nice(0),
        "commit": provenance.commit(),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        **done,
        "failures": [
            *machines["failures"],
            *done["small_worlds"]["failures"],
            *fuzzed["failures"],
            *_beyond(worst),
            *(line for name in SUITES for line in done[name]["failed"]),
            *(f"{name}: no test" for name in SUITES if not done[name]["passed"]),
        ],
        "silent": [*machines["silent"], *(f"fuzz: {name}" for name in fuzzed["silent"])],
    }


def _kept(path: Path | None, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a part gave when it was last finished, or gives now."""
    if path is not None and path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    begin = time.perf_counter()
    found = {"commit": provenance.commit(), **run()}
    found.setdefault("wall_s", round(time.perf_counter() - begin, 1))
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _beyond(worst: dict[str, Any]) -> list[str]:
    return [
        f"{name}: beyond the bound: {of}"
        for name, of in worst["worst"].items()
        if of["after_enforcement_bytes"] > 0 or of["share_of_bound"] > 1
    ]


def command(
    full: Annotated[bool, typer.Option("--full", help="Run the long form: hours, not minutes.")] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Stateful steps, in place of the form's number.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="New JSON file for the findings; default: prove.json.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder for finished parts; parts found there are not run again.")
    ] = None,
) -> None:
    """Check every claim about the core and the simulator again, and write the findings as one JSON file.

    Example: molt prove --jobs 2 --out prove.json
    """
    out = unused(PROVE) if out is None else out
    check_new_file(out)
    if work is not None:
        check_folder(work, "--work")
        work.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    form = FULL if full else QUICK
    asked = ["molt prove", "--full" if full else "", "" if steps is None else f"--steps {steps}"]
    document = {
        "command": " ".join(word for word in asked if word),
        **prove(form if steps is None else replace(form, steps=steps), jobs, work, say=console.print),
    }
    save_new(out, json.dumps(document, indent=1) + "\n")
    machines, fuzzed = document["rule_machines"], document["fuzz"]
    print(
        f"{machines['steps']:,} stateful steps, {document['small_worlds']['three_tenants']['states']:,} states of a "
        f"small world, {fuzzed['seeds']:,} worlds over {fuzzed['simulated_hours']:,.0f} simulated hours, "
        f"{sum(document[name]['passed'] for name in SUITES)} tests in {document['wall_s']:,.0f} s; "
        f"{len(document['failures'])} failures; {len(document['silent'])} mechanisms never fired; written to {out}"
    )
    for line in document["failures"] + document["silent"]:
        print(line)
    if document["failures"] or document["silent"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    from molt.program import run_command

    run_command(command)
