"""A cache on disk: written layer by layer with a checksum, and taken back only if it is the same bit for bit.

The file has no name, so that it goes with the process that wrote it, however that ends. Positions, geometry and
checksum stay in memory: nothing in the file is trusted. At most one layer is in memory twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import torch
from torch import Tensor

from molt.core.engine_protocol import SpillError
from molt.core.ladder import KVLayout
from molt.kv.cache import PreallocatedCache


@dataclass(frozen=True, slots=True)
class Spilled:
    """Where a cache is, and what it must be when it comes back."""

    file: IO[bytes]
    layout: KVLayout
    positions: tuple[int, ...]
    digest: bytes

    def forget(self) -> None:
        """Let the file go."""
        self.file.close()


@torch.inference_mode()
def spill(cache: PreallocatedCache, folder: Path | None = None) -> Spilled:
    """Write the cells of a cache to disk; the cache itself stays as it is.

    ``folder`` says on which disk; if it is ``None``, where temporary files go. Raises ``SpillError`` if the disk is
    full or does not take what it is given.
    """
    with ExitStack() as on_failure, _faults():
        file = on_failure.enter_context(TemporaryFile(buffering=0, dir=folder))
        digest = _write(cache, file)
        on_failure.pop_all()
    return Spilled(file, cache.layout, tuple(cache.positions), digest)


@torch.inference_mode()
def restore(spilled: Spilled, cache: PreallocatedCache) -> None:
    """Read spilled cells into an empty cache with room for them; the file is gone afterwards, whatever happens.

    Raises ``SpillError`` if the file is short, longer, or altered; the cache is still empty then.
    """
    cells = len(spilled.positions)
    assert cache.layout == spilled.layout, "a cache comes back in the geometry it left in"
    assert cache.cells == 0, f"{cache.cells} cells are there already"
    assert cache.capacity >= cells, f"room for {cache.capacity} of {cells} cells"
    digest = hashlib.blake2b()
    with spilled.file as file, _faults():
        file.seek(0)
        for layer in range(spilled.layout.layers):
            keys, values = (_read(file, part, digest) for part in _empty_like(cache, layer, cells))
            cache.put(layer, keys, values)
        is_whole = not file.read(1)
    if not is_whole or digest.digest() != spilled.digest:
        raise SpillError("what came back from disk is not what was written")
    cache.commit(spilled.positions)


@contextmanager
def _faults() -> Iterator[None]:
    """What the disk cannot do is a ``SpillError``."""
    try:
        yield
    except OSError as error:
        raise SpillError(f"a cache on disk: {error.strerror or error}") from error


def _write(cache: PreallocatedCache, file: IO[bytes]) -> bytes:
    """Write all cells; returns their checksum."""
    digest = hashlib.blake2b()
    for layer in range(cache.layout.layers):
        for tensor in cache.up_to(layer, cache.cells):
            data = _bytes(tensor.contiguous().cpu())
            digest.update(data)
            if file.write(data) != len(data):
                raise SpillError("the disk took only a part of a layer")
    return digest.digest()


def _empty_like(cache: PreallocatedCache, layer: int, cells: int) -> tuple[Tensor, Tensor]:
    keys, values = cache.up_to(layer, cells)
    return torch.empty(keys.shape, dtype=keys.dtype), torch.empty(values.shape, dtype=values.dtype)


def _read(file, tensor: Tensor, digest) -> Tensor:  # type: ignore[no-untyped-def]
    """Fill a tensor from a file as far as that goes; what is missing shows in the checksum."""
    data = _bytes(tensor)
    done = 0
    while done < len(data) and (count := file.readinto(data[done:])):
        done += count
    digest.update(data[:done])
    return tensor


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
