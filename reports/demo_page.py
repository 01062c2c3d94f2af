"""Publishes a session of ``molt demo``: its JSON becomes a page in ``reports/published``.

``python -m reports.demo_page RUN ...`` after ``molt demo --out RUN``. Nothing is typed: every number is of the stream
that the JSON has recorded, in the page and wherever a session stands between markers (a test compares).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from molt.client.demo import Session, annotated, to_json
from molt.errors import InputError
from molt.evals.text_tables import Grid, markdown
from molt.program import run_words
from reports import formatting
from reports.eval_page import template
from reports.publish import OUT, PUBLISHED, each, run_command
from reports.shapes import check_session, file_name, read_bytes

MEANING = (
    "TTFT is from sending the request to its first token, at the client, and includes loading the rung: a server that "
    "has just begun holds none. The budget was cut when the client had read eight tokens; tokens of the same rung "
    "after the cut had been sent or were under way. A line of the text ends at a lever or after 80 characters; the "
    "answer itself has no such line ends. The seed of the sampling is fixed, and was chosen among five for a text of "
    "pico that can be read; what a switch costs does not depend on it. The profile behind the predictions was measured "
    "on a machine that did nothing else."
)
HEADERS = ("switch", "kind", "measured", "predicted", "FLOPs saved", "after tokens")


def page(session: Session) -> str:
    """The page of a session, as Markdown."""
    name = f"demo-{session.ladder}"
    question = "\n".join(f"> {line}" for line in formatting.printable(session.question).splitlines())
    introduction = (
        f"Made by `{session.command}`; the stream is in [{name}.json]({name}.json). "
        f"Asked over HTTP, of a server under the molt policy:\n\n{question}\n\n```text\n{annotated(session)}```"
    )
    rows = tuple(_row(switch) for switch in session.summary["switches"])
    switches = {
        "title": "Cost of the switches",
        "note": "As the server reported it in the stream.",
        "table": markdown(Grid("", "", HEADERS, rows)),
    }
    return template().render(
        title=f"The model is changed in the middle of an answer: {session.ladder}",
        introduction=introduction,
        grids=[switches],
        meaning=MEANING,
        facts=_facts(session),
    )


def _row(switch: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{switch['from']} → {switch['to']}",
        switch["kind"],
        formatting.span(switch["measured"]["ms"]),
        formatting.span(switch["predicted"]["ms"]),
        formatting.percent(switch["flops_saved"]),
        str(switch["after_tokens"]),
    )


def _facts(session: Session) -> dict[str, str]:
    return {
        "command": f"`{session.command}`",
        "commit": session.commit,
        "machine": formatting.machine(session.machine),
        "load when it began": f"{session.load:.1f} processes that ran or waited, over the last minute",
        "versions": ", ".join(f"{name} {version}" for name, version in session.versions.items()),
    }


def publish(run: Path, published: Path = PUBLISHED) -> str:
    """Put the JSON and the page of a session into ``published``; returns their name.

    ``InputError`` for what is no session, or one that does not show what it is to show.
    """
    path = run / "session.json"
    raw = read_bytes(path)
    try:
        session = Session.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    check_session(raw, str(path))
    if not session.holds:
        raise InputError(f"{path}: the model was not changed in it, or the process was killed")
    name = file_name(f"demo-{session.ladder}", str(path))
    published.mkdir(parents=True, exist_ok=True)
    (published / f"{name}.json").write_text(to_json(session), encoding="utf-8", newline="\n")
    (published / f"{name}.md").write_text(page(session), encoding="utf-8", newline="\n")
    return name


def with_sessions(text: str, published: Path = PUBLISHED) -> str:
    """A page with its sessions as published, each between ``<!-- session: NAME -->`` and ``<!-- end -->``."""

    def fill(match: re.Match[str]) -> str:
        session = Session.model_validate_json((published / f"{match[1]}.json").read_bytes())
        return f"<!-- session: {match[1]} -->\n```text\n{annotated(session)}```\n<!-- end -->"

    return re.sub(r"<!-- session: (\S+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


_USAGE = f"python -m reports.demo_page RUN ... {OUT}"


def main(arguments: list[str]) -> int:
    """Publish the runs given."""
    return run_command(_USAGE, arguments, each(publish), with_sessions)


if __name__ == "__main__":
    run_words(main, _USAGE)
