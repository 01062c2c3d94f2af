"""How well the simulator predicts a run with real processes: the same scenario in both worlds, number by number.

``python -m reports.agreement SIMULATED REAL [SIMULATED REAL]...`` takes the folders of two runs, or of several rounds
of both, and prints a page in Markdown. The error is signed: positive where the real run took more than was predicted;
of several rounds, each number is the median, and the spread of the real ones shows how far runs on one
machine differ. Kills and the rungs of every answer are compared exactly, round by round.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from tabulate import tabulate

from molt.errors import InputError
from molt.formats.log import FILE_NAME, RETOLD
from molt.program import run_words
from molt.units import ABSENT, MS_NS
from reports import formatting, metrics
from reports.metrics import nearest_rank
from reports.publish import command
from reports.real_processes import own_peak_bytes
from reports.run_log import RunLog

MEAN = "mean"
TIME_GOAL, PEAK_GOAL = 0.10, 0.05
"""How far a mean time, and a peak, may be from what was predicted."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One number in both worlds, of every round; ``None`` where a world has none."""

    name: str
    rounds: tuple[tuple[float | None, float | None], ...]
    shown: Callable[[float | None], str]
    goal: float | None = None

    @property
    def simulated(self) -> float | None:
        """The median of the simulated ones."""
        return _median(simulated for simulated, _ in self.rounds)

    @property
    def real(self) -> float | None:
        """The median of the real ones."""
        return _median(real for _, real in self.rounds)

    @property
    def difference(self) -> float | None:
        """The real number less the simulated one."""
        if self.simulated is None or self.real is None:
            return None
        return self.real - self.simulated

    @property
    def error(self) -> float | None:
        """The difference as a share of the real number."""
        return self.difference / self.real if self.difference is not None and self.real else None

    @property
    def spread(self) -> float | None:
        """From the smallest to the largest real number, as a share of their median."""
        found = [real for _, real in self.rounds if real is not None]
        return (max(found) - min(found)) / self.real if len(found) > 1 and self.real else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """One policy in both worlds. ``differences`` has, for every round, the kills and rungs that differ."""

    policy: str
    compared: tuple[Compared, ...]
    differences: tuple[tuple[str, ...], ...]

    @property
    def verdict(self) -> str:
        """Whether kills and rungs agree, and where not."""
        if not any(self.differences):
            return "kills and rungs agree exactly"
        if len(self.differences) == 1:
            return "; ".join(self.differences[0])
        return "; ".join(
            f"round {number}: {', '.join(found) or 'kills and rungs agree exactly'}"
            for number, found in enumerate(self.differences, start=1)
        )


def agreement(policy: str, rounds: Sequence[tuple[RunLog, RunLog]]) -> Agreement:
    """The simulated and the real runs of a policy, compared."""
    numbers = [
        Compared(
            f"{name}, {part}",
            tuple((of(simulated), of(real)) for simulated, real in rounds),
            formatting.span,
            TIME_GOAL if part == MEAN else None,
        )
        for name, durations in _DURATIONS.items()
        for part, of in _parts(durations)
    ]
    peaks = tuple((metrics.usage_peak_bytes(simulated), own_peak_bytes(real)) for simulated, real in rounds)
    return Agreement(
        policy,
        (*numbers, Compared("peak of the engine", peaks, _size, PEAK_GOAL)),
        tuple(differences(simulated, real) for simulated, real in rounds),
    )


def differences(simulated: RunLog, real: RunLog) -> tuple[str, ...]:
    """Kills, and the rungs of every answer, where they differ between the worlds."""
    found = []
    kills = metrics.killed(simulated), metrics.killed(real)
    if kills[0] != kills[1]:
        found.append(f"killed {kills[0]} times in the simulation, {kills[1]} times for real")
    sequences = rung_sequences(simulated), rung_sequences(real)
    for tenant in sorted({*sequences[0], *sequences[1]}):
        predicted, seen = (" ".join(rungs.get(tenant, ())) or "nothing" for rungs in sequences)
        if predicted != seen:
            found.append(f"{tenant}: {predicted} in the simulation, {seen} for real")
    return tuple(found)


def rung_sequences(run: RunLog) -> dict[str, tuple[str, ...]]:
    """The rungs that the tokens of each answer came from, attempts that were lost among them, in order."""
    return {
        tenant: tuple(rung for rung, _ in itertools.groupby(t.rung for a in attempts for t in a.tokens))
        for tenant, attempts in run.answers.items()
    }


def page(simulated: RunLog, real: RunLog, agreements: list[Agreement]) -> str:
    """The page: what was run, where, and how well it agrees. Both runs are of any one policy and round."""
    name, machine = real.scenario["name"], formatting.machine(real.header["machine"])
    profile, slowdown = real.scenario.get("profile"), real.header["real"]["slowdown"]
    made = [
        f"`{command(name, module)}`, {what} at commit {run.header['commit']}"
        for module, run, what in (
            ("sim.run", simulated, f"engine {simulated.header['engine']}"),
            ("realproc.run", real, "real processes"),
        )
    ]
    rounds = len(agreements[0].differences)
    costs = f"the costs of `{Path(str(profile)).name}`" if rounds == 1 else "a profile for each round"
    sentences = [
        f"Made by `python -m reports.agreement SIMULATED REAL{' ...' * (rounds > 1)}` of {made[0]}, and {made[1]}, "
        f"with {costs}, {slowdown:g} times slower than measured, on {machine}."
    ]
    if rounds > 1:
        sentences.append(f"Numbers are medians of {rounds} rounds.")
    if simulated.header.get("memory") == RETOLD:
        sentences.append(
            "Each simulated policy met the memory of its real run, and the same budgets were reported to it."
        )
    return "\n".join([f"# Simulated and real: {name}", "", " ".join(sentences), "", markdown(agreements)])


def markdown(agreements: list[Agreement]) -> str:
    """The table; below it the differences in kills and rungs, and how many numbers are within their goals."""
    rounds = len(agreements[0].differences)
    body = [
        [
            one.policy,
            c.name,
            c.shown(c.simulated),
            c.shown(c.real),
            _signed(c),
            formatting.signed_percent(c.error),
            formatting.percent(c.spread),
        ]
        for one in agreements
        for c in one.compared
        if c.simulated is not None or c.real is not None
    ]
    headers = ["policy", "number", "simulated", "real", "difference", "error", "spread of the real runs"]
    shown = len(headers) - (rounds == 1)
    table = tabulate(
        [row[:shown] for row in body], headers=headers[:shown], tablefmt="github",
        colalign=("left", "left", *5 * ("right",))[:shown], disable_numparse=True,
    )  # fmt: skip
    lines = [f"- {one.policy}: {one.verdict}" for one in agreements]
    compared = [c for one in agreements for c in one.compared]
    goals = [_reached("mean times", TIME_GOAL, compared), _reached("peaks", PEAK_GOAL, compared)]
    return "\n".join([table, "", *lines, "", " ".join(filter(None, goals)), ""])


def _reached(what: str, goal: float, compared: list[Compared]) -> str:
    """How many of the numbers with a goal are within it, and how far off they are on average."""
    errors = [abs(c.error) for c in compared if c.goal == goal and c.error is not None]
    if not errors:
        return ""
    near = sum(error <= goal for error in errors)
    return (
        f"Of {len(errors)} {what} {near} are within {goal:.0%}; they are {fmean(errors):.1%} off on average."
    )


# --- details ---


def _gaps_ms(run: RunLog) -> list[float]:
    return [
        (after.at_ns - before.at_ns) / MS_NS
        for attempt in run.surviving
        for before, after in itertools.pairwise(attempt.tokens)
    ]


def _first_ms(run: RunLog) -> list[float]:
    numbers = (tenant["ttft_ms"] for tenant in metrics.tenants(run).values())
    return [ms for ms in numbers if ms is not None]


def _switches_ms(run: RunLog) -> list[float]:
    return [record["duration_ns"] / MS_NS for record in run.events("Switched")]


def _loads_ms(run: RunLog) -> list[float]:
    """From the decision until the rung was loaded, without loads that no tenant waited for."""
    decided_ns = {record["seq"]: record["at_ns"] for record in run.decisions("Load")}
    return [
        (record["at_ns"] - decided_ns[record["decision"]]) / MS_NS
        for record in run.events("RungLoaded")
        if record.get("decision") in decided_ns
    ]


_DURATIONS: dict[str, Callable[[RunLog], list[float]]] = {
    "first token": _first_ms,
    "between tokens": _gaps_ms,
    "switch": _switches_ms,
    "load": _loads_ms,
}


def _parts(
    durations: Callable[[RunLog], list[float]],
) -> Iterator[tuple[str, Callable[[RunLog], float | None]]]:
    yield MEAN, lambda run: fmean(found) if (found := durations(run)) else None
    for percent in (50, 90, 99):
        yield f"p{percent}", lambda run, p=percent: nearest_rank(sorted(durations(run)), p)  # type: ignore[misc]


def _size(value: float | None) -> str:
    return formatting.size(None if value is None else round(value))


def _signed(compared: Compared) -> str:
    """The difference in the unit of its numbers."""
    if (difference := compared.difference) is None:
        return ABSENT
    return f"{'-' if difference < 0 else '+'}{compared.shown(abs(difference))}"


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None


_USAGE = "python -m reports.agreement SIMULATED REAL [SIMULATED REAL]..."


def main(arguments: list[str]) -> int:
    """Print the page of the folders of one round or more."""
    if not arguments or len(arguments) % 2:
        print(f"usage: {_USAGE}", file=sys.stderr)
        return 2
    folders = [Path(argument) for argument in arguments]
    try:
        print(page_of(list(zip(folders[::2], folders[1::2], strict=True))))
    except InputError as error:
        print(f"molt: {error}", file=sys.stderr)
        return 2
    return 0


def page_of(rounds: Sequence[tuple[Path, Path]]) -> str:
    """The page of the folders of two runs, simulated and real, or of several rounds of both; ``InputError`` if that
    cannot be."""
    policies = _in_common([folder for both in rounds for folder in both])
    runs = {
        name: [(_read(simulated, name), _read(real, name)) for simulated, real in rounds] for name in policies
    }
    _check_headers(*runs[policies[0]][0], *rounds[0])
    return page(*runs[policies[0]][0], [agreement(name, of_policy) for name, of_policy in runs.items()])


def _check_headers(simulated: RunLog, real: RunLog, simulated_folder: Path, real_folder: Path) -> None:
    """``InputError`` for runs whose headers do not say what the page says of them."""
    for run, folder, needed in (
        (simulated, simulated_folder, ("commit", "engine")),
        (real, real_folder, ("commit", "machine", "real", "scenario")),
    ):
        for key in needed:
            if run.header.get(key) is None:
                raise InputError(f"{folder}: its logs have no {key} in their headers")
    if real.header["real"].get("slowdown") is None or real.scenario.get("name") is None:
        raise InputError(f"{real_folder}: its logs do not say of which scenario they are, or how much slower")


def _in_common(folders: Sequence[Path]) -> list[str]:
    """The policies that every folder has a log of."""
    found = set.intersection(*({p.parent.name for p in folder.glob(f"*/{FILE_NAME}")} for folder in folders))
    if not found:
        raise InputError(f"{' and '.join(map(str, folders))} have no policy in common")
    return sorted(found)


def _read(folder: Path, policy: str) -> RunLog:
    """The log of a policy; ``InputError`` for an incomplete one, whose figures are of another span of time."""
    path = folder / policy / FILE_NAME
    run = RunLog.read(path)
    if not run.complete:
        raise InputError(f"{path}: incomplete: the log has no end, so its figures cannot be compared")
    return run


if __name__ == "__main__":
    run_words(main, _USAGE)
