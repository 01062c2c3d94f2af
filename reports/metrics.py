"""One pure function per number of a report. Its docstring is the number's definition, with the unit, and is
what the report prints.

Rules of this module:

- A number is a function of one run and nothing else. What was not measured is ``None``, never 0.
- Percentiles are nearest-rank: the smallest value that at least p % of the values do not exceed.
- Tokens count where they reached the client. An attempt whose process was killed delivered nothing: all
  its tokens are lost, its pauses are not pauses of an answer, and its time is part of the wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import Any

from molt.units import MS_NS, SECOND_NS
from reports.run_log import Attempt, Fate, RunLog, SwitchInAnswer

PERCENTILES = (50, 90, 99)
HANDOFF_MEASURES = ("kl", "jsd", "jsd_floor", "recovered_context")


# --- what became of the answers -----------------------------------------------------------------------------


def killed(run: RunLog) -> int:
    """How often the OS killed the process (``ProcessKilled``)."""
    return sum(1 for _ in run.events("ProcessKilled"))


def answers_lost(run: RunLog) -> int:
    """Answers that were admitted and unfinished when the process was killed, summed over the kills."""
    return sum(attempt.fate is Fate.LOST for attempt in run.attempts)


def answers_finished(run: RunLog) -> int:
    """Answers that were completed (``TenantFinished``)."""
    return sum(attempt.fate is Fate.FINISHED for attempt in run.attempts)


def answers_asked(run: RunLog) -> int:
    """Answers that clients requested, however many attempts each took. A request that came while no process was
    alive counts from when it was made."""
    return len(run.answers)


def answers_unfinished(run: RunLog) -> int:
    """Answers that were neither cancelled nor complete when the run ended."""
    return sum(attempts[-1].fate in (Fate.OPEN, Fate.LOST) for attempts in run.answers.values())


def tokens_out(run: RunLog) -> int:
    """Tokens delivered: those of every attempt that was not lost by a kill, be it finished, cancelled or open
    when the run ended. Tokens of an attempt that a kill ended are lost instead."""
    return sum(len(attempt.tokens) for attempt in run.surviving)


def tokens_lost(run: RunLog) -> int:
    """Tokens that were produced by attempts that a kill ended."""
    return sum(len(attempt.tokens) for attempt in run.attempts if attempt.fate is Fate.LOST)


def tokens_reread(run: RunLog) -> int:
    """Tokens that were prefilled although they had been prefilled or produced before: the price of dropped caches
    and killed processes."""
    highest: dict[str, int] = {}
    reached: dict[str, int] = {}
    again = 0
    for record in run.records:
        tenant = record.get("tenant", "")
        match record.get("type"):
            case "PromptRead":
                start = reached.get(tenant, 0)
                reached[tenant] = start + record["tokens"]
                again += max(0, min(reached[tenant], highest.get(tenant, 0)) - start)
            case "TokensProduced":
                reached[tenant] = reached.get(tenant, 0) + record["count"]
            case "ProcessKilled":
                reached.clear()
            case _ if _drops_cache(record):
                reached[tenant] = 0
        highest[tenant] = max(highest.get(tenant, 0), reached.get(tenant, 0))
    return again


def _drops_cache(record: Mapping[str, Any]) -> bool:
    match record.get("type"):
        case "TenantArrived" | "SwitchFailed":
            return True
        case "ContextShed":
            return record["kept_cells"] == 0
        case "Demote" | "Promote" | "Unpark" | "Switched":
            return record.get("route") == "reread"
    return False


# --- levers -------------------------------------------------------------------------------------------------


def switches_down(run: RunLog) -> int:
    """Switches of an answer to a smaller rung: ``Switched`` outcomes whose rungs differ, and answers whose tokens
    were prefilled again on a smaller rung."""
    return sum(_steps_down(run, switch) > 0 for switch in _switches(run))


def switches_up(run: RunLog) -> int:
    """Switches of an answer to a larger rung, counted like the switches down."""
    return sum(_steps_down(run, switch) < 0 for switch in _switches(run))


def tokens_healed(run: RunLog) -> int:
    """Tokens of transplanted caches that were prefilled again inside decode steps (healing), without a pause."""
    return sum(record.get("healed", 0) for record in run.events("TokensProduced"))


def deferrals(run: RunLog) -> int:
    """Attempts that had to wait for admission (``Defer``), each counted once."""
    return sum(attempt.deferred for attempt in run.attempts)


def parks(run: RunLog) -> int:
    """Times a tenant's cache was put aside (``TenantParked`` outcomes)."""
    return sum(1 for _ in run.events("TenantParked"))


def sheds(run: RunLog) -> int:
    """Times a tenant's oldest context was dropped (``ContextShed`` outcomes of a ``Shed``); where a cache is
    dropped and its tokens are prefilled again on another rung, that counts as a switch instead."""
    types = run.decision_types
    return sum(types.get(r.get("decision", -1), "Shed") == "Shed" for r in run.events("ContextShed"))


def context_lost_tokens(run: RunLog) -> int:
    """Tokens of context that were shed and not prefilled again: the answer went on without them. A cache that was
    dropped whole costs a prefill instead, see tokens_reread."""
    return sum(r.get("dropped_cells", 0) for r in run.events("ContextShed") if r.get("kept_cells"))


def spills(run: RunLog) -> int:
    """Times a parked cache was written to disk (``CacheSpilled`` outcomes)."""
    return sum(1 for _ in run.events("CacheSpilled"))


def refusals(run: RunLog) -> int:
    """Plans of the policy that broke a rule and were refused; a repeated refusal is logged once."""
    return sum(record.get("kind") == "refusal" for record in run.records)


def _switches(run: RunLog) -> Iterator[SwitchInAnswer]:
    return (switch for attempt in run.attempts for switch in attempt.switches)


def _steps_down(run: RunLog, switch: SwitchInAnswer) -> int:
    return run.rungs.index(switch.dest) - run.rungs.index(switch.source)


# --- latency ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stall:
    """A gap between two successive tokens of one answer: whose, from when, how long."""

    tenant: str
    from_ns: int
    duration_ns: int


def ttft_ms(run: RunLog) -> dict[str, float | None]:
    """Time to first token, milliseconds, over the answers that got one: from when the request was made to the
    first token of the attempt that was answered. Attempts that a kill ended are part of the wait."""
    return percentiles([ttft for ttft in map(_ttft_ms, run.answers.values()) if ttft is not None])


def itl_ms(run: RunLog) -> dict[str, float | None]:
    """Inter-token latency, milliseconds: all gaps between successive tokens of one answer, the time to its
    first token excluded. Attempts that a kill ended do not count."""
    return percentiles([gap / MS_NS for attempt in run.surviving for gap in _gaps_ns(attempt)])


def stall(run: RunLog) -> Stall | None:
    """The longest gap between successive tokens of one answer; ``None`` where no answer has two tokens."""
    return max(_stalls(run.surviving), key=lambda s: s.duration_ns, default=None)


def stall_ms_max(run: RunLog) -> float | None:
    """The longest pause, milliseconds: the longest gap between successive tokens of one answer."""
    longest = stall(run)
    return None if longest is None else longest.duration_ns / MS_NS


def foreground_stall_ms_max(run: RunLog) -> float | None:
    """The longest pause of an answer that a person waits for, milliseconds: as stall_ms_max, over foreground
    tenants alone. A batch tenant may rightly pause for as long as a foreground answer takes."""
    people = (attempt for attempt in run.surviving if attempt.kind == "foreground")
    return max((s.duration_ns / MS_NS for s in _stalls(people)), default=None)


def switch_pause_ms_max(run: RunLog) -> float | None:
    """The longest pause at a switch, milliseconds: the longest gap between successive tokens of one foreground
    answer with a change of rung between them (a batch tenant's gap is mostly its waiting for a turn)."""
    people = (attempt for attempt in run.surviving if attempt.kind == "foreground")
    pauses = [attempt.pause_ns(switch) for attempt in people for switch in attempt.switches]
    return max((pause / MS_NS for pause in pauses if pause is not None), default=None)


def open_stall_ms_max(run: RunLog) -> float | None:
    """The longest silence at the end, milliseconds: for answers that were open when the run ended, from the
    last token of any attempt, or from the first arrival, to the end. No token came after it, so it is no gap between
    tokens."""
    silences = []
    for attempts in run.answers.values():
        if attempts[-1].fate is Fate.OPEN:
            last = [token.at_ns for attempt in attempts for token in attempt.tokens[-1:]]
            silences.append((run.end_ns - max(last, default=attempts[0].arrived_ns)) / MS_NS)
    return max(silences, default=None)


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """p50, p90 and p99 by the nearest-rank method, each ``None`` when there are no values."""
    ordered = sorted(values)
    return {f"p{p}": nearest_rank(ordered, p) for p in PERCENTILES}


def nearest_rank(ordered: Sequence[float], percent: int) -> float | None:
    """The value at rank ceil(percent / 100 * n) of n ascending values, ranks from 1."""
    if not ordered:
        return None
    return ordered[-(-percent * len(ordered) // 100) - 1]


def _ttft_ms(attempts: Sequence[Attempt]) -> float | None:
    last = attempts[-1]
    if last.fate is Fate.LOST or not last.tokens:
        return None
    return (last.tokens[0].at_ns - attempts[0].arrived_ns) / MS_NS


def _gaps_ns(attempt: Attempt) -> Iterator[int]:
    return (after.at_ns - before.at_ns for before, after in pairwise(attempt.tokens))


def _stalls(attempts: Iterable[Attempt]) -> Iterator[Stall]:
    return (
        Stall(attempt.tenant, before.at_ns, after.at_ns - before.at_ns)
        for attempt in attempts
        for before, after in pairwise(attempt.tokens)
    )


# --- memory -------------------------------------------------------------------------------------------------


def overshoot_bytes_max(run: RunLog) -> int | None:
    """The highest usage minus budget, bytes, over the samples taken after the levers of a round while the
    process was alive. A kill ends a round too. Negative: every round ended below the budget; between a fall of the
    budget and the end of the reaction it may be exceeded, see overshoot_byte_seconds. ``None``: there is no such
    sample."""
    return max((s.usage - s.budget for s in run.samples if s.enforced and s.alive), default=None)


def overshoot_byte_seconds(run: RunLog) -> float:
    """How much memory was held over the budget and for how long, byte-seconds: the integral over time of
    usage minus budget where that is positive, over all memory records, both constant between two changes."""
    over = sum((level.end_ns - level.start_ns) * max(0, level.usage - level.budget) for level in run.levels)
    return over / SECOND_NS


def transient_peak_bytes(run: RunLog) -> int | None:
    """The highest usage while something transient was held (weights being loaded; the new cache and the map
    beside the old cache during a switch), bytes; ``None``: nothing transient ever was."""
    return max((s.usage for s in run.samples if any(s.parts.get("transient", {}).values())), default=None)


def usage_peak_bytes(run: RunLog) -> int | None:
    """The highest usage over all memory records, bytes; ``None``: there is none."""
    return max((s.usage for s in run.samples), default=None)


def file_mapped_peak_bytes(run: RunLog) -> int:
    """The most weights that were held as pages of a file, bytes. They count in the usage like all others, but the
    system can drop them by itself and read them from disk again; all other bytes are memory of the process
    (anonymous)."""
    return max(
        (
            sum(size for rung, size in sample.parts.get("weights", {}).items() if rung in run.mapped_rungs)
            for sample in run.samples
        ),
        default=0,
    )


# --- rungs and quality --------------------------------------------------------------------------------------


def rung_token_share(run: RunLog) -> dict[str, float]:
    """The fraction of the delivered tokens that each rung produced; the fractions sum to 1. Empty without
    tokens."""
    counts = Counter(token.rung for attempt in run.surviving for token in attempt.tokens)
    total = counts.total()
    return {rung: counts[rung] / total for rung in run.rungs} if total else {}


def rung_seconds(run: RunLog) -> dict[str, float]:
    """How long the weights of each rung were resident, seconds: from ``RungLoaded`` to ``RungReleased``, a
    kill or the end of the run."""
    spent_ns = dict.fromkeys(run.rungs, 0)
    since: dict[str, int] = {}
    for record in run.events("RungLoaded", "RungReleased", "ProcessKilled"):
        if record["type"] == "RungLoaded":
            since.setdefault(record["rung"], record["at_ns"])
            continue
        gone = list(since) if record["type"] == "ProcessKilled" else [record["rung"]]
        for rung in gone:
            spent_ns[rung] = spent_ns.get(rung, 0) + record["at_ns"] - since.pop(rung, record["at_ns"])
    for rung, start in since.items():
        spent_ns[rung] = spent_ns.get(rung, 0) + run.end_ns - start
    return {rung: ns / SECOND_NS for rung, ns in spent_ns.items()}


def handoff(run: RunLog) -> dict[str, float | int | None]:
    """Handoff quality, means over the ``n`` switches that were measured: ``kl`` is KL(native || transplanted) in
    nats over the continuation, ``jsd`` the Jensen-Shannon divergence between source and transplanted on the first
    token, ``jsd_floor`` the same between source and native, ``recovered_context`` the share of the benefit of the
    context that was kept (1: all, 0: none; above 1: by chance the transplanted cache did better than the native
    one). ``None``: not measured."""
    measured = [switch.handoff for switch in _switches(run) if switch.handoff is not None]
    means: dict[str, float | int | None] = {}
    for name in HANDOFF_MEASURES:
        values = [value for quality in measured if (value := quality.get(name)) is not None]
        means[name] = fsum(values) / len(values) if values else None
    return {**means, "n": len(measured)}


# --- tenants ------------------------------------------------------------------------------------------------


def tenants(run: RunLog) -> dict[str, dict[str, Any]]:
    """The same numbers for each tenant alone, over the attempt that was answered; ``reason`` is why its last
    attempt ended (``stop``, ``length``, ``cancelled``, ``lost``; ``None``: the run ended first)."""
    return {tenant: _tenant(run, attempts) for tenant, attempts in run.answers.items()}


def _tenant(run: RunLog, attempts: Sequence[Attempt]) -> dict[str, Any]:
    last = attempts[-1]
    delivered = [attempt for attempt in attempts if attempt.fate is not Fate.LOST]
    counts = Counter(token.rung for attempt in delivered for token in attempt.tokens)
    longest = max((s.duration_ns for s in _stalls(delivered)), default=None)
    return {
        "kind": last.kind,
        "tokens": counts.total(),
        "finished": last.fate is Fate.FINISHED,
        "reason": last.reason,
        "ttft_ms": _ttft_ms(attempts),
        "stall_ms_max": None if longest is None else longest / MS_NS,
        "attempts": last.number,
        "tokens_lost": sum(len(attempt.tokens) for attempt in attempts if attempt.fate is Fate.LOST),
        "rung_tokens": {rung: counts[rung] for rung in run.rungs},
    }


# --- the run ------------------------------------------------------------------------------------------------


def simulated_s(run: RunLog) -> float:
    """How long the run lasted on its own clock, seconds."""
    return run.end_ns / SECOND_NS


def violations(run: RunLog) -> list[dict[str, Any]]:
    """Invariants that did not hold, each with its record number and time."""
    return [
        {key: record.get(key) for key in ("seq", "at_ns", "invariant", "detail")}
        for record in run.records
        if record.get("kind") == "violation"
    ]
