"""Logs in a few words, written by ``molt.formats.log.Log`` as any world writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from molt.core import decisions as d
from molt.core import events as e
from molt.core.ladder import RouteKind
from molt.formats.log import Log
from reports.run_log import RunLog

MS = 1_000_000
S = 1_000_000_000

HEADER: dict[str, Any] = {
    "scenario": {
        "name": "story",
        "seed": 7,
        "horizon_ns": 60 * S,
        "kill_after_ns": S // 2,
        "budgets": [[0, 1000]],
        "tenants": [],
    },
    "policy": {"name": "molt", "params": {}, "promises": ["never_killed"]},
    "engine": "modelled",
    "ladder": {
        "name": "small",
        "rungs": [
            {"name": "tier0", "weight_bytes": 600, "scratch_bytes": 40},
            {"name": "tier1", "weight_bytes": 300, "scratch_bytes": 20},
            {"name": "tier2", "weight_bytes": 100, "scratch_bytes": 20},
        ],
        "routes": [],
    },
    "costs": {},
    "versions": {"python": "3.11", "molt": "0"},
    "machine": {"processor": "one", "cores": 2, "memory_bytes": 2**30, "system": "Linux"},
    "commit": "c0ffee",
}


class Story:
    """One log in the making. Times are in milliseconds; a method adds one record or more and returns the story."""

    def __init__(self, **header: Any) -> None:
        self._sink = io.StringIO()
        self.log = Log(self._sink, {**HEADER, **header})

    def budget(self, at: int, size: int) -> Story:
        return self._event(e.BudgetChanged(at_ns=at * MS, budget_bytes=size))

    def arrive(self, at: int, tenant: str = "chat", *, kind: str = "foreground", attempt: int = 1) -> Story:
        return self._event(
            e.TenantArrived(
                at_ns=at * MS,
                tenant=tenant,
                tenant_kind=e.TenantKind(kind),
                prompt_tokens=10,
                max_tokens=100,
                attempt=attempt,
            )
        )

    def admit(self, at: int, tenant: str = "chat", rung: str = "tier0") -> Story:
        return self._decision(at, d.Admit(tenant=tenant, rung=rung, capacity=100))

    def defer(self, at: int, tenant: str = "chat") -> Story:
        return self._decision(at, d.Defer(tenant=tenant))

    def read(self, at: int, tokens: int, tenant: str = "chat", rung: str = "tier0") -> Story:
        return self._event(e.PromptRead(at_ns=at * MS, tenant=tenant, rung=rung, tokens=tokens))

    def tokens(
        self, *stamps: int, tenant: str = "chat", rung: str = "tier0", pieces: tuple[str, ...] = ()
    ) -> Story:
        return self._event(
            e.TokensProduced(
                at_ns=stamps[-1] * MS,
                tenant=tenant,
                rung=rung,
                count=len(stamps),
                stamps_ns=tuple(stamp * MS for stamp in stamps),
                pieces=pieces,
            )
        )

    def demote(self, at: int, source: str, dest: str, *, route: RouteKind, tenant: str = "chat") -> Story:
        return self._decision(
            at, d.Demote(tenant=tenant, source=source, dest=dest, route=route, capacity=100)
        )

    def switched(
        self,
        at: int,
        source: str,
        dest: str,
        *,
        took: int = 10,
        tenant: str = "chat",
        handoff: e.Handoff | None = None,
        route: str = "project",
    ) -> Story:
        return self._event(
            e.Switched(
                at_ns=at * MS,
                tenant=tenant,
                source=source,
                dest=dest,
                route=route,
                cells=10,
                duration_ns=took * MS,
                handoff=handoff,
                decision=1,
            )
        )

    def park(self, at: int, tenant: str = "chat") -> Story:
        return self._event(e.TenantParked(at_ns=at * MS, tenant=tenant, freed_bytes=1, decision=1))

    def unpark(self, at: int, dest: str = "tier0", tenant: str = "chat") -> Story:
        return self._decision(at, d.Unpark(tenant=tenant, source=dest, dest=dest, route=None, capacity=100))

    def shed(self, at: int, keep: int, tenant: str = "chat") -> Story:
        seq = self.log.decision(d.Shed(tenant=tenant, keep_cells=keep), at * MS, 1)
        return self._event(
            e.ContextShed(
                at_ns=at * MS, tenant=tenant, kept_cells=keep, dropped_cells=40, freed_bytes=1, decision=seq
            )
        )

    def load(self, at: int, rung: str, *, asked: int | None = None) -> Story:
        seq = self.log.decision(d.Load(rung=rung), (at if asked is None else asked) * MS, 1)
        return self._event(e.RungLoaded(at_ns=at * MS, rung=rung, decision=seq))

    def release(self, at: int, rung: str) -> Story:
        return self._event(e.RungReleased(at_ns=at * MS, rung=rung, freed_bytes=1))

    def finish(self, at: int, tenant: str = "chat", reason: str = "length") -> Story:
        return self._event(e.TenantFinished(at_ns=at * MS, tenant=tenant, reason=reason))

    def cancel(self, at: int, tenant: str = "chat") -> Story:
        return self._event(e.TenantCancelled(at_ns=at * MS, tenant=tenant))

    def kill(self, at: int) -> Story:
        return self._event(e.ProcessKilled(at_ns=at * MS))

    def start(self, at: int) -> Story:
        return self._event(e.ProcessStarted(at_ns=at * MS))

    def memory(self, at: int, budget: int, usage: int, *, enforced: bool = False, **parts: Any) -> Story:
        self.log.write("memory", at * MS, budget_bytes=budget, usage_bytes=usage, parts=parts, round=enforced)
        return self

    def record(self, kind: str, at: int, **fields: Any) -> Story:
        self.log.write(kind, at * MS, **fields)
        return self

    def end(self, at: int) -> Story:
        return self.record("end", at, reason="horizon")

    def text(self) -> str:
        """The log as it is so far."""
        return self._sink.getvalue()

    def run(self) -> RunLog:
        """The log read back, without a file."""
        header, *records = (json.loads(line) for line in self.text().split("\n")[:-1])
        return RunLog(header, tuple(records), self.log.sha256())

    def write(self, folder: Path) -> Path:
        """The log as a file of a policy's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "events.jsonl"
        path.write_text(self.text(), encoding="utf-8")
        return path

    def _event(self, event: e.AnyEvent) -> Story:
        self.log.event(event)
        return self

    def _decision(self, at: int, decision: d.AnyDecision) -> Story:
        self.log.decision(decision, at * MS, 1)
        return self


def scenario_with(*tenants: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario of a header that plans these tenants."""
    return {**HEADER["scenario"], "tenants": list(tenants)}


HANDOFF = e.Handoff(kl=0.25, jsd=0.1, jsd_floor=0.05, recovered_context=0.9)


def survivor(text: tuple[str, str] = ("", ""), **header: Any) -> Story:
    """One answer that changes its rung under pressure and is finished; ``text`` is what the rungs wrote."""
    return (
        Story(**header)
        .budget(0, 1000)
        .memory(0, 1000, 0)
        .arrive(0)
        .admit(0)
        .memory(0, 1000, 640, transient={"load tier0": 640})
        .load(100, "tier0", asked=0)
        .memory(100, 1000, 700, enforced=True, weights={"tier0": 600}, scratch={"tier0": 40}, kv={"chat": 60})
        .read(150, 9)
        .tokens(200, 250, 300, pieces=(text[0], "", ""))
        .budget(300, 500)
        .memory(300, 500, 700, weights={"tier0": 600}, scratch={"tier0": 40}, kv={"chat": 60})
        .demote(300, "tier0", "tier1", route=RouteKind.PROJECT)
        .release(310, "tier0")
        .memory(310, 500, 60, enforced=True, kv={"chat": 60})
        .memory(310, 500, 380, transient={"load tier1": 320}, kv={"chat": 60})
        .load(360, "tier1", asked=310)
        .memory(360, 500, 400, weights={"tier1": 320}, kv={"chat": 60}, transient={"switch chat": 20})
        .switched(400, "tier0", "tier1", took=40, handoff=HANDOFF)
        .memory(400, 500, 360, enforced=True, weights={"tier1": 320}, kv={"chat": 40})
        .tokens(450, 500, rung="tier1", pieces=(text[1], ""))
        .finish(500)
        .memory(500, 500, 320, enforced=True, weights={"tier1": 320})
        .end(1000)
    )


def victim() -> Story:
    """Two answers, both lost to a kill; one comes back and is finished, one is still open at the end."""
    return (
        Story()
        .budget(0, 1000)
        .memory(0, 1000, 800, enforced=True)
        .arrive(0)
        .arrive(0, "digest", kind="batch")
        .admit(0)
        .admit(0, "digest")
        .read(50, 9)
        .tokens(100, 150)
        .budget(200, 500)
        .memory(200, 500, 800, enforced=True)
        .kill(300)
        .memory(300, 500, 0)
        .budget(600, 1000)
        .memory(600, 1000, 0)
        .start(700)
        .arrive(700, attempt=2)
        .arrive(700, "digest", kind="batch", attempt=2)
        .admit(700)
        .memory(700, 1000, 800, enforced=True)
        .read(750, 9)
        .tokens(800, 850, 950)
        .finish(950)
        .end(1000)
    )
