"""Reads a profile: what every step costs on a machine, as `molt calibrate` measured it."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from molt.core.costs import CostModel, DiskCosts, RouteCosts, RungCosts, StepCost
from molt.core.ladder import Ladder, RouteKind
from molt.errors import InputError
from molt.formats.log import plain, restore


def load_profile(name_or_path: str, ladder: Ladder) -> CostModel:
    """A profile by name (``scenarios/profiles``) or path, checked to cover every rung and carried route."""
    path = Path(name_or_path)
    if path.suffix != ".json":
        path = Path(str(files("scenarios"))) / "profiles" / f"{path.name}.json"
    try:
        costs = restore(CostModel, from_json(path.read_bytes()))
        _check_numbers(plain(costs), "")
    except FileNotFoundError:
        written = f"{ladder.name}.json" if Path(name_or_path).suffix != ".json" else name_or_path
        raise InputError(
            f"profile {name_or_path!r}: no such profile{_shipped(name_or_path)}; write one with: molt calibrate LADDER "
            f"--out {written}, and name it: --profile {written}, or in a scenario hardware: {{profile: {written}}}"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not a profile: {error}") from error
    missing = [rung.name for rung in ladder.rungs if rung.name not in costs.rungs]
    missing += [
        f"{route.source}->{route.dest}"
        for route in ladder.routes
        if route.kind is not RouteKind.REREAD and costs.route(route.source, route.dest) is None
    ]
    if missing:
        raise InputError(f"{path}: no costs for {missing[0]!r} of ladder {ladder.name!r}")
    return costs


def _shipped(name: str) -> str:
    """The names that a name may have been meant for; a path was meant for a file."""
    if Path(name).suffix == ".json":
        return ""
    names = sorted(file.stem for file in (Path(str(files("scenarios"))) / "profiles").glob("*.json"))
    return f" (shipped: {', '.join(names)})"


def slowed(costs: CostModel, factor: float) -> CostModel:
    """The same machine, ``factor`` times slower in everything a model does, and with such a disk.

    The start of a process is left as measured: it is an interpreter and its libraries, which a device's app would
    not carry, and the policies that are killed should not look worse than they are.
    """
    return replace(
        costs,
        disk=DiskCosts(costs.disk.write_byte_ns * factor, costs.disk.read_byte_ns * factor),
        rungs={name: _slowed_rung(rung, factor) for name, rung in costs.rungs.items()},
        routes={
            name: RouteCosts(_slowed_step(route.switch, factor), route.divergences)
            for name, route in costs.routes.items()
        },
    )


def _check_numbers(value: Any, place: str) -> None:
    """Every number of a profile is finite and not negative, and nothing is there but numbers and names."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_numbers(item, f"{place}[{index}]")
    elif place not in {"machine", "ladder"} and (
        isinstance(value, bool) or not isinstance(value, int | float)
    ):
        raise ValueError(f"{place}: {value!r} is not a number")
    elif isinstance(value, int | float) and not 0 <= value < float("inf"):
        raise ValueError(f"{place}: {value!r} is not a time")


def _slowed_rung(costs: RungCosts, factor: float) -> RungCosts:
    return RungCosts(
        load_ns=round(costs.load_ns * factor),
        release_ns=round(costs.release_ns * factor),
        read=_slowed_step(costs.read, factor),
        decode=_slowed_step(costs.decode, factor),
        healing=costs.healing,
    )


def _slowed_step(cost: StepCost, factor: float) -> StepCost:
    return StepCost(cost.fixed_ns * factor, cost.token_ns * factor, cost.pair_ns * factor)
