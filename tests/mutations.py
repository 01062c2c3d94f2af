"""Files that people hand us, damaged: each gives a result or one clear line, within bounded memory and time.

``python -m tests.mutations TARGET SEED COUNT`` tries ``COUNT`` damaged files in this process. None of them may take
more than ``MEMORY_BYTES`` beyond what the process had before, or more than ``CASE_S``. It prints a line of JSON for
every case that failed: its number, the error and where it was raised.

A target is what a command does with its files, without the printing.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molt.core.engine_protocol import EngineKind
from molt.core.ladder import Ladder
from molt.errors import InputError
from molt.models.ladder_file import resolve
from molt.paths import IMPORT_ROOT
from reports.from_run import write_reports
from reports.publish import PUBLISHED
from tests.reports.story import survivor, victim

MEMORY_BYTES = 1 << 30
CASE_S = 20.0

SCENARIOS = IMPORT_ROOT / "scenarios"
PICO = IMPORT_ROOT / "molt" / "models" / "pico"


# --- damage ---

NUMBERS: tuple[Any, ...] = (
    *(float("nan"), float("inf")),
    *(0, -1, 1, 2, 3.5, -0.0, 10**9, 99999999999, -99999999999, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**400),
    *(1e-300, 1e300, -1e308, 0.1),
)  # fmt: skip
TEXTS = (
    "",
    "x",
    "../../x",
    "a\nb",
    "\x1b[31m",
    "<b>",
    "\u202e",
    "tier9",
    "é" * 300,
    "1" * 5000,
    "\ud800",
    "nan",
    "0s",
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": 1}, [1, "a"], *NUMBERS, *TEXTS)
PIECES = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"99999999999",
    b"null",
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"{",
    b"]",
)


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """A file with one damage or a few."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        raw = rng.choice(DAMAGES)(raw, rng)
    return raw


def _truncated(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _altered_bytes(raw: bytes, rng: random.Random) -> bytes:
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if found:
            found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def _span(raw: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(raw) + 1)
    return start, min(len(raw), start + rng.choice((1, 2, 10, 200)))


def _deleted(raw: bytes, rng: random.Random) -> bytes:
    start, end = _span(raw, rng)
    return raw[:start] + raw[end:]


def _repeated(raw: bytes, rng: random.Random) -> bytes:
    start, end = _span(raw, rng)
    return raw[:end] + raw[start:end] * rng.choice((1, 2, 50)) + raw[end:]


def _inserted(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return raw[:at] + rng.choice(PIECES) + raw[at:]


def _nested(raw: bytes, rng: random.Random) -> bytes:
    at, depth = rng.randrange(len(raw) + 1), rng.choice((50, 1500, 100_000))
    return raw[:at] + b"[" * depth + b"]" * depth + raw[at:]


def _lines(raw: bytes, rng: random.Random) -> bytes:
    """A line deleted, repeated, or in another's place."""
    lines = raw.splitlines(keepends=True)
    if lines:
        one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(3):
            case 0:
                del lines[one]
            case 1:
                lines.insert(one, lines[other])
            case _:
                lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _digits(raw: bytes, rng: random.Random) -> bytes:
    """A number in the text replaced by another."""
    starts = [i for i, byte in enumerate(raw) if chr(byte).isdigit() and not chr(raw[i - 1]).isdigit()]
    if not starts:
        return raw
    start = end = rng.choice(starts)
    while end < len(raw) and chr(raw[end]) in "0123456789.":
        end += 1
    return raw[:start] + str(rng.choice(NUMBERS)).encode() + raw[end:]


def _json_values(raw: bytes, rng: random.Random) -> bytes:
    """Values of a JSON document, or of a line of JSON lines, exchanged, deleted, renamed or added."""
    try:
        document = json.loads(raw)
        return json.dumps(_altered_value(document, rng)).encode()
    except (ValueError, RecursionError):
        pass
    lines = raw.split(b"\n")
    number = rng.randrange(len(lines)) if rng.random() < 0.7 else 0
    try:
        lines[number] = json.dumps(_altered_value(json.loads(lines[number]), rng)).encode()
    except (ValueError, RecursionError):
        return _altered_bytes(raw, rng)
    return b"\n".join(lines)


def _altered_value(document: Any, rng: random.Random) -> Any:
    places = list(_places(document)) if isinstance(document, dict | list) else []
    if not places or rng.random() < 0.02:
        return rng.choice(OTHERS)
    parent, key = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[key + rng.choice(("x", " ", "\x00"))] = parent.pop(key)
        case 2 if isinstance(parent, dict):
            parent[rng.choice(("x", "type", "kind", "stamps_ns", "tenant"))] = rng.choice(OTHERS)
        case 3:
            other, place = rng.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                parent[key] = json.loads(json.dumps(other[place]))
        case 4 if isinstance(parent[key], int):
            parent[key] = rng.choice(NUMBERS)
        case 5 if isinstance(parent, list):
            parent *= rng.choice((0, 2, 100))
        case _:
            parent[key] = rng.choice(OTHERS)
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document as its parent and key; of long lists the first entries."""
    keys = list(value)[:200] if isinstance(value, dict) else range(min(len(value), 50))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


DAMAGES = (
    *(_truncated, _altered_bytes, _deleted, _repeated, _inserted, _nested, _lines, _digits),
    *(_json_values,) * 8,
)


# --- targets ---


@dataclass(frozen=True, slots=True)
class MutationTarget:
    """Files as they should be, those of them that are damaged, and what is done with them."""

    make: Callable[[Path], None]
    files: tuple[str, ...]
    use: Callable[[Path], Any]


def _make_run(folder: Path) -> None:
    from tests.reports.test_real_processes import relieved

    survivor(("word ", "")).write(folder / "molt")
    victim().write(folder / "hold")
    relieved().finish(450).end(500).write(folder / "real")


def _report(folder: Path) -> None:
    from reports.chrome_trace import chrome_trace
    from reports.run_log import RunLog
    from reports.schema import read_summary
    from reports.table import text_table

    text_table(write_reports(folder))
    read_summary(folder / "summary.json")
    for policy in ("molt", "real"):
        json.dumps(chrome_trace(RunLog.read(folder / policy / "events.jsonl")))


def _make_simulated(folder: Path) -> None:
    from sim.run import prepare, simulate

    simulate(
        prepare(SCENARIOS / "spike_mid_answer.yaml", policies=["molt"], engine=EngineKind.MODELLED), folder
    )
    path = folder / "molt" / "events.jsonl"
    path.write_text(
        "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:120]), encoding="utf-8"
    )


def _replay(folder: Path) -> None:
    from molt.jobs.replay import replay

    replay(folder / "molt" / "events.jsonl")


def _make_recorded(folder: Path) -> None:
    from tests.sim.test_recorded_memory import real_log

    real_log(folder, pressure={800: 40, 900: 30}, reported={0: 52, 805: 20}, victims=(900,))


def _recorded(folder: Path) -> None:
    from sim import recorded_memory

    recorded_memory.read(folder, "molt", "spike_mid_answer")


def _make_both(folder: Path) -> None:
    survivor().write(folder / "sim" / "molt")
    real: dict[str, Any] = {"engine": "real", "real": {"slowdown": 10.0}}
    survivor(**real).write(folder / "real" / "molt")


def _agreement(folder: Path) -> None:
    from reports.agreement import page_of

    page_of([(folder / "sim", folder / "real")])


def _make_publishable(folder: Path) -> None:
    real = {"engine": "real", "real": {"rate_bytes_per_s": 2**30, "huge": True}}
    survivor(**real).record("kernel", 1000, kills=0).end(1001).write(folder / "run" / "molt")
    write_reports(folder / "run")


def _publish(folder: Path) -> None:
    from reports.publish import publish, readme_table, summary_of

    publish(folder / "run", folder / "published")
    readme_table(summary_of(folder / "run"))
    assert {path.name for path in folder.iterdir()} == {"run", "published"}


def _make_campaign(folder: Path) -> None:
    lines = (PUBLISHED / "real" / "campaign-qwen.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "campaign.jsonl").write_text("".join(lines[:9]), encoding="utf-8")


def _campaign(folder: Path) -> None:
    from realproc.campaigns.campaign import done_before
    from reports.campaign import publish

    publish(folder / "campaign.jsonl", folder / "published")
    done_before(folder / "campaign.jsonl")


def _copied(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in names:
            shutil.copyfile(PUBLISHED / name, folder / name)

    return make


def _tables(folder: Path) -> None:
    from molt.evals import text_tables
    from molt.evals.result import read
    from reports.eval_page import publish

    for path in sorted(folder.glob("*.json")):
        publish([path], folder / "published")
        text_tables.text(text_tables.grids(read(path)))


def _proof(folder: Path) -> None:
    from reports.prove_page import publish

    (folder / "published").mkdir(exist_ok=True)
    publish(folder / "prove.json", folder / "published")


def _make_session(folder: Path) -> None:
    shutil.copyfile(PUBLISHED / "demo-pico.json", folder / "session.json")


def _session(folder: Path) -> None:
    from reports.demo_page import publish

    publish(folder, folder / "published")


def _make_trace(folder: Path) -> None:
    lines = (
        (SCENARIOS / "traces" / "recorded_spike.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    )
    (folder / "trace.csv").write_text("".join(lines[:40]), encoding="utf-8")


def _pico() -> Ladder:
    return resolve("pico").ladder


def _trace(folder: Path) -> None:
    from molt.jobs.trace import read_csv

    read_csv(folder / "trace.csv").on(_pico())


def _make_tokenizer(folder: Path) -> None:
    shutil.copyfile(PICO / "weights" / "tokenizer.json", folder / "tokenizer.json")


def _tokenizer(folder: Path) -> None:
    from molt.models.tokenizer_file import difference, read_tokens, same_bytes
    from molt.server.prompts import Prompter

    path, shipped = folder / "tokenizer.json", PICO / "weights" / "tokenizer.json"
    difference(read_tokens(shipped), read_tokens(path))
    same_bytes(shipped, path)
    prompter = Prompter(path, 512)
    prompter.text("A word, and <|endoftext|> another")
    prompter.chat([("user", "A question")])


def _make_profile(folder: Path) -> None:
    shutil.copyfile(SCENARIOS / "profiles" / "pico.json", folder / "profile.json")


def _profile(folder: Path) -> None:
    from molt.jobs.profile import load_profile, slowed

    slowed(load_profile(str(folder / "profile.json"), _pico()), 10.0)


def _make_scenario(folder: Path) -> None:
    shutil.copytree(SCENARIOS / "prompts", folder / "prompts")
    shutil.copyfile(SCENARIOS / "spike_mid_answer.yaml", folder / "scenario.yaml")


def _scenario(folder: Path) -> None:
    from sim.run import prepare

    prepare(folder / "scenario.yaml", engine=EngineKind.MODELLED)


def _make_ladder(folder: Path) -> None:
    shutil.copyfile(SCENARIOS / "ladders" / "pico.yaml", folder / "ladder.yaml")


def _ladder(folder: Path) -> None:
    resolve(str(folder / "ladder.yaml"))


TABLES = (
    *("drift-pico.json", "switch-cost-pico.json", "residuals-pico.json"),
    *("handoff-qwen2.5-coder-earlier.json", "ablation-pico.json"),
)
TARGETS: dict[str, MutationTarget] = {
    "report": MutationTarget(
        _make_run, ("molt/events.jsonl", "hold/events.jsonl", "real/events.jsonl", "summary.json"), _report
    ),
    "replay": MutationTarget(_make_simulated, ("molt/events.jsonl",), _replay),
    "recorded memory": MutationTarget(_make_recorded, ("molt/events.jsonl",), _recorded),
    "agreement": MutationTarget(_make_both, ("sim/molt/events.jsonl", "real/molt/events.jsonl"), _agreement),
    "publish": MutationTarget(
        _make_publishable,
        ("run/summary.json", "run/summary.json", "run/report.md", "run/molt/events.jsonl"),
        _publish,
    ),
    "campaign": MutationTarget(_make_campaign, ("campaign.jsonl",), _campaign),
    "tables": MutationTarget(
        _copied(*TABLES),
        TABLES,
        _tables,
    ),
    "proof": MutationTarget(_copied("prove.json"), ("prove.json",), _proof),
    "session": MutationTarget(_make_session, ("session.json",), _session),
    "trace": MutationTarget(_make_trace, ("trace.csv",), _trace),
    "tokenizer": MutationTarget(_make_tokenizer, ("tokenizer.json",), _tokenizer),
    "profile": MutationTarget(_make_profile, ("profile.json",), _profile),
    "scenario": MutationTarget(_make_scenario, ("scenario.yaml",), _scenario),
    "ladder": MutationTarget(_make_ladder, ("ladder.yaml",), _ladder),
}


# --- running ---


def failures(name: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """What became of every damaged file that gave neither a result nor one line."""
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as kept:
        sound = Path(kept) / "sound"
        sound.mkdir()
        target.make(sound)
        for number in range(count):
            rng = random.Random(f"{name} {seed} {number}")
            folder = Path(kept) / str(number)
            shutil.copytree(sound, folder)
            file = rng.choice(target.files)
            raw = (folder / file).read_bytes() if (folder / file).exists() else b"{}"
            (folder / file).write_bytes(damaged(raw, rng))
            failure = _failure_of(target, folder)
            shutil.rmtree(folder)
            if failure is not None:
                yield {"target": name, "seed": seed, "number": number, "file": file, **failure}


def _failure_of(target: MutationTarget, folder: Path) -> dict[str, Any] | None:
    try:
        with _time_limit(), contextlib.redirect_stdout(io.StringIO()):
            target.use(folder)
    except InputError as error:
        return None if len(str(error).splitlines()) == 1 else {"error": f"not one line: {str(error)[:300]}"}
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if str(IMPORT_ROOT) in f.filename]
        return {"error": f"{type(error).__name__}: {str(error)[:200]}", "at": ours[-3:]}
    return None


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {CASE_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, CASE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory() -> None:
    """No more address space than ``MEMORY_BYTES`` beyond what this process has now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(name: str, seed: int, count: int) -> None:
    """Try the damaged files of one target, and print what failed."""
    with tempfile.TemporaryDirectory() as folder:
        TARGETS[name].make(Path(folder))
        TARGETS[name].use(Path(folder))  # sound files give a result, and what they need is imported
    _limit_memory()
    for failure in failures(name, seed, count):
        print(json.dumps(failure), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
