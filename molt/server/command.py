"""``molt serve`` and ``python -m molt.server``."""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from molt.core import events as e
from molt.core.costs import CostModel
from molt.core.engine_protocol import EngineKind
from molt.core.ladder import Ladder
from molt.core.view import Policy
from molt.errors import InputError
from molt.formats.log import FILE_NAME, Log
from molt.jobs.job import grounds
from molt.jobs.plugins import make_policy
from molt.jobs.profile import load_profile
from molt.jobs.scenario import PolicySpec
from molt.jobs.trace import parse_budget
from molt.live.live_world import LiveWorld
from molt.live.remote import ChildSpec, RemoteEngine
from molt.models.chat_template import find_chat_template
from molt.models.ladder_file import LadderSpec, resolve
from molt.program import option
from molt.server.access import Keys, allowed_hosts, is_loopback
from molt.server.admin import MANUAL, Budgeting, budget_on, make_follower
from molt.server.answering import Answering
from molt.server.app import Service, application
from molt.server.bridge import Bridge, OpenWorld
from molt.server.flops_saved import FlopsSaved
from molt.server.limits import Limits
from molt.server.listen import admin_listener, listen_on, say, serve
from molt.server.log_file import LogFile, NoLog
from molt.server.prometheus import Metrics
from molt.server.prompts import Prompter
from molt.units import parse_size, show_size

MEMORY_SHARE = 0.8
"""Of the memory available when the server starts: the default budget is at most this share."""

CACHES = 4
"""Whole contexts on the largest rung that fit into the default budget."""


NONE = "none"
"""``--log none``: no log. ``--log-size none``: one file of any size."""


class DiscreetLog(Log):
    """A log without the text of answers."""

    def event(self, event: e.AnyEvent) -> int:
        return super().event(replace(event, pieces=()) if isinstance(event, e.TokensProduced) else event)


def command(
    ladder: Annotated[str, typer.Option(help="Name or file of the ladder to serve.")] = "pico",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8080,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than the loopback only with --token.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Further Host header to accept, NAME:PORT; repeat for more.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Policy, by name or as module:Class.")] = "molt",
    budget: Annotated[
        str | None,
        typer.Option(
            help="Memory budget at the start, such as 40MiB or '150% of tier0'. "
            "Default: room for the two largest rungs and four caches, if the machine has it."
        ),
    ] = None,
    follow: Annotated[
        str, typer.Option(help="Source of the budget: manual (the administrator), cgroup, psi, memavailable.")
    ] = MANUAL,
    profile: Annotated[
        str | None,
        typer.Option(help="Name or file of a profile by `molt calibrate`; default: the ladder's."),
    ] = None,
    engine: Annotated[
        EngineKind,
        typer.Option(help="Modelled: takes the profile's time, but computes no text."),
    ] = EngineKind.REAL,
    queue: Annotated[
        int,
        typer.Option(min=1, max=1024, help="Answers under way or waiting, at most."),
    ] = 32,
    token: Annotated[
        str | None, typer.Option(envvar="MOLT_TOKEN", help="Token required from clients.")
    ] = None,
    admin_token: Annotated[
        str | None,
        typer.Option(
            envvar="MOLT_ADMIN_TOKEN",
            help="Token required from administrators, not printed; default: a random one, printed.",
        ),
    ] = None,
    admin_socket: Annotated[
        Path | None, typer.Option(help="UNIX socket for administration; it needs no token.")
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="Refuse fields of requests that would be ignored, such as user or metadata.")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|none",
            help="New file for the event log, or none; default: runs/serve-TIME/events.jsonl.",
        ),
    ] = None,
    log_size: Annotated[
        str, typer.Option(metavar="SIZE|none", help="Size from which the log goes on in another file.")
    ] = "64MiB",
    log_files: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Files of the log that are kept, the one being written included."),
    ] = 8,
    log_text: Annotated[bool, typer.Option(help="Log the text of answers too.")] = False,
) -> None:
    """Serve answers over HTTP, in OpenAI's API, within a memory budget that may change at any time.

    Example: molt serve --ladder pico --port 8080 --budget 40MiB
    """
    token, admin_token = token or None, admin_token or None  # an empty token is none
    if not is_loopback(host) and token is None:
        raise InputError(
            f"--host {host}: token required from clients outside this machine; set it with --token"
        )
    spec = resolve(ladder)
    costs = load_profile(profile or spec.ladder.name, spec.ladder)
    chosen = make_policy(policy, {})
    default_bytes = default_budget(spec.ladder)
    begin_bytes = default_bytes if budget is None else _budget(budget, spec.ladder)
    follower = None if follow == MANUAL else _follower(follow)
    log_bytes = None if log_size == NONE else option("--log-size", log_size, parse_size)
    given_token = admin_token
    if admin_socket is None and admin_token is None:
        admin_token = secrets.token_urlsafe(16)
    limits = replace(Limits(), answers=queue)
    child = ChildSpec(ladder, engine, profile=profile or spec.ladder.name, pace=1.0)
    metrics = Metrics()
    with ExitStack() as stack:
        sockets = [stack.enter_context(listen_on(host, port))]
        port = sockets[0].getsockname()[1]
        if admin_socket is not None:
            sockets.append(stack.enter_context(admin_listener(admin_socket)))
        sink = stack.enter_context(closing(_log_sink(log, log_bytes, log_files, metrics)))
        journal = (Log if log_text else DiscreetLog)(sink, header(spec, costs, chosen, policy, engine))
        bridge = Bridge(
            spec.ladder,
            live_world(spec.ladder, costs, chosen, child, journal),
            limits,
            metrics,
            budget_bytes=begin_bytes,
        )
        budgeting = Budgeting(bridge, max(default_bytes, begin_bytes))
        app = application(
            service(bridge, spec, budgeting, chosen, strict=strict),
            allowed_hosts(host, port, allow_host or ()),
            Keys(token, admin_token),
            any_address=not is_loopback(host),
        )

        def started() -> None:
            if follower is not None:
                budgeting.follow(follow, follower)
            shown = f"[{host}]" if ":" in host else host
            printed = f"#admin={admin_token}" if given_token is None and admin_token is not None else ""
            say(f"http://{shown}:{port}/{printed}")
            source = "" if follower is None else f" by {follow}"
            budget_shown = show_size(bridge.budget_bytes)
            where = sink.name if isinstance(sink, NoLog) else f"log in {sink.name}"
            say(f"{spec.ladder.name} under {chosen.name} with {budget_shown}{source}; {where}")

        well = asyncio.run(serve(bridge, app, sockets, started=started))
    if isinstance(bridge.failure, InputError):
        raise bridge.failure
    if bridge.failure is not None:
        traceback.print_exception(bridge.failure)
    if not well:
        raise typer.Exit(1)


def live_world(ladder: Ladder, costs: CostModel, policy: Policy, child: ChildSpec, journal: Log) -> OpenWorld:
    """A function that opens the world of a server: one engine in a process of its own."""
    return lambda on_record, budget_bytes: LiveWorld(
        ladder, costs, policy, RemoteEngine(child), journal, budget_bytes=budget_bytes, on_record=on_record
    )


def service(
    bridge: Bridge, spec: LadderSpec, budgeting: Budgeting, policy: Policy, *, strict: bool = False
) -> Service:
    """The handlers of the routes."""
    bridge.metrics.watch(bridge.running, bridge.waiting)
    context = min(rung.max_positions for rung in spec.ladder.rungs)
    template = find_chat_template(spec.rungs[0].folder, spec.tokenizer)
    answering = Answering(
        bridge, Prompter(spec.tokenizer, context - 1, template), FlopsSaved(spec).flops, strict
    )
    return Service(bridge, answering, budgeting, policy, created=int(time.time()))


def default_budget(ladder: Ladder) -> int:
    """Room for the two largest rungs and a few whole caches, if the machine has that much now."""
    rungs = sorted((rung.resident_bytes for rung in ladder.rungs), reverse=True)[:2]
    wanted = sum(rungs) + CACHES * ladder.top.kv_bytes(ladder.top.max_positions)
    return min(wanted, round(MEMORY_SHARE * psutil.virtual_memory().available))


def header(
    spec: LadderSpec, costs: CostModel, policy: Policy, source: str, engine: EngineKind
) -> dict[str, Any]:
    """The first line of a server's log."""
    return {
        "server": {"ladder": spec.ladder.name},
        "engine": engine,
        "clock": "live",
        **grounds(spec.ladder, costs, PolicySpec(source), policy),
    }


def _budget(text: str, ladder: Ladder) -> int:
    try:
        return budget_on(parse_budget(text), ladder)
    except InputError as error:
        raise InputError(f"--budget: {text!r}: {error}") from None


def _follower(name: str) -> Any:
    try:
        return make_follower(name)
    except InputError as error:
        raise InputError(f"--follow: {error}") from None


def _log_sink(log: str | None, size_bytes: int | None, files: int, metrics: Metrics) -> LogFile | NoLog:
    """Where the log goes: a new file, written line by line, or nowhere."""
    if log == NONE:
        return NoLog()
    folder = f"serve-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}"
    path = Path("runs") / folder / FILE_NAME if log is None else Path(log)
    return LogFile(path, size_bytes, files, lambda reason: say(f"molt: {reason}"), metrics.log_record_lost)
