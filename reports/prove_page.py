"""Publishes what ``molt prove`` found: ``python -m reports.prove_page FILE``, from its JSON alone.

The page and the JSON go to ``reports/published/prove.md`` and ``prove.json``; a test makes the page again and compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from molt.errors import InputError
from molt.program import run_words
from molt.units import show_duration, show_percent, show_size
from reports.confidence import upper_bound
from reports.formatting import machine, printable
from reports.publish import OUT, PUBLISHED, run_command
from reports.shapes import checked_proof, read_text


def page(text: str) -> str:
    """The page of one JSON, given as its text, as Markdown."""
    of = checked_proof(text, "prove.json")
    sections = (
        _summary(of),
        _machines(of["rule_machines"]),
        _small_worlds(of),
        _fuzz(of["fuzz"]),
        _worst(of["worst_found"]["worst"]),
        _suites(_suites_of(of)),
        _facts(of, hashlib.sha256(text.encode()).hexdigest()),
    )
    return printable("\n\n".join(sections) + "\n")


def _summary(of: Mapping[str, Any]) -> str:
    broken, silent = of["failures"], of["silent"]
    lines = [
        "# What was tried, and what broke",
        f"Made by `{of['command']}`; the figures are in [prove.json](prove.json).",
        f"**{len(broken)} failures, {len(silent)} mechanisms that never fired.**",
        *(f"- {line}" for line in broken),
        *(f"- never fired: {line}" for line in silent),
    ]
    return "\n\n".join(lines)


def parts_table(of: Mapping[str, Any]) -> str:
    """What was tried in each part, how much of it, and how often a promise broke."""
    machines, fuzz = of["rule_machines"], of["fuzz"]
    states = sum(one["states"] for one in _worlds(of).values())
    tests = {name.replace("_", " "): suite for name, suite in _suites_of(of).items()}
    rows = [
        ["rule machines", f"{machines['steps']:,} stateful steps", len(machines["failures"])],
        ["every state of small worlds", f"{states:,} states", len(of["small_worlds"]["failures"])],
        ["fuzz", f"{fuzz['seeds']:,} worlds", len(fuzz["failures"])],
        *(
            [name, f"{one['passed'] + len(one['failed'])} tests", len(one["failed"])]
            for name, one in tests.items()
        ),
    ]
    return _grid(rows, ["part", "tried", "failures"])


def _machines(of: Mapping[str, Any]) -> str:
    names = list(of["fired"])
    events = sorted({event for counts in of["fired"].values() for event in counts} - {"steps"})
    rows = [[event, *(of["fired"][name].get(event, 0) for name in names)] for event in ["steps", *events]]
    commits = ", ".join(f"{commit} {steps:,}" for commit, steps in of["commits"].items())
    mended = "\n".join(
        ["Broke a rule, and held when run again on a later commit:\n", *(f"- {x}" for x in of["mended"])]
    )
    return (
        f"## Rule machines: {of['steps']:,} stateful steps\n\n"
        f"{of['examples']:,} examples from the first {of['seeds']:,} seeds. After every step belief and truth agree "
        "and the rules of `tests/rules.py` hold; in the end there is enough memory for a while, and every tenant has "
        "the whole answer. What the calm and the restart machine lived through, the simulator lives through again and "
        f"must write the same. Steps by commit: {commits}.\n\n"
        + (f"{mended}\n\n" if of["mended"] else "")
        + _grid(rows, ["what happened", *names])
    )


def _small_worlds(of: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            one["states"],
            one["transitions"],
            f"{one['depth']}, all there are" if one["complete"] else one["depth"],
            one["live"],
        ]
        for name, one in _worlds(of).items()
    ]
    headers = ["world", "states", "transitions", "depth", "states on the way to rest"]
    return (
        "## Every state of small worlds\n\n"
        "No kill, no rule broken, no lever too early; and from every state all tenants finish once memory is "
        "plentiful.\n\n" + _grid(rows, headers)
    )


def _fuzz(of: Mapping[str, Any]) -> str:
    rows = [[name, count] for name, count in of["mechanisms"].items()]
    share = 100 * upper_bound(len(of["failures"]), of["seeds"])
    return (
        f"## Fuzz: {of['seeds']:,} worlds over {of['simulated_hours']:,.0f} simulated hours\n\n"
        f"{of['tokens']:,} tokens, {of['tokens_healed']:,} of them healed, in {of['wall_s']:,.0f} s. Each world is run "
        f"twice, and both logs have the same hash. {len(of['failures'])} failures: with 95 % confidence at most "
        f"{share:.2g} % of such worlds break a promise. Largest overshoot after enforcement, in worlds whose signals "
        f"come in time: {of['overshoot_bytes_max']:,} bytes.\n\n" + _grid(rows, ["mechanism", "fired"])
    )


def _worst(of: Mapping[str, Any]) -> str:
    rows = [
        [
            policy,
            one["worlds"],
            f"{one['after_enforcement_bytes']:,}",
            show_size(one["before_enforcement_bytes"]),
            show_duration(one["since_fall_ns"]),
            show_duration(one["at_a_stretch_ns"]),
            show_percent(one["share_of_bound"], 1),
        ]
        for policy, one in of.items()
    ]
    headers = (
        "policy",
        "worlds",
        "over after enforcement, bytes",
        "over before it",
        "longest since a fall",
        "longest at a stretch",
        "share of the bound in time",
    )
    return (
        "## The worst that was found, beside the bound\n\n"
        "A search climbs towards it. After enforcement the bound is 0 bytes; in time it is each world's own "
        "([the bound](../../docs/explanations/the-bound.md)).\n\n" + _grid(rows, headers)
    )


def _worlds(of: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: one for name, one in of["small_worlds"].items() if isinstance(one, dict) and "states" in one
    }


def _suites_of(of: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in of.items() if isinstance(part, dict) and "passed" in part}


def _suites(of: Mapping[str, Any]) -> str:
    rows = [[name, one["passed"], len(one["failed"]), ", ".join(one["files"])] for name, one in of.items()]
    return "## Tests that are a part of the proof\n\n" + _grid(rows, ["what", "passed", "failed", "files"])


def _facts(of: Mapping[str, Any], digest: str) -> str:
    facts = {
        "command": f"`{of['command']}`",
        "time": ", ".join(f"{name} {part['wall_s']:,.0f} s" for name, part in _parts(of).items())
        + "; what was finished before counts as it was",
        "commit": of["commit"],
        "commits of the parts": "; ".join(f"{name} {', '.join(one)}" for name, one in _commits(of).items()),
        "machine": f"{machine(of['machine'])}; other work ran on it, so times are upper bounds",
        "versions": ", ".join(f"{name} {version}" for name, version in of["versions"].items()),
        "sha256 of prove.json": digest,
    }
    return "## Where this comes from\n\n" + "\n".join(f"- {key}: {fact}" for key, fact in facts.items())


def _parts(of: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: part for name, part in of.items() if isinstance(part, dict) and "commit" in part}


def _commits(of: Mapping[str, Any]) -> dict[str, Iterable[str]]:
    return {name: part.get("commits", [part["commit"]]) for name, part in _parts(of).items()}


def _grid(rows: Iterable[Iterable[Any]], headers: Iterable[str]) -> str:
    return tabulate(list(rows), list(headers), tablefmt="github", intfmt=",")


def publish(path: Path, published: Path = PUBLISHED) -> str:
    """Put the JSON and its page into ``published``; returns their name. ``InputError`` for what is no proof."""
    text = read_text(path)
    checked_proof(text, f"{path}: not what molt prove writes")
    made = page(text)
    published.mkdir(parents=True, exist_ok=True)
    (published / "prove.json").write_text(text, encoding="utf-8", newline="\n")
    (published / "prove.md").write_text(made, encoding="utf-8", newline="\n")
    return "prove"


_USAGE = f"python -m reports.prove_page FILE {OUT}"


def main(arguments: list[str]) -> int:
    """Publish the file given."""
    return run_command(_USAGE, arguments, _publish_single)


def _publish_single(paths: list[Path], published: Path) -> Iterable[str]:
    if len(paths) > 1:
        raise InputError(f"{paths[1]}: one file is published, not {len(paths)}")
    return [publish(paths[0], published)]


if __name__ == "__main__":
    run_words(main, _USAGE)
