"""Publishes a run: its pages go to ``reports/published``, its main numbers into the README and ``docs``.

``python -m reports.publish RUN`` after ``python -m sim.run scenarios/NAME.yaml --out RUN``; those of a run with real
processes (``python -m realproc.run``) go to ``reports/published/real``. Nothing is typed: the pages are the run's own,
with the command before them, and every table between markers is made from the published summary (a test compares the
two).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from molt.errors import InputError
from molt.formats.log import FILE_NAME
from molt.program import run_words
from molt.units import format_size
from reports import picture
from reports.table import rows

PUBLISHED = Path(__file__).resolve().parent / "published"
SCENARIOS = PUBLISHED.parent.parent / "scenarios"
README = PUBLISHED.parent.parent / "README.md"
DOCS = PUBLISHED.parent.parent / "docs"
RUN_ROWS = (
    "killed by the OS",
    "answers finished",
    "tokens lost",
    "tokens prefilled again",
    "TTFT p50 / p99",
    "longest pause, foreground",
    "over budget after reaction",
    "over budget × time",
    "handoff KL, nats",
    "recovered context",
)


def publish(run: Path, published: Path = PUBLISHED) -> str:
    """Copy the pages of a run folder; returns the scenario's name."""
    summary = summary_of(run)
    name = summary["scenario"]
    made_by = command(name)
    if any("real" in policy for policy in summary["policies"].values()):
        published, made_by = published / "real", f"{command(name, 'realproc.run')} {options(run, summary)}"
    published.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "summary.json", published / f"{name}.json")
    shutil.copyfile(run / "report.html", published / f"{name}.html")
    preface = f"Made by `{made_by}`; the page with pictures is [{name}.html]({name}.html).\n\n"
    page = (run / "report.md").read_text(encoding="utf-8")
    title, rest = page.split("\n\n", 1)
    (published / f"{name}.md").write_text(f"{title}\n\n{preface}{rest}", encoding="utf-8", newline="\n")
    return name


def summary_of(run: Path) -> dict[str, Any]:
    """The summary of a run folder; ``InputError`` if it has none."""
    try:
        summary: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{run / 'summary.json'}: {error}") from error
    return summary


def command(name: str, module: str = "sim.run") -> str:
    """The command that makes the run of a scenario, which may lie in a folder of ``scenarios``."""
    files = (path for path in SCENARIOS.rglob("*.yaml") if path.parent.name != "ladders")
    path = next((path for path in files if f"\nname: {name}\n" in path.read_text(encoding="utf-8")), None)
    file = f"{name}.yaml" if path is None else path.relative_to(SCENARIOS).as_posix()
    return f"python -m {module} scenarios/{file}"


def options(run: Path, summary: Mapping[str, Any]) -> str:
    """The options of a run with real processes: its policies, and how others took memory, from its logs."""
    policies = list(summary["policies"])
    with (run / policies[0] / FILE_NAME).open(encoding="utf-8") as log:
        setting = json.loads(log.readline())["real"]
    rate_bytes = setting["rate_bytes_per_s"]
    words = [f"--policy {policy}" for policy in policies]
    words.append(f"--rate {'max' if rate_bytes is None else format_size(rate_bytes)}")
    return " ".join([*words, "--huge"] if setting["huge"] else words)


def readme_table(summary: Mapping[str, Any]) -> str:
    """The rows of the README as a Markdown table, one column a policy."""
    policies = list(summary["policies"])
    shown = [row for row in rows(summary) if row.label in RUN_ROWS or row.label.startswith("tokens on ")]
    lines = [
        f"| | {' | '.join(policies)} |",
        "|---|" + "---:|" * len(policies),
        *(f"| {row.label} | {' | '.join(cell.text for cell in row.cells)} |" for row in shown),
    ]
    return "\n".join(lines)


def pages() -> list[Path]:
    """The Markdown pages that may have published results between markers: the README and those below ``docs``."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def with_tables(text: str, published: Path = PUBLISHED) -> str:
    """A page with every table between ``<!-- published: NAME -->`` and ``<!-- end -->`` made anew."""

    def fill(match: re.Match[str]) -> str:
        summary = json.loads((published / f"{match[1]}.json").read_text(encoding="utf-8"))
        return f"<!-- published: {match[1]} -->\n{readme_table(summary)}\n<!-- end -->"

    return re.sub(r"<!-- published: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def run_command(
    usage: str,
    arguments: Sequence[str],
    publish_all: Callable[[list[Path]], Iterable[str]],
    renewed: Callable[[str], str] = lambda text: text,
) -> int:
    """Publish what the arguments name, print each name, and renew the pages that have results between markers.

    Returns the exit status.

    Without arguments it prints ``usage``, for bad input one line; the status is then 2.
    """
    if not arguments:
        print(f"usage: {usage}", file=sys.stderr)
        return 2
    try:
        for name in publish_all([Path(argument) for argument in arguments]):
            print(f"{name}: published", file=sys.stderr)
    except InputError as error:
        print(f"molt: {error}", file=sys.stderr)
        return 2
    for path in pages():
        before = path.read_text(encoding="utf-8")
        if (after := renewed(before)) != before:
            path.write_text(after, encoding="utf-8", newline="\n")
    return 0


USAGE = "python -m reports.publish RUN ..."


def main(arguments: list[str]) -> int:
    """Publish the run folders given, and draw the pictures of ``docs/images`` again."""
    status = run_command(USAGE, arguments, partial(map, publish), with_tables)
    if status == 0:
        picture.renew(PUBLISHED, DOCS / "images")
    return status


if __name__ == "__main__":
    run_words(main, USAGE)
