"""``molt demo``: a session that plays by itself and shows which rung wrote each word.

The demo starts a server, asks a question and cuts the budget after eight tokens, so that the largest rung does not
fit any more and the next one does. It shows and saves the stream as received.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict
from rich.console import Console

from molt.client.chat import Screen, lever_line, shown_ms
from molt.client.chat import closing as closing_line
from molt.client.http_client import AnswerSummary, AnswerToken, Client, Lever, ServerError, printable
from molt.errors import InputError
from molt.formats import provenance
from molt.formats.log import FILE_NAME
from molt.formats.new_file import check_folder
from molt.jobs.profile import load_profile
from molt.models.ladder_file import resolve
from molt.units import show_size

QUESTION = "Why does an operating system reclaim memory from background processes?"
BEGINNING = (
    "Memory\n\nAn operating system gives memory to the programs that ask for it. When there is not enough of it, the "
    "system takes memory back from programs that run in the background. A program that is ended in this way loses what "
    "it was doing. When memory is short, the kernel"
)
"""The prompts for a model that chats, and for one that continues a text."""

SEED = 4
CUT_AFTER_TOKENS = 8
START_S = 300.0
STOP_S = 10.0
LINE_CHARS_MAX = 80
SERVER_TOKENS = ("MOLT_TOKEN", "MOLT_ADMIN_TOKEN")
"""Tokens that the user set are for other servers: the demo's makes its own, and prints it."""

_ADDRESS = re.compile(r"(?P<url>http://\S+?)/#admin=(?P<token>\S+)")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TimedToken(_Strict):
    """A token, ``at_ms`` after the question was sent."""

    at_ms: float
    text: str
    rung: str


class BudgetCut(_Strict):
    """The budget was cut: the server has accepted it."""

    at_ms: float
    budget_bytes: int


class TimedLever(_Strict):
    """What the scheduler did with the answer, as reported by the server."""

    at_ms: float
    molt: dict[str, Any]


Item = TimedToken | BudgetCut | TimedLever


class Session(_Strict):
    """The stream as received, and where it was recorded."""

    ladder: str
    command: str
    commit: str
    machine: dict[str, Any]
    versions: dict[str, str]
    load: float  # of the machine at the start: processes that run or wait, over the last minute
    question: str
    items: tuple[Item, ...]
    finish_reason: str
    summary: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether the session shows its point: the answer is complete, no process was killed, the model was changed."""
        return self.summary["killed"] is False and bool(self.summary["switches"])


# --- playing ---


def play(client: Client, admin: str, *, command: str, max_tokens: int, screen: Screen) -> Session:
    """Ask, cut the budget after ``CUT_AFTER_TOKENS``, and show everything as received.

    Raises ``ServerError`` if the answer stays incomplete.
    """
    served = client.served()
    budget = budget_between(list(served.resident_bytes.values()))
    question = QUESTION if served.chats else BEGINNING
    screen.line(f"› {question}")
    messages = [{"role": "user", "content": question}]
    items: list[Item] = []
    tokens = 0
    load = round(psutil.getloadavg()[0], 1)
    watch = Stopwatch()
    for part in client.answer(served, messages, kind="foreground", max_tokens=max_tokens, seed=SEED):
        match part:
            case AnswerToken(text, rung, counts):
                item = TimedToken(at_ms=watch.ms(), text=text, rung=rung)
                if not tokens:
                    screen.line(start_line(rung, item.at_ms))
                items.append(item)
                screen.show(part)
                tokens += counts
                if tokens == CUT_AFTER_TOKENS and counts:
                    client.post("/admin/budget", {"budget": budget}, admin)
                    items.append(BudgetCut(at_ms=watch.ms(), budget_bytes=budget))
                    screen.line(cut_line(budget))
            case Lever():
                items.append(TimedLever(at_ms=watch.ms(), molt=dict(part.fields)))
                screen.show(part)
            case AnswerSummary():
                screen.show(part)
                return Session(
                    ladder=served.name,
                    command=command,
                    commit=provenance.commit(),
                    machine=provenance.machine(),
                    versions=provenance.versions(),
                    load=load,
                    question=question,
                    items=tuple(items),
                    finish_reason=part.finish_reason,
                    summary=dict(part.fields),
                )
    raise AssertionError("an answer ends with its summary or with an error")


class Stopwatch:
    """Milliseconds since its creation."""

    def __init__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def ms(self) -> float:
        """Milliseconds, to the microsecond."""
        return round((time.perf_counter_ns() - self._began_ns) / 1e6, 3)


def budget_between(resident_bytes: Sequence[int]) -> int:
    """A budget at which the largest rung does not fit and the next one does: halfway between the two."""
    if len(resident_bytes) < 2:
        raise InputError("the demo needs a ladder of at least two rungs")
    return (resident_bytes[0] + resident_bytes[1]) // 2


@contextmanager
def server(ladder: str, log: Path, profile: str | None = None) -> Iterator[tuple[str, str]]:
    """``molt serve`` of a ladder on a free port for the time of a ``with`` block: its address and its admin token.

    ``ServerError`` with its last line of output if it ends before it listens.
    """
    options = ["--ladder", ladder, "--port", "0", "--log", str(log)]
    options += [] if profile is None else ["--profile", profile]
    own = {name: value for name, value in os.environ.items() if name not in SERVER_TOKENS}
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "molt.server", *options],
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=own,
    )
    try:
        assert process.stderr is not None
        url, admin = _address(process.stderr)
        threading.Thread(
            target=process.stderr.read, daemon=True
        ).start()  # so that it never waits for a reader
        _wait_until_loaded(url)
        yield url, admin
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(lines: Iterable[str]) -> tuple[str, str]:
    last = "the server ended without a message"
    for line in lines:
        if found := _ADDRESS.search(line):
            return found["url"], found["token"]
        last = line.strip() or last
    raise ServerError(last.removeprefix("molt: "))


def _wait_until_loaded(url: str) -> None:
    deadline = time.monotonic() + START_S
    with Client(url) as client:
        while True:
            try:
                client.get("/health")
            except ServerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return


def demo(ladder: str, out: Path, max_tokens: int, profile: str | None = None) -> bool:
    """Play the session and save it into the folder ``out``; whether it shows its point (``Session.holds``).

    ``InputError`` for a ladder or a profile that cannot be used, before anything is written.
    """
    spec = resolve(ladder)
    load_profile(profile or spec.ladder.name, spec.ladder)
    log = out / FILE_NAME
    _prepare(out, log)
    with server(ladder, log, profile) as (url, admin), Client(url) as client:
        screen = Screen(Console(), client.served().rungs)
        command = f"molt demo --ladder {Path(ladder).name}"
        command += "" if profile is None else f" --profile {Path(profile).name}"
        session = play(client, admin, command=command, max_tokens=max_tokens, screen=screen)
    (out / "session.json").write_text(to_json(session), encoding="utf-8", newline="\n")
    (out / "session.txt").write_text(annotated(session), encoding="utf-8", newline="\n")
    return session.holds


def _prepare(out: Path, log: Path) -> None:
    check_folder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}") from error


# --- showing and saving ---


def start_line(rung: str, ttft_ms: float, prompt_tokens: int | None = None) -> str:
    """The first line of the session; the length of the prompt is known only at the end."""
    prompt = "" if prompt_tokens is None else f" · {prompt_tokens} prompt tokens"
    return f"[start on {rung}{prompt} · TTFT {shown_ms(ttft_ms)}]"


def cut_line(budget_bytes: int) -> str:
    """The line where the budget is cut."""
    return f"[budget cut to {show_size(budget_bytes)}]"


def annotated(session: Session) -> str:
    """The whole session as text: levers and the budget cut stand on lines of their own."""
    first = next(item for item in session.items if isinstance(item, TimedToken))
    blocks = [start_line(first.rung, first.at_ms, session.summary.get("prompt_tokens"))]
    words = ""
    for item in session.items:
        if isinstance(item, TimedToken):
            words += item.text
            continue
        line = cut_line(item.budget_bytes) if isinstance(item, BudgetCut) else _lever_line(item)
        if line:
            blocks += [*_wrapped(words), line]
            words = ""
    summary = AnswerSummary(session.finish_reason, session.summary)
    return "\n".join([*blocks, *_wrapped(words), closing_line(summary)]) + "\n"


def _lever_line(item: TimedLever) -> str:
    event = item.molt["event"]
    return "" if event == "admit" else lever_line(Lever(event, item.molt))


def _wrapped(words: str) -> list[str]:
    """Lines of at most ``LINE_CHARS_MAX``, cut at spaces, which stay: only line ends are added."""
    lines: list[str] = []
    for paragraph in printable(words).split("\n") if words else []:
        line = ""
        for piece in re.findall(r"\s*\S+|\s+$", paragraph):
            if line and len(line) + len(piece) > LINE_CHARS_MAX:
                lines.append(line)
                line = ""
            line += piece
        lines.append(line)
    return lines


def to_json(session: Session) -> str:
    """The session as it is saved."""
    return json.dumps(session.model_dump(), indent=1, ensure_ascii=False) + "\n"
