"""What a policy did, in two or three plain sentences; every number in them is one of the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from molt.units import MS_NS
from reports import formatting
from reports.run_log import RunLog


class Tone(StrEnum):
    """How a verdict reads at a glance."""

    GOOD = "good"  # nothing lost, nothing exceeded, everything finished
    MIXED = "mixed"  # alive, but something is missing or was exceeded
    BAD = "bad"  # killed, or an invariant broke


@dataclass(frozen=True, slots=True)
class Verdict:
    """One policy judged: a headline and the sentences behind it."""

    tone: Tone
    headline: str
    sentences: tuple[str, ...]


def verdict(policy: Mapping[str, Any], run: RunLog, violations: int = 0) -> Verdict:
    """The verdict on one policy's part of the summary and the run it was made of."""
    return Verdict(
        tone=_tone(policy, violations),
        headline=_headline(policy),
        sentences=tuple(_sentences(policy, run, violations)),
    )


def _tone(policy: Mapping[str, Any], violations: int) -> Tone:
    if policy["killed"] or violations:
        return Tone.BAD
    exceeded = (policy["overshoot_bytes_max"] or 0) > 0
    if exceeded or policy["answers_unfinished"] or policy["sheds"] or not policy["log_complete"]:
        return Tone.MIXED
    return Tone.GOOD


def _headline(policy: Mapping[str, Any]) -> str:
    if policy["killed"]:
        times = "once" if policy["killed"] == 1 else f"{policy['killed']} times"
        return f"Killed {times}, {formatting.count(policy['answers_lost'], 'answer')} lost"
    if _nothing_ran(policy):
        return "Nothing ran, nothing died"
    finished = (
        f"{policy['answers_finished']} of {formatting.count(policy['answers_asked'], 'answer')} finished"
    )
    return f"Never killed, {finished}"


def _sentences(policy: Mapping[str, Any], run: RunLog, violations: int) -> Iterator[str]:
    if not policy["log_complete"]:
        yield "The log breaks off: the numbers cover the part that was written."
    if violations:
        yield f"{formatting.count(violations, 'invariant')} did not hold."
    if _nothing_ran(policy):
        yield from _why_nothing_ran(run)
        return
    if policy["killed"]:
        yield _after_kills(policy, run)
    yield from _waits(policy)
    yield from _memory(policy)
    yield from _quality(policy)


def _nothing_ran(policy: Mapping[str, Any]) -> bool:
    return not policy["killed"] and not policy["tokens_out"]


def _why_nothing_ran(run: RunLog) -> Iterator[str]:
    if not run.answers:
        yield "No request came in."
        return
    yield f"{formatting.count(len(run.answers), 'request')} waited until the end without a token."
    sizes = [r["weight_bytes"] + r["scratch_bytes"] for r in run.header.get("ladder", {}).get("rungs", ())]
    budgets = [level.budget for level in run.levels]
    if sizes and budgets and max(budgets) < min(sizes):
        yield (
            f"The budget was never above {formatting.size(max(budgets))}; "
            f"the smallest rung takes {formatting.size(min(sizes))} before any context."
        )


def _after_kills(policy: Mapping[str, Any], run: RunLog) -> str:
    first = formatting.moment(next(run.events("ProcessKilled"))["at_ns"])
    which = "The kill" if policy["killed"] == 1 else "The first kill"
    asked = formatting.count(policy["answers_asked"], "answer")
    return (
        f"{which} came at {first}. Lost: {formatting.count(policy['tokens_lost'], 'token')}. "
        f"In the end, {policy['answers_finished']} of {asked} finished."
    )


def _waits(policy: Mapping[str, Any]) -> Iterator[str]:
    if (slowest := policy["ttft_ms"]["p99"]) is not None:
        yield f"Slowest first token {formatting.span(slowest)} after the request (p99)."
    if (stall := policy["stall"]) is not None:
        when = formatting.moment(round(stall["from_ms"] * MS_NS))
        yield f"Longest pause {formatting.span(stall['ms'])} ({formatting.printable(stall['tenant'])}, from {when})."
    if policy["answers_unfinished"] and policy["open_stall_ms_max"] is not None:
        silence = formatting.span(policy["open_stall_ms_max"])
        yield f"An answer still open at the end was silent for the last {silence}."


def _memory(policy: Mapping[str, Any]) -> Iterator[str]:
    over = policy["overshoot_bytes_max"]
    if over is None:
        return
    if over > 0:
        yield f"After reacting, or failing to, memory was up to {formatting.size(over)} over the budget."
    else:
        yield f"After every reaction memory was within the budget; the least room was {formatting.size(-over)}."


def _quality(policy: Mapping[str, Any]) -> Iterator[str]:
    shares = policy["rung_token_share"]
    used = [
        f"{formatting.percent(share)} from {formatting.printable(rung)}"
        for rung, share in shares.items()
        if share
    ]
    if used:
        yield f"Tokens: {', '.join(used)}."
    if policy["sheds"]:
        lost = formatting.count(policy["context_lost_tokens"], "token")
        yield f"Contexts dropped: {policy['sheds']}; lost for good: {lost} of context."
