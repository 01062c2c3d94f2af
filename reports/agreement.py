"""How well the simulator foretells a run with real processes: the same scenario in both worlds, number by number.

``python -m reports.agreement SIMULATED REAL`` takes the folders of two runs and prints a page in Markdown. The error
is signed: positive where the real run took more than was foretold. Kills and the rungs of every answer are compared
exactly.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tabulate import tabulate

from molt.errors import InputError
from molt.log import FILE_NAME
from reports import metrics, show
from reports.metrics import NS_PER_MS, nearest_rank
from reports.publish import command
from reports.real import own_peak_bytes
from reports.run import Run

MEAN = "mean"
TIME_GOAL, PEAK_GOAL = 0.10, 0.05
"""How far a mean time, and a peak, may be from what was foretold."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One number in both worlds; ``None`` where a world has none."""

    name: str
    simulated: float | None
    real: float | None
    shown: Callable[[float | None], str]
    goal: float | None = None

    @property
    def error(self) -> float | None:
        """The real number less the simulated one, as a share of the real one."""
        if self.simulated is None or not self.real:
            return None
        return (self.real - self.simulated) / self.real


@dataclass(frozen=True, slots=True)
class Agreement:
    """One policy in both worlds."""

    policy: str
    compared: tuple[Compared, ...]
    kills: tuple[int, int]
    rungs: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]

    @property
    def differences(self) -> tuple[str, ...]:
        """What should be the same and is not."""
        found = []
        if self.kills[0] != self.kills[1]:
            found.append(f"killed {self.kills[0]} times in the simulation, {self.kills[1]} times for real")
        for tenant in sorted({*self.rungs[0], *self.rungs[1]}):
            simulated, real = (" ".join(rungs.get(tenant, ())) or "nothing" for rungs in self.rungs)
            if simulated != real:
                found.append(f"{tenant}: {simulated} in the simulation, {real} for real")
        return tuple(found)


def agreement(policy: str, simulated: Run, real: Run) -> Agreement:
    """Both runs of a policy, compared."""
    numbers = [
        Compared(f"{name}, {part}", of(simulated), of(real), show.span, TIME_GOAL if part == MEAN else None)
        for name, durations in _DURATIONS.items()
        for part, of in _parts(durations)
    ]
    peaks = metrics.usage_peak_bytes(simulated), own_peak_bytes(real)
    peak = Compared("peak of the engine", *peaks, _size, PEAK_GOAL)
    return Agreement(
        policy,
        (*numbers, peak),
        (metrics.killed(simulated), metrics.killed(real)),
        (rung_sequences(simulated), rung_sequences(real)),
    )


def rung_sequences(run: Run) -> dict[str, tuple[str, ...]]:
    """The rungs that the tokens of each answer came from, attempts that were lost among them, in order."""
    return {
        tenant: tuple(rung for rung, _ in itertools.groupby(t.rung for a in attempts for t in a.tokens))
        for tenant, attempts in run.answers.items()
    }


def page(simulated: Run, real: Run, agreements: list[Agreement]) -> str:
    """The page: what was run, where, and how well it agrees. Both runs are of any one policy."""
    name, machine = real.scenario["name"], show.machine(real.header["machine"])
    profile, slowdown = real.scenario.get("profile"), real.header["real"]["slowdown"]
    made = [
        f"`{command(name, module)}`, {what} at commit {run.header['commit']}"
        for module, run, what in (
            ("sim.run", simulated, f"engine {simulated.header['engine']}"),
            ("realproc.run", real, "real processes"),
        )
    ]
    return "\n".join(
        [
            f"# Simulated and real: {name}",
            "",
            f"Made by `python -m reports.agreement SIMULATED REAL` of {made[0]}, and {made[1]}, with the costs of "
            f"`{Path(str(profile)).name}`, {slowdown:g} times slower than measured, on {machine}.",
            "",
            markdown(agreements),
        ]
    )


def markdown(agreements: list[Agreement]) -> str:
    """The table; below it what should be the same and is not, and how many numbers are as near as they should be."""
    body = [
        [one.policy, c.name, c.shown(c.simulated), c.shown(c.real), _percent(c.error)]
        for one in agreements
        for c in one.compared
        if c.simulated is not None or c.real is not None
    ]
    table = tabulate(
        body, headers=["policy", "number", "simulated", "real", "error"], tablefmt="github",
        colalign=("left", "left", "right", "right", "right"), disable_numparse=True,
    )  # fmt: skip
    lines = [
        f"- {one.policy}: " + ("; ".join(one.differences) or "kills and rungs agree exactly")
        for one in agreements
    ]
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


def _gaps_ms(run: Run) -> list[float]:
    return [
        (after.at_ns - before.at_ns) / NS_PER_MS
        for attempt in run.surviving
        for before, after in itertools.pairwise(attempt.tokens)
    ]


def _first_ms(run: Run) -> list[float]:
    numbers = (tenant["ttft_ms"] for tenant in metrics.tenants(run).values())
    return [ms for ms in numbers if ms is not None]


def _switches_ms(run: Run) -> list[float]:
    return [record["duration_ns"] / NS_PER_MS for record in run.events("Switched")]


def _loads_ms(run: Run) -> list[float]:
    """From the decision to the rung's being there, those that nobody waited for left out."""
    asked = {record["seq"]: record["at_ns"] for record in run.decisions("Load")}
    return [
        (record["at_ns"] - asked[record["decision"]]) / NS_PER_MS
        for record in run.events("RungLoaded")
        if record.get("decision") in asked
    ]


_DURATIONS: dict[str, Callable[[Run], list[float]]] = {
    "first token": _first_ms,
    "between tokens": _gaps_ms,
    "switch": _switches_ms,
    "load": _loads_ms,
}


def _parts(durations: Callable[[Run], list[float]]) -> Iterator[tuple[str, Callable[[Run], float | None]]]:
    yield MEAN, lambda run: fmean(found) if (found := durations(run)) else None
    for percent in (50, 90, 99):
        yield f"p{percent}", lambda run, p=percent: nearest_rank(sorted(durations(run)), p)  # type: ignore[misc]


def _size(value: float | None) -> str:
    return show.size(None if value is None else round(value))


def _percent(error: float | None) -> str:
    return show.ABSENT if error is None else f"{100 * error:+.1f} %"


def main(arguments: list[str]) -> int:
    """Print the page of two run folders."""
    if len(arguments) != 2:
        print("usage: python -m reports.agreement SIMULATED REAL", file=sys.stderr)
        return 2
    simulated, real = map(Path, arguments)
    both = sorted(p.parent.name for p in simulated.glob(f"*/{FILE_NAME}") if (real / p.parent.name).is_dir())
    try:
        if not both:
            raise InputError(f"{simulated} and {real} have no policy in common")
        runs = [(Run.read(simulated / name / FILE_NAME), Run.read(real / name / FILE_NAME)) for name in both]
    except InputError as error:
        print(f"molt: {error}", file=sys.stderr)
        return 2
    print(page(*runs[0], [agreement(name, *pair) for name, pair in zip(both, runs, strict=True)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
