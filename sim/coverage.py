"""What happened in a run, counted from its log: a fuzz in which something never does would not be testing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MECHANISMS = (
    *("Admit", "Defer", "Demote", "Promote", "Park", "Unpark", "Spill", "Shed", "Heal", "Release", "Load"),
    *(
        "Switched",
        "SwitchFailed",
        "CacheRestored",
        "SpillFailed",
        "RestoreFailed",
        "LoadProgressed",
        "LoadFailed",
    ),
    *("TenantCancelled", "TenantFinished", "TimerFired"),
    *("load abandoned", "switch abandoned", "fall during a switch", "release withheld"),
)
"""Types of records, and what only several records together show; a campaign that is long enough must see all."""


def fired(records: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How often each mechanism did its work in one log."""
    return Counter(_mechanisms(records))


def _mechanisms(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    loading: set[str] = set()
    switching: set[str] = set()
    at_work, budget = False, 0
    for record in records:
        kind = record.get("type", "")
        if kind in MECHANISMS:
            yield kind
        match record:
            case {"type": "Load", "rung": rung}:
                loading.add(rung)
            case {"type": "RungLoaded" | "LoadFailed", "rung": rung}:
                loading.discard(rung)
            case {"type": "Release", "rung": rung} if rung in loading:
                loading.discard(rung)
                yield "load abandoned"
            case {"type": "RungReleased", "withheld_bytes": withheld} if withheld:
                yield "release withheld"
            case {"type": "Demote" | "Promote" | "Unpark" | "Park", "tenant": tenant}:
                if tenant in switching:
                    yield "switch abandoned"
                switching.discard(tenant)
                if record.get("route") in {"carry", "project"}:
                    switching.add(tenant)
            case {
                "type": "Switched" | "SwitchFailed" | "TenantCancelled" | "RestoreFailed",
                "tenant": tenant,
            }:
                switching.discard(tenant)
            case {"type": "ProcessKilled"}:
                loading.clear()
                switching.clear()
            case {"kind": "memory", "budget_bytes": now}:
                if at_work and now < budget:
                    yield "fall during a switch"
                at_work = any(owner.startswith("switch ") for owner in record["parts"]["transient"])
                budget = now
