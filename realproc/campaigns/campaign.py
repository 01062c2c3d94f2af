"""Many paired runs: one process that holds its model, and one that changes it, under the same pressure by turns.

``molt real campaign --pairs 1000 --out FILE.jsonl``. Each line of the file is one pair, written when it is complete; a
campaign that was interrupted continues when it is called again with the same file. ``reports/campaign.py`` makes the
page of its results.

Rules of this module:

- The pressure on a pair follows from its number alone: how fast others take memory, in which pages, and when.
- Both processes meet the same pressure, one after the other. Every few pairs a third process, of the changing kind,
  meets it too, but its signal comes late: a control that must be killed sometimes.
- A pair counts only if the pressure was deadly: the kernel must have killed the holding process. Otherwise the pair is
  void, with the reason. A kill of the changing process never makes a pair void.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from molt.errors import InputError
from molt.formats import provenance
from molt.formats.log import plain
from molt.jobs import job
from molt.jobs.job import Job
from molt.live.remote import ChildSpec
from molt.program import option
from molt.units import MIB, SECOND_NS, parse_duration, parse_size, show_size
from realproc.campaigns.fork_server import ForkedEngine, ForkServer
from realproc.campaigns.trial import PressureStep, TrialResult, TrialSubject, VoidError
from realproc.kernel.pressure import Manner
from realproc.supervisor.engine_process import WarmEngine
from realproc.supervisor.real_run import (
    MARGIN_SHARE,
    SIGNAL,
    Setting,
    breach_in_a_line,
    contenders,
    disk_full_as_breach,
    largest_budget,
)

SCENARIO = Path(str(files("scenarios"))) / "real" / "campaign.yaml"
RATES = (50 * MIB, 200 * MIB, 500 * MIB, None)
PAGES = (False, True)
LATE_SIGNALS = ("psi", "vmpressure-critical", "vmpressure-low")
CONTROL_EVERY = 9
FIRST_TOKENS, TOKENS_STEP, TOKENS_SPAN = 4, 7, 23
"""Pressure begins after 4 to 26 tokens, in an order in which each number occurs."""
LEFT = "14MiB"
ROOM = "150ms"
"""How long others can take memory before they take what the process needs: more than most reactions of pico."""
FLAT_OUT_BYTES_PER_S = {False: 2560 * MIB, True: 10240 * MIB}
"""How fast "flat out" is at most, in small pages and in huge ones."""

RENEWED_AFTER = 200
"""Pairs after which all processes are started anew: an older process holds a MiB more at rest than when its base was
measured."""
CAMPAIGN_MARGIN_BYTES = 8 * MIB
"""The margin below the limit: so much, or a hundredth of what the process needs where that is more."""


@dataclass(frozen=True, slots=True)
class PressurePlan:
    """What all pressure of a campaign has in common.

    The budget of a process is ``needed_bytes``, and what others take in ``room_ns``; in the end they leave it
    ``left_bytes``. They take memory in ``manners`` by turns.
    """

    needed_bytes: int
    room_ns: int
    left_bytes: int
    manners: tuple[Manner, ...]

    def budget_bytes(self, manner: Manner) -> int:
        """The budget of the process when it is asked."""
        rate = manner.rate_bytes_per_s or FLAT_OUT_BYTES_PER_S[manner.huge]
        return self.needed_bytes + rate * self.room_ns // SECOND_NS


def plan_of(run: Job, room_ns: int, left_bytes: int) -> PressurePlan:
    """Every rate in both kinds of pages for which the scenario has memory; ``InputError`` if there is none."""
    manners = tuple(Manner(rate, huge) for huge in PAGES for rate in RATES)
    plan = PressurePlan(needed_bytes(run), room_ns, left_bytes, manners)
    fitting = tuple(manner for manner in manners if plan.budget_bytes(manner) <= largest_budget(run))
    if not fitting:
        least = show_size(min(map(plan.budget_bytes, manners)))
        raise InputError(f"{run.scenario.name}: trace: the largest budget must be {least} for any pressure")
    return replace(plan, manners=fitting)


def needed_bytes(run: Job) -> int:
    """What an answer on the largest rung needs: the rung and the cache."""
    largest, request = run.spec.ladder.rungs[0], run.scenario.tenants[0].request
    return largest.resident_bytes + largest.kv_bytes(len(request.prompt_ids) + request.max_tokens)


def pressure_of(pair: int, plan: PressurePlan) -> PressureStep:
    """The pressure on both processes of a pair; consecutive pairs go through all manners."""
    manner = plan.manners[pair % len(plan.manners)]
    tokens = FIRST_TOKENS + pair * TOKENS_STEP % TOKENS_SPAN
    return PressureStep(manner, tokens, plan.budget_bytes(manner), plan.left_bytes)


def control_of(pair: int) -> str | None:
    """The late signal of the control in a pair, if there is one; in time each late signal meets every manner."""
    number, rest = divmod(pair, CONTROL_EVERY)
    return None if rest else LATE_SIGNALS[number % len(LATE_SIGNALS)]


def verdict(hold: TrialResult) -> str | None:
    """Why a pair is void, or ``None``: the holding process must have been killed."""
    if hold.kills == 0:
        return "the holding process was not killed"
    if hold.victim is None:
        return "the kernel killed another process than the holding one"
    return None


def done_before(file: Path) -> set[int]:
    """Numbers of the pairs in a file. A torn last line is cut off; ``InputError`` for any other bad line."""
    if not file.exists():
        return set()
    whole, _, torn = file.read_text(encoding="utf-8").rpartition("\n")
    if torn:
        file.write_text(whole + "\n" if whole else "", encoding="utf-8")
    try:
        return {pair["pair"] for line in whole.splitlines() if "pair" in (pair := json.loads(line))}
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: not the file of a campaign: {error}") from None


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of a campaign, by their names in its file."""

    hold: TrialSubject
    molt: TrialSubject
    controls: Mapping[str, TrialSubject]


def pairs(subjects: Subjects, numbers: Iterator[int], plan: PressurePlan) -> Iterator[dict[str, Any]]:
    """Make the trials of each pair; yields its row for the file."""
    for pair in numbers:
        step, control = pressure_of(pair, plan), control_of(pair)
        row: dict[str, Any] = {
            "pair": pair,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **plain(step.manner),
            "tokens": step.tokens,
            "room_bytes": step.budget_bytes,
            "left_bytes": step.left_bytes,
        }
        try:
            hold = subjects.hold.try_once(step)
            row |= {"hold": plain(hold), "void": verdict(hold)}
            row["molt"] = plain(subjects.molt.try_once(step))
        except VoidError as reason:
            row["void"] = str(reason)
        if control is not None and control in subjects.controls:
            row["control"] = {"signal": control, **_control(subjects.controls[control], step)}
        yield row


def _control(subject: TrialSubject, step: PressureStep) -> dict[str, Any]:
    try:
        return plain(subject.try_once(step))  # type: ignore[no-any-return]
    except VoidError as reason:
        return {"void": str(reason)}


# --- the command ---


def command(
    count: Annotated[
        int, typer.Option("--pairs", help="Number of pairs that the file has in the end.")
    ] = 1000,
    out: Annotated[
        Path, typer.Option(help="File of the campaign; if it exists, the campaign goes on.")
    ] = Path("runs/campaign.jsonl"),
    within: Annotated[
        str | None, typer.Option("--for", help="Begin no new pair after this time, such as 45min.")
    ] = None,
    left: Annotated[str, typer.Option(help="Memory that other processes leave to the engine.")] = LEFT,
    room: Annotated[
        str,
        typer.Option(help="Time for which other processes allocate before they reach what the engine needs."),
    ] = ROOM,
    scenario: Annotated[
        Path,
        typer.Option(
            help="Scenario: the tenants and the memory.", show_default="scenarios/real/campaign.yaml"
        ),
    ] = SCENARIO,
    signal: Annotated[str, typer.Option(help="Memory signal that wakes the process that switches.")] = SIGNAL,
    no_controls: Annotated[
        bool, typer.Option("--no-controls", help="Leave out the control trials with late signals.")
    ] = False,
) -> None:
    """Put memory pressure on pairs of processes, one that holds its model and one that switches; record who is killed.

    Example: molt real campaign --pairs 100 --for 45min
    """
    left_bytes = option("--left", left, parse_size)
    until_s = float("inf")
    if within is not None:
        until_s = time.monotonic() + option("--for", within, parse_duration) / 1e9
    run = job.prepare(scenario)
    plan = plan_of(run, option("--room", room, parse_duration), left_bytes)
    done = done_before(out)
    numbers = [pair for pair in range(count) if pair not in done]
    with breach_in_a_line(), disk_full_as_breach(out), ExitStack() as stack:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(out.open("a", encoding="utf-8", buffering=1))
            progress = stack.enter_context(out.with_suffix(".log").open("a", encoding="utf-8", buffering=1))
        except OSError as error:
            raise InputError(f"{out}: {error.strerror}") from None
        file.write(json.dumps(_session(run, signal, plan)) + "\n")
        wanted = itertools.takewhile(lambda pair: time.monotonic() < until_s, numbers)
        for pair in wanted:
            some = itertools.chain([pair], itertools.islice(wanted, RENEWED_AFTER - 1))
            with _subjects_of(run, signal, not no_controls, out) as subjects:
                for row in pairs(subjects, some, plan):
                    file.write(json.dumps(row, sort_keys=True) + "\n")
                    _log_progress(progress, row, count)


@contextmanager
def _subjects_of(run: Job, signal: str, with_controls: bool, out: Path) -> Iterator[Subjects]:
    """The subjects of a campaign, each in a group of its own, for the time of a ``with`` block."""
    by_name = {contender.name: contender for contender in contenders(run, mapped=False)}
    for name in ("hold", "molt"):
        if name not in by_name:
            raise InputError(f"{run.scenario.name}: policies: a campaign needs {name}")
    ladder = run.spec.ladder
    setting = Setting(
        signal=signal,
        margin_bytes=max(CAMPAIGN_MARGIN_BYTES, needed_bytes(run) // MARGIN_SHARE),
        threads=1,  # two would wait for each other on a busy machine
    )
    with ExitStack() as stack:
        fork_server = ForkServer(ChildSpec(ladder.name, threads=setting.threads).environment())
        stack.callback(fork_server.close)

        def subject(
            name: str, called: str, setting: Setting, engine_of: Callable[[ChildSpec], WarmEngine]
        ) -> TrialSubject:
            raw = out.with_name(f"{out.stem}-{called}.events.jsonl")
            return stack.enter_context(TrialSubject(run, by_name[name], setting, engine_of, raw))

        largest = replace(ladder, rungs=ladder.rungs[:1], routes=())  # hold uses no other rung

        def forked(spec: ChildSpec) -> WarmEngine:
            return ForkedEngine(spec, largest, fork_server)

        def started(spec: ChildSpec) -> WarmEngine:
            return WarmEngine(spec, ladder)

        late = LATE_SIGNALS if with_controls else ()
        yield Subjects(
            hold=subject("hold", "hold", setting, forked),
            molt=subject("molt", "molt", setting, started),
            controls={
                signal: subject("molt", signal, replace(setting, signal=signal), started) for signal in late
            },
        )


def _session(run: Job, signal: str, plan: PressurePlan) -> dict[str, Any]:
    """The line of a session: what is run, and on which machine."""
    return {
        "session": datetime.now(UTC).isoformat(timespec="seconds"),
        "scenario": run.scenario.name,
        "ladder": run.spec.ladder.name,
        "signal": signal,
        "left_bytes": plan.left_bytes,
        "room_ns": plan.room_ns,
        "policies": [plain(spec) for spec, _ in run.policies],
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
    }


def _log_progress(progress: TextIO, row: Mapping[str, Any], count: int) -> None:
    """A line of the progress file."""
    killed = {name: row[name].get("kills") for name in ("hold", "molt", "control") if name in row}
    void = f" void: {row['void']}" if row.get("void") else ""
    progress.write(f"{row['at']} pair {row['pair'] + 1} of {count}: kills {killed}{void}\n")
