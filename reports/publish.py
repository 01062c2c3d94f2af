"""Publishes a run: its pages go to ``reports/published``, its main numbers into the README and ``docs``.

``python -m reports.publish RUN`` after ``python -m sim.run scenarios/NAME.yaml --out RUN``; those of a run with real
processes (``python -m realproc.run``) go to ``reports/published/real``. Nothing is typed: the pages are the run's own,
with the command before them, and every table between markers is made from the published summary (a test compares the
two).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from molt.errors import InputError
from molt.formats import log
from molt.formats.log import FILE_NAME
from molt.program import run_words
from molt.units import format_size
from reports import picture
from reports.schema import RunSummary
from reports.shapes import checked, file_name, read_bytes, read_text
from reports.table import rows

PUBLISHED = Path(__file__).resolve().parent / "published"
SCENARIOS = PUBLISHED.parent.parent / "scenarios"
README = PUBLISHED.parent.parent / "README.md"
DOCS = PUBLISHED.parent.parent / "docs"
CHECKOUT = ("pyproject.toml", "README.md", "docs")
"""What a checkout has beside the packages, and an installed package has not."""

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
    """Copy the pages of a run folder; returns the scenario's name. ``InputError``: a run that is not complete."""
    summary = summary_of(run)
    name = file_name(summary["scenario"], str(run / "summary.json"))
    for policy, numbers in summary["policies"].items():
        if not numbers["log_complete"]:
            raise InputError(f"{run}: incomplete: the log of {policy} has no end; it is not published")
    made_by = command(name)
    if any("real" in policy for policy in summary["policies"].values()):
        published, made_by = published / "real", f"{command(name, 'realproc.run')} {options(run, summary)}"
    title, blank, rest = read_text(run / "report.md").partition("\n\n")
    if not blank:
        raise InputError(f"{run / 'report.md'}: not a report; `molt report {run}` writes it again")
    picture_page = read_bytes(run / "report.html")
    published.mkdir(parents=True, exist_ok=True)
    (published / f"{name}.json").write_bytes(read_bytes(run / "summary.json"))
    (published / f"{name}.html").write_bytes(picture_page)
    preface = f"Made by `{made_by}`; the page with pictures is [{name}.html]({name}.html).\n\n"
    (published / f"{name}.md").write_text(f"{title}\n\n{preface}{rest}", encoding="utf-8", newline="\n")
    return name


def summary_of(run: Path) -> dict[str, Any]:
    """The summary of a run folder; ``InputError`` if it has none."""
    path = run / "summary.json"
    summary: dict[str, Any] = checked(RunSummary, read_bytes(path), str(path))
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
    if not policies:
        raise InputError(f"{run}: no policies in its summary")
    path = run / file_name(policies[0], str(run / "summary.json")) / FILE_NAME
    setting = log.read(path)[0].get("real")
    if setting is None:
        raise InputError(f"{path}: not a log of real processes")
    rate_bytes = setting.get("rate_bytes_per_s")
    words = [f"--policy {policy}" for policy in policies]
    words.append(f"--rate {'max' if rate_bytes is None else format_size(rate_bytes)}")
    return " ".join([*words, "--huge"] if setting.get("huge") else words)


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


OUT = "[--out FOLDER]"
"""The option that every command here has: where its pages go instead."""


def run_command(
    usage: str,
    arguments: Sequence[str],
    publish_all: Callable[[list[Path], Path], Iterable[str]],
    renewed: Callable[[str], str] = lambda text: text,
) -> int:
    """Publish what the arguments name, print each name, and renew the pages that have results between markers.

    With ``--out FOLDER`` everything goes there, and no page is renewed; an installed package has no other place.

    Returns the exit status.

    Without arguments it prints ``usage``, for bad input one line; the status is then 2.
    """
    try:
        words, out = folder_of(arguments)
        if not words:
            print(f"usage: {usage}", file=sys.stderr)
            return 2
        for name in publish_all([Path(word) for word in words], published_folder(out)):
            print(f"{name}: published", file=sys.stderr)
    except InputError as error:
        print(f"molt: {error}", file=sys.stderr)
        return 2
    for path in pages() if out is None else ():
        before = path.read_text(encoding="utf-8")
        if (after := renewed(before)) != before:
            path.write_text(after, encoding="utf-8", newline="\n")
    return 0


def folder_of(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """The arguments without ``--out FOLDER``, and that folder; ``InputError`` for another option."""
    words, out = list(arguments), None
    if "--out" in words:
        at = words.index("--out")
        if at + 1 == len(words):
            raise InputError("--out: which folder?")
        out = Path(words[at + 1])
        del words[at : at + 2]
    for word in words:
        if word.startswith("-"):
            raise InputError(f"{word}: no such option; valid: --out FOLDER")
    return words, out


def published_folder(out: Path | None) -> Path:
    """Where pages go: ``out``, or ``reports/published`` of a checkout; ``InputError`` in an installed package."""
    if out is not None:
        return out
    if not all((README.parent / name).exists() for name in CHECKOUT):
        raise InputError(
            f"{README.parent} is no checkout of Molt, so nothing is published there; say --out FOLDER"
        )
    return PUBLISHED


def each(publish_one: Callable[[Path, Path], str]) -> Callable[[list[Path], Path], Iterable[str]]:
    """What publishes one, for several, one after the other."""
    return lambda paths, published: (publish_one(path, published) for path in paths)


_USAGE = f"python -m reports.publish RUN ... {OUT}"


def main(arguments: list[str]) -> int:
    """Publish the run folders given; in a checkout, draw the pictures of ``docs/images`` again."""
    status = run_command(_USAGE, arguments, each(publish), with_tables)
    if status == 0 and "--out" not in arguments:
        picture.renew(PUBLISHED, DOCS / "images")
    return status


if __name__ == "__main__":
    run_words(main, _USAGE)
