"""Latencies of a server with many answers at once, with a constant budget and with one that changes all the time.

``python -m benchmarks.serve [--ladder pico] [--streams 16] [--seconds 60] [--hz 10] [--out FILE]``

Each stream sends the next request as soon as its answer is complete. TTFT is from sending a request to its first
token, ITL between two tokens of an answer, both as the client sees them, which shares the machine with the server.
Under pressure the budget goes back and forth, ``hz`` times a second, between room for every answer on the largest
rung and on the next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
from tabulate import tabulate

from molt.client.demo import server
from molt.formats import provenance
from molt.formats.log import read

PROMPT = "To create a branch and switch to it in one step, use the following command:"
TOKENS = 64
ROOM = 1.25
"""Caches are given so many times the room that they need."""
SETTLE_S = 3.0


@dataclass
class Phase:
    """Results of a period with all streams; times in seconds, sizes in bytes."""

    name: str
    seconds: float = 0.0
    completed: int = 0
    broken: int = 0
    killed: int = 0
    tokens: int = 0
    switches: int = 0
    budgets: int = 0
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)

    def row(self) -> list[Any]:
        """Figures for people: times in milliseconds."""
        ttft, itl = ([1e3 * value for value in values] for values in (self.ttft_s, self.itl_s))
        rate = self.tokens / self.seconds
        return [
            self.name, self.completed, self.broken, self.killed, self.budgets, self.switches, rate,
            *percentiles(ttft), *percentiles(itl), max(itl, default=0.0),
        ]  # fmt: skip


HEADERS = (
    "", "complete", "broken", "killed", "budgets", "switches", "tokens/s",
    "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "max",
)  # fmt: skip


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The 50th, 90th and 99th; of fewer than two values, that one or nothing."""
    if len(values) < 2:
        return (*values, *values, *values) if values else (0.0, 0.0, 0.0)  # type: ignore[return-value]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[89], cuts[98]


class Driver:
    """Drives one server; ``admin`` is its token for administration."""

    def __init__(self, url: str, admin: str, streams: int, tokens: int = TOKENS) -> None:
        self._url, self._admin, self._streams, self._tokens = url, admin, streams, tokens

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx2.AsyncClient]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            base_url=self._url, timeout=120, trust_env=False, limits=limits
        ) as client:
            yield client

    async def phase(self, name: str, seconds: float, hz: float = 0.0) -> Phase:
        """All streams for so long, and until the last has its answer; with ``hz``, under a budget that changes."""
        phase = Phase(name)
        begin_s = time.monotonic()
        async with self._client() as client:
            roomy, tight = await self._budgets(client)
            await self._set(client, roomy)
            toggling = asyncio.create_task(self._toggle(client, phase, (tight, roomy), hz)) if hz else None
            await asyncio.gather(
                *(self._stream(client, phase, begin_s + seconds, n) for n in range(self._streams))
            )
            phase.seconds = time.monotonic() - begin_s
            if toggling is not None:
                toggling.cancel()
                await asyncio.gather(toggling, return_exceptions=True)
            await self._set(client, roomy)
        return phase

    async def state(self) -> dict[str, Any]:
        """What the server holds."""
        async with self._client() as client:
            return (await client.get("/molt/state")).json()

    async def _budgets(self, client: httpx2.AsyncClient) -> tuple[int, int]:
        largest, next_one = (await client.get("/molt/state")).json()["rungs"][:2]
        cells = self._streams * (len(PROMPT) // 2 + self._tokens)
        tight, roomy = (
            rung["resident_bytes"] + int(ROOM * cells * rung["token_bytes"]) for rung in (next_one, largest)
        )
        return roomy + next_one["resident_bytes"], tight

    async def _set(self, client: httpx2.AsyncClient, budget: int) -> None:
        headers = {"authorization": f"Bearer {self._admin}"}
        (await client.post("/admin/budget", json={"budget": budget}, headers=headers)).raise_for_status()

    async def _toggle(
        self, client: httpx2.AsyncClient, phase: Phase, budgets: tuple[int, int], hz: float
    ) -> None:
        while True:
            await self._set(client, budgets[phase.budgets % 2])
            phase.budgets += 1
            await asyncio.sleep(1 / hz)

    async def _stream(self, client: httpx2.AsyncClient, phase: Phase, until_s: float, number: int) -> None:
        seed = number
        while time.monotonic() < until_s:
            await self._ask(client, phase, seed)
            seed += self._streams

    async def _ask(self, client: httpx2.AsyncClient, phase: Phase, seed: int) -> None:
        body = {"model": "molt", "prompt": PROMPT, "max_tokens": self._tokens, "seed": seed, "stream": True}
        asked_s = before_s = time.monotonic()
        first, summary = True, None
        async with client.stream(
            "POST", "/v1/completions", json={**body, "molt": {"ignore_eos": True}}
        ) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                molt = json.loads(line[6:]).get("molt", {})
                if molt.get("event") == "token":
                    now_s = time.monotonic()
                    (phase.ttft_s if first else phase.itl_s).append(now_s - (asked_s if first else before_s))
                    before_s, first = now_s, False
                elif molt.get("event") == "summary":
                    summary = molt
        if summary is None:
            phase.broken += 1
            return
        phase.completed += 1
        phase.killed += summary["killed"]
        phase.tokens += summary["tokens"]
        phase.switches += len(summary["switches"])


@dataclass(frozen=True)
class Books:
    """What the log says of memory: bytes over the budget when everything asked for was carried out (the bound for
    the policy molt is 0), the longest time above it, and the invariants that broke."""

    overshoot_bytes_max: int
    longest_over_s: float
    violations: int


def books(log: Path) -> Books:
    """Read off a log that may still be written."""
    overshoot, longest_ns, since_ns, violations = 0, 0, None, 0
    for record in read(log)[1]:
        violations += record["kind"] == "violation"
        if record["kind"] != "memory":
            continue
        over = record["usage_bytes"] - record["budget_bytes"]
        overshoot = max(overshoot, over if record["round"] else 0)
        if over <= 0:
            since_ns = None
        else:
            since_ns = record["at_ns"] if since_ns is None else since_ns
            longest_ns = max(longest_ns, record["at_ns"] - since_ns)
    return Books(overshoot, longest_ns / 1e9, violations)


def resident_bytes() -> int:
    """Memory of the server and of its engine, which are children of this process."""
    children = psutil.Process().children(recursive=True)
    return sum(child.memory_info().rss for child in children)


async def measure(driver: Driver, seconds: float, hz: float) -> tuple[list[Phase], list[int]]:
    """Warm, without pressure, with it; and memory at rest after each of them, in the same state."""
    phases, rest = [], []
    for name, length, rate in (
        ("warm", min(5.0, seconds), hz),
        ("alone", seconds, 0.0),
        ("under pressure", seconds, hz),
    ):
        phases.append(await driver.phase(name, length, rate))
        await asyncio.sleep(
            SETTLE_S
        )  # the policy's cooldown: then the next answer is on the largest rung again
        await driver.phase("rest", 0.1)
        await asyncio.sleep(0.5)
        rest.append(resident_bytes())
    return phases[1:], rest


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures; exit status 1 if an answer broke, something was killed or the bound was not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ladder", default="pico")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.jsonl"
        with server(given.ladder, log) as (url, admin):
            driver = Driver(url, admin, given.streams)
            phases, rest = asyncio.run(measure(driver, given.seconds, given.hz))
            state = asyncio.run(driver.state())
        kept = books(log)
    print(tabulate([phase.row() for phase in phases], HEADERS, floatfmt=".1f"))
    print(
        f"times in ms; {given.streams} streams, budget changed {given.hz:g} times a second under pressure; load "
        f"average when it began {load:.1f}\n"
        f"over the budget after reaction {kept.overshoot_bytes_max} bytes, longest above it "
        f"{1e3 * kept.longest_over_s:.1f} ms; violations {kept.violations}; kills {state['kills']}\n"
        "memory at rest, MiB: "
        + ", ".join(f"{size / 2**20:.1f}" for size in rest)
        + " (warm, alone, pressure)"
    )
    if given.out is not None:
        result = {
            "machine": provenance.machine(), "versions": provenance.versions(), "commit": provenance.commit(),
            "load": load, "streams": given.streams, "hz": given.hz, "books": asdict(kept), "kills": state["kills"],
            "rest_bytes": rest,
            "phases": [dict(zip(("name", *HEADERS[1:]), phase.row(), strict=True)) for phase in phases],
        }  # fmt: skip
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    broke = any(phase.broken or phase.killed for phase in phases)
    if broke or state["kills"] or kept.overshoot_bytes_max or kept.violations:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
