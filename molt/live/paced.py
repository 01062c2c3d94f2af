"""A modelled engine whose calls take as long as a profile says, by whatever clock."""

from __future__ import annotations

from collections.abc import Callable

from molt.core.costs import CostModel
from molt.core.engine_protocol import Decoded, Destination
from molt.core.events import Handoff
from molt.core.healing import chunk
from molt.core.ladder import Ladder
from molt.core.turns import prefill_slice_ns
from molt.engine.modelled import ModelledEngine
from molt.work import Unfinished


class Paced(ModelledEngine):
    """A modelled engine that lets time go by: ``elapse`` is called with the cost of every load, step, switch and
    release, and of every spill and restore of a cache, in nanoseconds."""

    def __init__(self, ladder: Ladder, costs: CostModel, elapse: Callable[[int], None]) -> None:
        super().__init__(ladder)
        self._costs = costs
        self._elapse = elapse
        self._load_left_ns: dict[str, int] = {}
        self._switch_left_ns: dict[str, int] = {}
        self._chunk: tuple[tuple[str, int, int], int] | None = None
        """The chunk of prefill under way, and what is left of it."""

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        left_ns = self._load_left_ns.pop(rung, self._costs.rungs[rung].load_ns)
        stretch_ns = left_ns if within_ns is None else min(left_ns, within_ns)
        self._elapse(stretch_ns)
        if stretch_ns < left_ns:
            self._load_left_ns[rung] = left_ns - stretch_ns
            return False
        return super().load(rung)

    def release(self, rung: str) -> int:
        self._chunk = None
        if self._load_left_ns.pop(rung, None) is None and rung in self._resident:
            self._elapse(self._costs.rungs[rung].release_ns)
        return super().release(rung)

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        generation = self._generations[tenant]
        costs, cells = self._costs.rungs[generation.rung], generation.cells
        begun, self._chunk = self._chunk, None
        key = (tenant, generation.read, tokens)
        left_ns = begun[1] if begun is not None and begun[0] == key else costs.read.ns(tokens, cells)
        layer_ns = prefill_slice_ns(costs, self._ladder.rung(generation.rung).kv.layers, tokens, cells)
        stretch_ns = left_ns if within_ns is None else min(left_ns, layer_ns)
        self._elapse(stretch_ns)
        if stretch_ns < left_ns:
            self._chunk = (key, left_ns - stretch_ns)
            raise Unfinished
        super().prefill(tenant, tokens, chunk)

    def decode(self, tenant: str, count: int, heal: int = 0) -> Decoded:
        self._chunk = None
        generation = self._generations[tenant]
        healed = chunk(generation.cells, generation.settled, heal)
        self._elapse(self._costs.rungs[generation.rung].healing_ns(healed, generation.cells) * count)
        return super().decode(tenant, count, heal)

    def switch(self, tenant: str, destination: Destination, within_ns: int | None = None) -> Handoff | None:
        self._chunk = None
        generation = self._generations[tenant]
        whole_ns = self._costs.switch_ns(
            generation.rung, destination.dest, generation.cells, destination.native
        )
        left_ns = self._switch_left_ns.pop(tenant, whole_ns)
        stretch_ns = left_ns if within_ns is None else min(left_ns, within_ns)
        self._elapse(stretch_ns)
        if stretch_ns < left_ns:
            self._switch_left_ns[tenant] = left_ns - stretch_ns
            raise Unfinished
        return super().switch(tenant, destination)

    def park(self, tenant: str) -> int:
        self._abandon(tenant)
        return super().park(tenant)

    def grow(self, tenant: str, capacity: int) -> None:
        self._abandon(tenant)
        super().grow(tenant, capacity)

    def shed(self, tenant: str, keep_cells: int, rung: str) -> int:
        self._abandon(tenant)
        return super().shed(tenant, keep_cells, rung)

    def finish(self, tenant: str) -> None:
        self._abandon(tenant)
        super().finish(tenant)

    def spill(self, tenant: str) -> int:
        self._abandon(tenant)
        self._elapse(self._costs.spill_ns(self.cache_bytes(tenant)))
        return super().spill(tenant)

    def restore(self, tenant: str) -> None:
        self._chunk = None
        generation = self._generations[tenant]
        size = self._ladder.rung(generation.rung).kv_bytes(generation.cells)
        self._elapse(self._costs.restore_ns(size))
        super().restore(tenant)

    def kill(self) -> None:
        self._load_left_ns.clear()
        self._switch_left_ns.clear()
        self._chunk = None
        super().kill()

    def _abandon(self, tenant: str) -> None:
        """A cache is about to be changed: what is under way is dropped."""
        self._switch_left_ns.pop(tenant, None)
        self._chunk = None
