"""Numbers of a run with real processes: what the kernel counted, and how long relief took. One pure function a number.

Rules of this module:

- They are functions of the log, as those of ``reports.metrics``; a simulated run has none of them.
- Such a log has more kinds of record, see ``molt/formats/log.py``: ``pressure``, what other programs take and so leave
  of the budget; ``signal``, a budget was reported to the process; ``kernel``, what was counted by then; ``victim``.
- *Relief* is what a fall of the budget that had weights released comes to. Its parts follow one another: the *signal*
  until the budget is reported, the token *boundary* until the world reads it, the *release* until the memory is back.
  Then the smaller rung is *loaded* and the cache *transplanted*: no process is in danger any more, but the answer
  stands still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from molt.units import MS_NS, SECOND_NS
from reports.metrics import nearest_rank
from reports.run_log import Record, RunLog

Spread = dict[str, float | None]
"""p50 and p99 in milliseconds, and ``n``, the number of cases."""


def is_real(run: RunLog) -> bool:
    """Whether the log is one of real processes."""
    return any(True for _ in _records(run, "kernel"))


# --- what the kernel counted --------------------------------------------------------------------------------


def kernel_kills(run: RunLog) -> int | None:
    """Processes that the kernel's OOM killer took in the group, by its own counter. ``None``: there was no group."""
    return _last(run, "kills")


def victims(run: RunLog) -> list[str]:
    """Processes that died by SIGKILL, each with its kind and its process id."""
    return [f"{record['what']} {record['pid']}" for record in _records(run, "victim")]


def kernel_peak_bytes(run: RunLog) -> int | None:
    """The most that the group ever held, bytes, by the kernel's own counter, which misses nothing between two looks.
    Python, torch and whatever else the engine process needs are in it, and the other programs."""
    return _last(run, "peak_bytes")


def kernel_room_bytes_min(run: RunLog) -> int | None:
    """The least that was left below the group's limit, bytes: its limit less the kernel's peak. 0: the limit was met,
    and the kernel reclaimed or killed."""
    limit, peak = _last(run, "limit_bytes"), _last(run, "peak_bytes")
    return None if limit is None or peak is None else limit - peak


def over_line_bytes_max(run: RunLog) -> int | None:
    """The most that was in use and cannot be dropped, bytes above the line that should not be crossed (the limit less a
    margin), by looks every 10 ms or so. Negative: it never was crossed."""
    held, line = _last(run, "held_max_bytes"), _last(run, "line_bytes")
    return None if held is None or line is None else held - line


def own_peak_bytes(run: RunLog) -> int | None:
    """The most that the engine process held beyond what it held at rest, bytes, by looks every 10 ms or so: what the
    kernel counts of the usage that the books have."""
    own, base = _last(run, "own_max_bytes"), _last(run, "base_bytes")
    return None if own is None or base is None else own - base


def major_faults(run: RunLog) -> int | None:
    """Pages that the engine processes had to wait for because they had to come from disk."""
    return _last(run, "major_faults")


def stalled_ms(run: RunLog) -> float | None:
    """How long some task of the machine waited for memory during the run, milliseconds (pressure stall information,
    ``some``). ``None``: not counted by the kernel."""
    stalled_ns = _last(run, "stall_ns")
    return None if stalled_ns is None else stalled_ns / MS_NS


# --- how fast it answered ------------------------------------------------------------------------------------


def tokens_per_s_before(run: RunLog) -> float | None:
    """Tokens per second of an answer while other programs held no more than when the first token came: the time
    between two tokens, pauses included. ``None``: it produced none then."""
    return _speeds(run)[False]


def tokens_per_s_under_pressure(run: RunLog) -> float | None:
    """Tokens per second of an answer while other programs held more than when the first token came, likewise."""
    return _speeds(run)[True]


# --- how long relief took -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relief:
    """One fall to ``budget_bytes`` that had weights released; times of the run's clock, ``None`` where there was none.

    ``short_ns`` is when the budget that others left fell below what was in use. A fact counts from when the world was
    reported, ``reported_ns``; the world read it at the end of the step under way, ``read_ns``.
    """

    budget_bytes: int
    short_ns: int | None
    reported_ns: int
    read_ns: int
    released_ns: int
    load_ns: int | None
    transplant_ns: int | None


def signal_ms(run: RunLog) -> Spread:
    """From when memory was short until the budget was reported, milliseconds; negative where it was reported ahead."""
    return _spread(
        relief.reported_ns - relief.short_ns for relief in reliefs(run) if relief.short_ns is not None
    )


def boundary_ms(run: RunLog) -> Spread:
    """From the report of the budget until the world read it, milliseconds: the token or slice under way ends first."""
    return _spread(relief.read_ns - relief.reported_ns for relief in reliefs(run))


def release_ms(run: RunLog) -> Spread:
    """From when the world read the budget until the weights were back with the system, milliseconds."""
    return _spread(relief.released_ns - relief.read_ns for relief in reliefs(run))


def told_to_relief_ms(run: RunLog) -> Spread:
    """From the report of the budget until the weights were back with the system, milliseconds: boundary and release
    together."""
    return _spread(relief.released_ns - relief.reported_ns for relief in reliefs(run))


def load_ms(run: RunLog) -> Spread:
    """How long loading the smaller rung took, milliseconds, from the release until it was loaded."""
    return _spread(relief.load_ns for relief in reliefs(run) if relief.load_ns is not None)


def transplant_ms(run: RunLog) -> Spread:
    """How long transplanting a cache to the smaller rung took after a release, milliseconds; of several the longest."""
    return _spread(relief.transplant_ns for relief in reliefs(run) if relief.transplant_ns is not None)


def reliefs(run: RunLog) -> list[Relief]:
    """Every fall of the budget that had weights released, in order."""
    return list(_reliefs(run))


REAL_METRICS: dict[str, Callable[[RunLog], Any]] = {
    metric.__name__: metric
    for metric in (
        kernel_kills, victims, kernel_peak_bytes, kernel_room_bytes_min, over_line_bytes_max, own_peak_bytes,
        major_faults, stalled_ms, tokens_per_s_before, tokens_per_s_under_pressure,
        signal_ms, boundary_ms, release_ms, told_to_relief_ms, load_ms, transplant_ms,
    )
}  # fmt: skip
"""Every number of a run with real processes by its key, in the order of ``summary.json``."""


def real_numbers(run: RunLog) -> dict[str, Any] | None:
    """All of them; ``None`` for a simulated run."""
    return {key: metric(run) for key, metric in REAL_METRICS.items()} if is_real(run) else None


# --- details ---


def _records(run: RunLog, *kinds: str) -> Iterator[Record]:
    return (record for record in run.records if record.get("kind") in kinds)


def _last(run: RunLog, key: str) -> Any:
    return next((r[key] for r in reversed(run.records) if r.get("kind") == "kernel" and key in r), None)


def _speeds(run: RunLog) -> dict[bool, float | None]:
    """Tokens per second by whether others pressed. A time between two tokens may have parts of both kinds; the token at
    its end counts where it came."""
    gaps = [gap for attempt in run.attempts for gap in pairwise(token.at_ns for token in attempt.tokens)]
    first_ns = min((begin_ns for begin_ns, _ in gaps), default=0)
    states = list(_pressed(run, first_ns))
    tokens, times_ns = Counter[bool](), Counter[bool]()
    for begin_ns, end_ns in gaps:
        tokens[next(pressed for pressed, _, until_ns in states if end_ns <= until_ns)] += 1
        for pressed, since_ns, until_ns in states:
            times_ns[pressed] += max(0, min(end_ns, until_ns) - max(begin_ns, since_ns))
    return {
        pressed: tokens[pressed] * SECOND_NS / times_ns[pressed] if times_ns[pressed] else None
        for pressed in (False, True)
    }


def _pressed(run: RunLog, first_ns: int) -> Iterator[tuple[bool, int, int]]:
    """Whether others held more than at ``first_ns``, since when and until when; the last one does not end."""
    taken = sorted((record["at_ns"], record["taken_bytes"]) for record in _records(run, "pressure"))
    usual_bytes = [0, *(size for at_ns, size in taken if at_ns <= first_ns)][-1]
    pressed, since_ns = False, 0
    for at_ns, size in taken:
        if (size > usual_bytes) != pressed:
            yield pressed, since_ns, at_ns
            pressed, since_ns = not pressed, at_ns
    yield pressed, since_ns, max(run.end_ns, since_ns)


def _spread(durations_ns: Iterable[int]) -> Spread:
    ordered = sorted(duration / MS_NS for duration in durations_ns)
    return {"p50": nearest_rank(ordered, 50), "p99": nearest_rank(ordered, 99), "n": len(ordered)}


def _reliefs(run: RunLog) -> Iterator[Relief]:
    decisions_of: dict[int, list[Record]] = {}
    for decision in _records(run, "decision"):
        decisions_of.setdefault(decision["cause"], []).append(decision)
    answered = {record["decision"]: record for record in run.records if record.get("kind") == "outcome"}
    read_ns = 0  # a fact counts from when it was reported, and is written when the step under way has ended
    for record in run.records:
        if record.get("kind") not in ("event", "outcome"):
            continue
        read_ns = max(read_ns, record["at_ns"])
        if record["type"] != "BudgetChanged":
            continue
        decisions = decisions_of.get(record["seq"], [])
        released = [a for d in decisions if d["type"] == "Release" and (a := answered.get(d["seq"]))]
        if released:
            released_ns = released[-1]["at_ns"]
            yield Relief(
                budget_bytes=record["budget_bytes"],
                short_ns=_short_since(run, released_ns),
                reported_ns=record["at_ns"],
                read_ns=read_ns,
                released_ns=released_ns,
                load_ns=_longest(decisions, answered, "Load", lambda a: a["at_ns"] - released_ns),  # noqa: B023
                transplant_ns=_longest(decisions, answered, "Demote", lambda a: a.get("duration_ns")),
            )


def _longest(
    decisions: list[Record],
    answered: Mapping[int, Record],
    type_: str,
    duration: Callable[[Record], int | None],
) -> int | None:
    answers = (answered.get(d["seq"]) for d in decisions if d["type"] == type_)
    found = [took for answer in answers if answer and (took := duration(answer)) is not None]
    return max(found, default=None)


def _short_since(run: RunLog, until_ns: int) -> int | None:
    """Since when, at a time, more has been in use than the others left; ``None`` where there was room."""
    changes = sorted(
        (record for record in _records(run, "pressure", "memory") if record["at_ns"] <= until_ns),
        key=lambda record: record["at_ns"],
    )
    left = used = since = None
    for record in changes:
        if record["kind"] == "pressure":
            left = record["budget_bytes"]
        elif record["at_ns"] < until_ns:
            used = record["usage_bytes"]
        if left is None or used is None or used <= left:
            since = None
        elif since is None:
            since = record["at_ns"]
    return since
