"""The process with the models: ``python -m molt.live.child``, started by ``remote.py``, for which it calls an engine.

Rules of this process:

- It enters its control group first, before a tensor library is imported, so that all it allocates is counted there.
- What it says to its parent goes through its first standard output; whatever else is printed goes to the error output.
- It is tied to its parent, and ignores the Ctrl-C of a terminal, which is for the parent.
- A failure that the protocol knows is answered. Any other ends the process: what it held can no longer be relied upon.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer

from molt.core.engine_protocol import Engine, EngineKind, LoadError, SpillError, SwitchError
from molt.engine.modelled import ModelledEngine
from molt.errors import InputError, LadderError
from molt.jobs.profile import load_profile, slowed
from molt.live import messages, parent_death
from molt.live.messages import CALLS, REPLIES, Ended, Pipe, Reply
from molt.live.paced import Paced
from molt.models.ladder_file import LadderSpec, resolve
from molt.work import Unfinished


class Residency(StrEnum):
    """Weights as memory of the process, or as pages of a file."""

    ANONYMOUS = "anonymous"
    MAPPED = "mapped"


def main(
    parent: Annotated[int, typer.Option(help="Process id of the parent.")],
    ladder: Annotated[str, typer.Option(help="Name or file of the ladder.")],
    engine: Annotated[
        EngineKind, typer.Option(help="Real: compute every step. Modelled: no tensors, only sizes.")
    ],
    weights: Annotated[
        Residency | None, typer.Option(help="Residency of the weights, in place of the ladder's.")
    ] = None,
    group: Annotated[Path | None, typer.Option(help="Folder of a control group to enter.")] = None,
    spill: Annotated[Path | None, typer.Option(help="Folder on the disk for spilled caches.")] = None,
    device: Annotated[
        str, typer.Option(help="Device that the real engine computes on: cpu or cuda.")
    ] = "cpu",
    profile: Annotated[str | None, typer.Option(help="With --pace: name or file of the profile.")] = None,
    pace: Annotated[
        float, typer.Option(help="Duration of a modelled step, as a multiple of the profile's.")
    ] = 0.0,
) -> None:
    """Serve one engine on the standard input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = _take_pipe()
    parent_death.tie_to_parent(parent)
    try:
        if group is not None:
            _enter(group)
        spec = resolve(ladder)
        is_real = engine is EngineKind.REAL
        made = _real(spec, weights, spill, device) if is_real else _modelled(spec, profile, pace)
    except InputError as error:
        pipe.send(REPLIES, Reply(0, failure="InputError", reason=str(error)))
        raise typer.Exit(2) from None
    pipe.send(REPLIES, Reply(0))
    serve(made, pipe)


def serve(engine: Engine, pipe: Pipe) -> None:
    """Answer calls until the other side has gone."""
    try:
        while True:
            numbered = pipe.receive(CALLS)
            pipe.send(REPLIES, answer(engine, numbered.number, numbered.call))
    except Ended:
        return


def answer(engine: Engine, number: int, call: messages.Call) -> Reply:
    """What comes of one call."""
    try:
        result = _perform(engine, call)
    except (LoadError, SwitchError, SpillError) as error:
        result = {"failure": type(error).__name__, "reason": str(error)}
    return Reply(number, **(result | _held(engine, call)))


def _perform(engine: Engine, call: messages.Call) -> dict[str, Any]:
    match call:
        case messages.LoadCall():
            return {"is_done": _load(engine, call)}
        case messages.ReleaseCall():
            return {"freed_bytes": engine.release(call.rung)}
        case messages.AdmitCall():
            engine.admit(call.tenant, call.request, call.rung, call.capacity)
        case messages.PrefillCall():
            return _prefill(engine, call)
        case messages.DecodeCall():
            return {"decoded": engine.decode(call.tenant, call.count, call.heal)}
        case messages.SwitchCall():
            return _switch(engine, call)
        case messages.GrowCall():
            engine.grow(call.tenant, call.capacity)
        case messages.ShedCall():
            return {"freed_bytes": engine.shed(call.tenant, call.keep_cells, call.rung)}
        case messages.TenantCall():
            return {"freed_bytes": getattr(engine, call.call)(call.tenant)}
        case _:
            assert_never(call)
    return {}


def _load(engine: Engine, call: messages.LoadCall) -> bool:
    """Weights that cannot be used are a load that fails: others may be, or these again when they were mended."""
    try:
        return engine.load(call.rung, call.within_ns)
    except LadderError as error:
        raise LoadError(str(error)) from error


def _prefill(engine: Engine, call: messages.PrefillCall) -> dict[str, Any]:
    try:
        engine.prefill(call.tenant, call.tokens, call.chunk, call.within_ns)
    except Unfinished:
        return {"is_done": False}
    return {"is_done": True}


def _switch(engine: Engine, call: messages.SwitchCall) -> dict[str, Any]:
    try:
        return {"is_done": True, "handoff": engine.switch(call.tenant, call.destination, call.within_ns)}
    except Unfinished:
        return {"is_done": False}


def _held(engine: Engine, call: messages.Call) -> dict[str, Any]:
    match call:
        case messages.LoadCall() | messages.ReleaseCall():
            return {"held_bytes": engine.weight_bytes(call.rung)}
        case messages.TenantCall(call="finish"):
            return {}
        case _:
            return {
                "held_bytes": engine.cache_bytes(call.tenant),
                "settled": engine.settled_cells(call.tenant),
            }


def _take_pipe() -> Pipe:
    """The standard input and output as the pipe; in their places, nothing and the error output."""
    pipe = Pipe(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return pipe


def _enter(group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text("0", encoding="ascii")
    except OSError as error:
        raise InputError(f"{group}: this process cannot be moved into it: {error.strerror}") from None


def _real(spec: LadderSpec, weights: Residency | None, spill: Path | None, device: str) -> Engine:
    from molt.engine.device import usable_device
    from molt.engine.real import RealEngine  # torch
    from molt.models.loader import mapped_image

    if weights is not None:
        spec = replace(spec, rungs=tuple(replace(rung, residency=weights.value) for rung in spec.rungs))
    for rung in spec.rungs:
        if rung.residency == "mapped":
            mapped_image(rung)
    return RealEngine(spec, device=usable_device(device), spill_folder=spill)


def _modelled(spec: LadderSpec, profile: str | None, pace: float) -> Engine:
    if not pace:
        return ModelledEngine(spec.ladder)
    costs = slowed(load_profile(profile or spec.ladder.name, spec.ladder), pace)
    return Paced(spec.ladder, costs, lambda cost_ns: time.sleep(cost_ns / 1e9))


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program(prog_name="molt.live.child", args=sys.argv[1:])
