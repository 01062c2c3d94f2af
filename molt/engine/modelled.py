"""An engine that keeps the books and produces no tokens: fast enough for sweeps, equal to the real one in bytes.

An answer that may stop early runs to ``max_tokens`` here, because only a model knows where it would have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from molt.core.engine_protocol import SINKS, Decoded, Destination, Request, SwitchError
from molt.core.events import Handoff
from molt.core.healing import chunk, settled_after
from molt.core.ladder import Ladder, RouteKind


@dataclass(slots=True)
class _Generation:
    request: Request
    rung: str
    capacity: int
    read: int = 0
    dropped: int = 0
    settled: int = 0
    spilled: bool = False
    produced: int = 0

    @property
    def cells(self) -> int:
        return self.read - self.dropped


class ModelledEngine:
    """Implements ``molt.core.engine_protocol.Engine`` over a ladder's numbers alone."""

    def __init__(self, ladder: Ladder) -> None:
        self._ladder = ladder
        self._resident: set[str] = set()
        self._generations: dict[str, _Generation] = {}

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        self._ladder.rung(rung)
        self._resident.add(rung)
        return True

    def release(self, rung: str) -> int:
        freed = self.weight_bytes(rung)
        self._resident.discard(rung)
        return freed

    def admit(self, tenant: str, request: Request, rung: str, capacity: int) -> None:
        self._generations[tenant] = _Generation(request, rung, capacity)

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        generation = self._generations[tenant]
        self._check_resident(generation.rung)
        generation.settled += tokens if generation.settled == generation.cells else 0
        generation.read += tokens
        assert generation.read <= len(generation.request.prompt_ids) + generation.produced - 1
        assert generation.read - generation.dropped <= generation.capacity

    def decode(self, tenant: str, count: int, heal: int = 0) -> Decoded:
        generation = self._generations[tenant]
        self._check_resident(generation.rung)
        assert generation.read == len(generation.request.prompt_ids) + generation.produced - 1
        produced = min(count, generation.request.max_tokens - generation.produced)
        generation.produced += produced
        for _ in range(produced):
            healed = chunk(generation.cells, generation.settled, heal)
            generation.settled = settled_after(generation.cells, generation.settled, healed)
            generation.read += 1
        assert generation.read - generation.dropped <= generation.capacity
        done = generation.produced == generation.request.max_tokens
        return Decoded(ids=(), pieces=(), finish="length" if done else None, count=produced)

    def switch(self, tenant: str, destination: Destination, within_ns: int | None = None) -> Handoff | None:
        generation = self._generations[tenant]
        self._check_resident(destination.dest)
        if generation.read - generation.dropped > destination.capacity:
            raise SwitchError(
                f"{generation.read - generation.dropped} cells do not fit {destination.capacity}"
            )
        generation.rung = destination.dest
        generation.capacity = destination.capacity
        if destination.route is RouteKind.PROJECT and generation.dropped == 0:
            generation.settled = min(SINKS, generation.cells)
        return None

    def park(self, tenant: str) -> int:
        before = self.cache_bytes(tenant)
        generation = self._generations[tenant]
        generation.capacity = 0 if generation.spilled else generation.cells
        return before - self.cache_bytes(tenant)

    def grow(self, tenant: str, capacity: int) -> None:
        self._generations[tenant].capacity = capacity

    def spill(self, tenant: str) -> int:
        generation = self._generations[tenant]
        freed = self.cache_bytes(tenant)
        generation.spilled, generation.capacity = True, 0
        return freed

    def restore(self, tenant: str) -> None:
        generation = self._generations[tenant]
        assert generation.spilled, f"the cache of {tenant!r} is not on disk"
        assert generation.capacity >= generation.cells, "a cache that comes back needs its room"
        generation.spilled = False

    def shed(self, tenant: str, keep_cells: int, rung: str) -> int:
        before = self.cache_bytes(tenant)
        generation = self._generations[tenant]
        assert keep_cells == 0 or not generation.spilled, "a cache on disk is dropped whole or not at all"
        generation.spilled = False
        if keep_cells == 0:
            generation.rung = rung
            generation.read = generation.dropped = 0
        else:
            generation.dropped = generation.read - keep_cells
        generation.capacity = generation.settled = keep_cells
        return before - self.cache_bytes(tenant)

    def finish(self, tenant: str) -> None:
        del self._generations[tenant]

    def kill(self) -> None:
        self._resident.clear()
        self._generations.clear()

    def cache_bytes(self, tenant: str) -> int:
        generation = self._generations.get(tenant)
        return 0 if generation is None else self._ladder.rung(generation.rung).kv_bytes(generation.capacity)

    def settled_cells(self, tenant: str) -> int:
        return self._generations[tenant].settled

    def weight_bytes(self, rung: str) -> int:
        return self._ladder.rung(rung).weight_bytes if rung in self._resident else 0

    def _check_resident(self, rung: str) -> None:
        assert rung in self._resident, f"rung {rung!r} is not resident"
