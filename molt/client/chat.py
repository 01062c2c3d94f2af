"""``molt chat``: talk to a server in a terminal and see which rung wrote which word.

If the output is not a terminal, the text is the same without colours. Ctrl-C ends the answer, not the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import cycle

from rich.console import Console
from rich.text import Text

from molt.client.http_client import (
    AnswerSummary,
    AnswerToken,
    Client,
    Lever,
    Part,
    Served,
    ServerError,
    printable,
)

STYLES = ("bold blue", "green", "italic yellow", "magenta", "cyan", "bright_black")
"""The style of each rung's words, from the largest on; the first and the third also differ in form."""

HELP = "Ctrl-C ends an answer, /new begins a new conversation, /quit or Ctrl-D leaves."


def shown_ms(ms: float) -> str:
    """Milliseconds, in full from 10 on."""
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def lever_line(lever: Lever) -> str:
    """What the scheduler did with the answer, as a line: ``⇆ tier0 → tier1 (project, 260 ms, …)``."""
    fields = lever.fields
    pressure = fields.get("pressure") or {}
    share = pressure["usage_bytes"] / pressure["budget_bytes"] if pressure.get("budget_bytes") else None
    facts = [f"pressure {share:.2f}"] if share is not None else []
    if lever.event != "switch":
        where = [f"on {fields['rung']}"] if fields.get("rung") else []
        return f"· {' '.join([lever.event, *where])}" + (f" ({', '.join(facts)})" if facts else "")
    if (saved := fields.get("flops_saved")) is not None:
        facts.insert(0, f"{100 * saved:.0f} % FLOPs saved")
    facts[:0] = [fields["kind"], shown_ms(fields["ms"])]
    return f"⇆ {fields['from']} → {fields['to']} ({', '.join(facts)})"


def closing(summary: AnswerSummary) -> str:
    """The last line: ``[done: 40 tokens · rungs used tier0, tier1 · 1 switch costing 260 ms · killed=False]``."""
    fields = summary.fields
    count = len(fields["switches"])
    switches = f"{count} {'switch' if count == 1 else 'switches'} costing {shown_ms(fields['switch_ms'])}"
    facts = [
        f"{fields['tokens']} tokens",
        f"rungs used {', '.join(fields['rungs']) or 'none'}",
        switches if count else "no switch",
        f"killed={fields['killed']}",
    ]
    return f"[done: {' · '.join(facts)}]"


class Screen:
    """Writes the parts of answers to a console."""

    def __init__(self, console: Console, rungs: Iterable[str] = ()) -> None:
        self._console = console
        self._spare = cycle(STYLES)
        self._styles: dict[str, str] = {}
        for rung in rungs:
            self._style(rung)
        self._at_start = True

    def show(self, part: Part) -> None:
        """Write one part."""
        match part:
            case AnswerToken(text, rung):
                self._write(Text(printable(text), self._style(rung)))
                self._at_start = text.endswith("\n") if text else self._at_start
            case Lever("admit"):
                pass  # the first word shows the rung
            case Lever():
                self.line(lever_line(part), "reverse" if part.event == "switch" else "dim")
            case AnswerSummary():
                self.line(closing(part), "dim")

    def line(self, text: str, style: str = "dim") -> None:
        """Write a line of its own."""
        if not self._at_start:
            self._write(Text("\n"))
        self._write(Text(f"{printable(text)}\n", style))
        self._at_start = True

    def _write(self, text: Text) -> None:
        self._console.print(text, end="", soft_wrap=True, highlight=False)
        self._console.file.flush()

    def _style(self, rung: str) -> str:
        if rung not in self._styles:
            self._styles[rung] = next(self._spare)
        return self._styles[rung]


class Conversation:
    """Questions and answers so far; every question is sent with all before it."""

    def __init__(
        self, client: Client, served: Served, screen: Screen, *, kind: str, max_tokens: int | None
    ) -> None:
        self._client, self._screen = client, screen
        self._kind, self._max_tokens = kind, max_tokens
        self._served = served
        self.messages: list[dict[str, str]] = []

    def ask(self, question: str) -> bool:
        """Ask and show the answer while it arrives; whether it became complete.

        Ctrl-C and an error of the server end the answer; the part received stays in the conversation.
        """
        asked = [*self.messages, {"role": "user", "content": question}]
        words: list[str] = []
        parts = self._client.answer(self._served, asked, kind=self._kind, max_tokens=self._max_tokens)
        complete = False
        try:
            for part in parts:
                words += [part.text] if isinstance(part, AnswerToken) else []
                self._screen.show(part)
            complete = True
        except KeyboardInterrupt:
            self._screen.line("[stopped]")
        except ServerError as error:
            self._screen.line(f"[failed: {error}]", "red")
        finally:
            parts.close()
        if words:
            self.messages = [*asked, {"role": "assistant", "content": "".join(words)}]
        return complete


def chat(url: str, token: str | None, *, kind: str, max_tokens: int | None, questions: Iterable[str]) -> bool:
    """Hold a conversation; whether every answer became complete. ``ServerError`` if there is no server."""
    console = Console(file=sys.stdout)
    with Client(url, token) as client:
        served = client.served()
        screen = Screen(console, served.rungs)
        conversation = Conversation(client, served, screen, kind=kind, max_tokens=max_tokens)
        complete = True
        for question in questions:
            match question.strip():
                case "":
                    continue
                case "/quit":
                    break
                case "/new":
                    conversation.messages.clear()
                case command if command.startswith("/"):
                    screen.line(HELP)
                case asked:
                    complete &= conversation.ask(asked)
        return complete


def typed() -> Iterable[str]:
    """Lines from the keyboard, or from a pipe, until their end."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    print(HELP, file=sys.stderr)
    while True:
        try:
            yield input("› ")
        except EOFError:
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
