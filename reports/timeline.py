"""What each tenant, and the process, did when: phases with a beginning and an end, derived from a run.

The log says when work was complete. A process works serially, so work began when the work before it was
complete, or when its tenant was admitted if that was later; the record of a switch says how long it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from reports.run_log import Record, RunLog


class Doing(StrEnum):
    """What a phase is."""

    WAITING = "waiting"  # arrived, not admitted
    PREFILLING = "prefilling"
    DECODING = "decoding"
    SWITCHING = "switching"
    PARKED = "parked"
    LOADING = "loading"  # of the process


class TimelinePhase(NamedTuple):
    """Something that went on from ``start_ns`` to ``end_ns``; ``tenant`` is empty for the process itself,
    ``tokens`` counts those prefilled, decoded or taken along in a switch."""

    tenant: str
    doing: Doing
    start_ns: int
    end_ns: int
    rung: str = ""
    tokens: int = 0


def phases(run: RunLog) -> list[TimelinePhase]:
    """Every phase of a run, by its beginning."""
    follower = _Follower({r["seq"]: r["at_ns"] for r in run.decisions("Load")})
    found = [phase for record in run.records for phase in follower.follow(record)]
    found += follower.unpark_all(run.end_ns)
    for attempt in run.attempts:
        until_ns = next(at for at in (attempt.admitted_ns, attempt.ended_ns, run.end_ns) if at is not None)
        if until_ns > attempt.arrived_ns:
            found.append(TimelinePhase(attempt.tenant, Doing.WAITING, attempt.arrived_ns, until_ns))
    return sorted(found, key=lambda phase: (phase.start_ns, phase.end_ns))


@dataclass
class _Follower:
    """Until when the process was busy, from when each tenant could be served, since when tenants are parked."""

    load_decided_ns: dict[int, int]
    busy_ns: int = 0
    ready_ns: dict[str, int] = field(default_factory=dict)
    parked_ns: dict[str, int] = field(default_factory=dict)

    def follow(self, record: Record) -> Iterator[TimelinePhase]:
        """The phases that a record ends."""
        at_ns: int = record.get("at_ns", 0)
        tenant: str = record.get("tenant", "")
        match record.get("type"):
            case "Admit":
                self.ready_ns[tenant] = at_ns
            case "TenantParked":
                self.parked_ns.setdefault(tenant, at_ns)
            case "Unpark" | "TenantFinished" | "TenantCancelled":
                yield from self._unpark(tenant, at_ns)
            case "PromptRead":
                yield from self._work(record, Doing.PREFILLING, record["tokens"], at_ns)
            case "TokensProduced":
                done_ns = max(record.get("stamps_ns") or (at_ns,))
                yield from self._work(record, Doing.DECODING, record["count"], done_ns)
            case "Switched":
                began_ns = at_ns - record["duration_ns"]
                self.busy_ns = at_ns
                yield from self._unpark(tenant, began_ns)
                yield TimelinePhase(tenant, Doing.SWITCHING, began_ns, at_ns, record["dest"], record["cells"])
            case "RungLoaded":
                decided_ns = self.load_decided_ns.get(record.get("decision") or 0, at_ns)
                self.busy_ns = at_ns
                yield TimelinePhase("", Doing.LOADING, decided_ns, at_ns, record["rung"])
            case "ProcessKilled":
                yield from self.unpark_all(at_ns)

    def unpark_all(self, at_ns: int) -> Iterator[TimelinePhase]:
        """End the phases of all tenants that are still parked."""
        for tenant in list(self.parked_ns):
            yield from self._unpark(tenant, at_ns)

    def _work(self, record: Record, doing: Doing, tokens: int, end_ns: int) -> Iterator[TimelinePhase]:
        tenant = record["tenant"]
        earliest_ns = max(self.busy_ns, self.ready_ns.get(tenant, 0), self.parked_ns.get(tenant, 0))
        start_ns = min(end_ns, earliest_ns)
        self.busy_ns = end_ns
        yield from self._unpark(tenant, start_ns)
        yield TimelinePhase(tenant, doing, start_ns, end_ns, record["rung"], tokens)

    def _unpark(self, tenant: str, at_ns: int) -> Iterator[TimelinePhase]:
        """End a tenant's parking; it can be served from then on."""
        start_ns = self.parked_ns.pop(tenant, None)
        if start_ns is not None:
            self.ready_ns[tenant] = at_ns
            yield TimelinePhase(tenant, Doing.PARKED, start_ns, max(start_ns, at_ns))
