"""What can go wrong in a simulated world: engines whose loads, switches and disks fail and whose releases keep a part;
signals that come late or twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from molt.core.engine_protocol import Destination, LoadError, SpillError, SwitchError
from molt.core.events import Handoff
from molt.core.ladder import Ladder
from molt.engine.modelled import ModelledEngine


@dataclass(frozen=True, slots=True)
class Faults:
    """How often, as shares of the tries, things fail; ``late_ns``, by how much a signal is late at most;
    ``withheld_share``, how much of a rung a release that fails keeps at most."""

    load: float = 0.0
    release: float = 0.0
    withheld_share: float = 0.0
    switch: float = 0.0
    spill: float = 0.0
    restore: float = 0.0
    late: float = 0.0
    doubled: float = 0.0
    late_ns: int = 0

    def signal_delays(self, random: Random) -> Callable[[], tuple[int, ...]]:
        """Delays of the signals of a world, see ``sim.world.World``. None is lost for good: that no policy survives."""

        def delays() -> tuple[int, ...]:
            late_ns = random.randint(1, self.late_ns) if self.late_ns and random.random() < self.late else 0
            return (late_ns, late_ns + 1) if random.random() < self.doubled else (late_ns,)

        return delays


class FaultyEngine(ModelledEngine):
    """A modelled engine that fails as often as it is made to, and then does what the protocol says of failures."""

    def __init__(self, ladder: Ladder, faults: Faults, random: Random) -> None:
        super().__init__(ladder)
        self._faults = faults
        self._random = random

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        if self._random.random() < self._faults.load:
            raise LoadError("a fault")
        return super().load(rung, within_ns)

    def release(self, rung: str) -> int:
        if not (freed := super().release(rung)):
            return 0
        withheld = self._random.random() < self._faults.release
        return freed - withheld * int(freed * self._faults.withheld_share * self._random.random())

    def switch(self, tenant: str, destination: Destination, within_ns: int | None = None) -> Handoff | None:
        if self._random.random() < self._faults.switch:
            raise SwitchError("a fault")
        return super().switch(tenant, destination)

    def spill(self, tenant: str) -> int:
        if self._random.random() < self._faults.spill:
            raise SpillError("a full disk")
        return super().spill(tenant)

    def restore(self, tenant: str) -> None:
        super().restore(tenant)
        if self._random.random() < self._faults.restore:
            raise SpillError("not what was written")
