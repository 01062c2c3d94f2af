"""The physics of a simulated device: a measured profile, slowed down."""

from __future__ import annotations

from dataclasses import replace

from molt.core.costs import CostModel, DiskCosts, RouteCosts, RungCosts, StepCost


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
