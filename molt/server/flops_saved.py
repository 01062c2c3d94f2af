"""The share of FLOPs that a transplant saves against prefilling the text again, from shapes and headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from molt.core.engine_protocol import SINKS
from molt.core.ladder import RouteKind
from molt.formats.weights_file import read_header
from molt.models.flops import MapSize, carry_flops, prefill_flops
from molt.models.ladder_file import LadderSpec


class FlopsSaved:
    """The shares for the routes of one ladder."""

    def __init__(self, spec: LadderSpec) -> None:
        self._spec = spec
        self._maps: Mapping[tuple[str, str], MapSize] = {
            pair: _map_size(path) for pair, path in spec.maps.items()
        }

    def flops(self, source: str, dest: str, cells: int, native: int) -> float | None:
        """Of the FLOPs of prefilling ``cells`` cells again, the share that a transplant saves; it can be negative.

        The last ``native`` cells are prefilled by ``dest``. ``None``: not known.
        """
        shape = self._spec.rung(dest).shape
        match self._spec.ladder.route(source, dest).kind:
            case RouteKind.CARRY:
                return 1.0
            case RouteKind.PROJECT:
                size = self._maps[self._spec.rung(source).weights, self._spec.rung(dest).weights]
                return 1 - carry_flops(size, shape, cells, SINKS, native) / prefill_flops(shape, cells)
            case RouteKind.REREAD:
                return None


def _map_size(path: Path) -> MapSize:
    """The size of a map by its file's header: ``<layer>.weight`` of each mapped layer, ``code.weight`` if shared."""
    weights = {name: one for name, one in read_header(path).items() if name.endswith(".weight")}
    first = min(int(layer) for name in weights if (layer := name.partition(".")[0]) != "code")
    return MapSize(sum(one.elements for one in weights.values()), first)
