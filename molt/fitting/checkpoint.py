"""The sums of an unfinished fit on disk, so that a killed fit goes on where it was.

Only a fit of the same models, documents and options goes on from a checkpoint; ``key`` identifies them.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from molt.fitting.sums import BlockSums

SECONDS = 120.0
"""Between two checkpoints: what a killed fit loses at most."""


@dataclass(slots=True)
class Checkpoint:
    """One set of sums at ``path``."""

    path: Path
    key: str
    seconds: float = field(default_factory=lambda: SECONDS)
    _kept_at: float = field(default_factory=time.monotonic)

    def restore(self, pairs: frozenset[tuple[int, int]]) -> tuple[BlockSums | None, int]:
        """The sums and how many windows they hold; ``None`` and 0 if there are none of this fit."""
        try:
            with safe_open(self.path, framework="pt") as file:
                facts = json.loads((file.metadata() or {}).get("molt", "{}"))
                if facts.get("key") != self.key:
                    return None, 0
                origins = tuple(file.get_tensor(f"origin.{block}") for block in range(facts["blocks"]))
                statistics = BlockSums(origins, pairs, rows=facts["rows"])
                statistics.totals = [file.get_tensor(f"total.{block}") for block in range(facts["blocks"])]
                statistics.grams = {pair: file.get_tensor(_name(pair)) for pair in sorted(pairs)}
        except (OSError, SafetensorError, ValueError, KeyError):
            return None, 0
        return statistics, facts["windows"]

    def keep(self, statistics: BlockSums, windows: int, *, at_once: bool = False) -> None:
        """Write the sums of so many windows, unless the last write was less than ``seconds`` ago."""
        if not at_once and time.monotonic() - self._kept_at < self.seconds:
            return
        tensors: dict[str, Tensor] = {_name(pair): gram for pair, gram in statistics.grams.items()}
        for block, (origin, total) in enumerate(zip(statistics.origins, statistics.totals, strict=True)):
            tensors |= {f"origin.{block}": origin.clone(), f"total.{block}": total}
        facts = {
            "key": self.key,
            "windows": windows,
            "rows": statistics.rows,
            "blocks": len(statistics.origins),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        save_file(tensors, partial, metadata={"molt": json.dumps(facts)})
        partial.replace(self.path)
        self._kept_at = time.monotonic()

    def drop(self) -> None:
        """Remove the file: the fit is done."""
        self.path.unlink(missing_ok=True)


def _name(pair: tuple[int, int]) -> str:
    return f"gram.{pair[0]}.{pair[1]}"
