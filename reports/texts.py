"""The answers as text with the rungs that wrote them: fragments for the page, and one file a tenant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from molt.units import MS_NS
from reports import formatting
from reports.run_log import Attempt, Fate, RunLog, SwitchInAnswer

MARK = "▪"  # stands for a token whose text is not in the log
FILE_NAME_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class RungSpan:
    """Successive tokens of one rung. ``text`` has one mark a token where the log has no text."""

    rung: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class SwitchMark:
    """A switch as the reader of an answer met it; ``pause_ms`` is the gap between the tokens on both sides,
    ``None`` where one side has no token."""

    switch: SwitchInAnswer
    pause_ms: float | None


def fragments(attempt: Attempt) -> Iterator[RungSpan | SwitchMark]:
    """An answer from its first token to its last, with its switches where they happened."""
    spelled = any(token.text for token in attempt.tokens)
    done = 0
    for switch in attempt.switches:
        yield from _spans(attempt, done, switch.position, spelled)
        yield _switch_mark(attempt, switch)
        done = switch.position
    yield from _spans(attempt, done, len(attempt.tokens), spelled)


def tenant_text(attempts: tuple[Attempt, ...]) -> str:
    """The text file of a tenant: ``[tier0] ... [tier0 -> tier1, 260ms] ...``, one attempt after the other."""
    return "\n".join(map(_attempt_text, attempts))


def file_names(run: RunLog) -> Mapping[str, str]:
    """A file name for each tenant: no tenant's name can lead out of the folder or hit another file."""
    names: dict[str, str] = {}
    for tenant in run.answers:
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", tenant)[:FILE_NAME_CHARS_MAX].lstrip(".") or "_"
        taken = {name.lower() for name in names.values()}
        choices = (f"{stem}{suffix}.txt" for suffix in ("", *(f"~{i}" for i in range(2, len(taken) + 3))))
        names[tenant] = next(name for name in choices if name.lower() not in taken)
    return names


def ending(attempt: Attempt) -> str:
    """How an attempt ended, in words."""
    match attempt.fate:
        case Fate.FINISHED:
            return "finished: " + formatting.printable(str(attempt.reason))
        case Fate.OPEN:
            return "open when the run ended"
    when = formatting.moment(attempt.ended_ns or 0)
    if attempt.fate is Fate.LOST:
        return f"lost at {when} with {formatting.count(len(attempt.tokens), 'token')}"
    return f"cancelled at {when}"


def _spans(attempt: Attempt, start: int, stop: int, spelled: bool) -> Iterator[RungSpan]:
    for rung, group in groupby(attempt.tokens[start:stop], key=lambda token: token.rung):
        tokens = list(group)
        text = "".join(token.text for token in tokens) if spelled else MARK * len(tokens)
        yield RungSpan(rung, formatting.printable(text), len(tokens))


def _switch_mark(attempt: Attempt, switch: SwitchInAnswer) -> SwitchMark:
    pause_ns = attempt.pause_ns(switch)
    return SwitchMark(switch, None if pause_ns is None else pause_ns / MS_NS)


def _attempt_text(attempt: Attempt) -> str:
    parts: list[str] = []
    for fragment in fragments(attempt):
        match fragment:
            case RungSpan(rung, text):
                parts.append(text if parts else f"[{formatting.printable(rung)}] {text}")
            case SwitchMark(switch, pause_ms):
                names = formatting.printable(f"{switch.source} -> {switch.dest}")
                parts.append(f"[{names}]" if pause_ms is None else f"[{names}, {formatting.span(pause_ms)}]")
    number = f"attempt {attempt.number}, " if attempt.number > 1 or attempt.fate is Fate.LOST else ""
    return " ".join([*parts, f"[{number}{ending(attempt)}]"]) + "\n"
