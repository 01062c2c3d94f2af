"""A cache on disk: written layer by layer with a checksum, and taken back only if it is the same bit for bit.

The file is private to the process that wrote it and lives no longer: positions, geometry and checksum stay in
memory, so nothing in the file is trusted. At most one layer is in memory twice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.engine.protocol import SpillError
from molt.kv.cache import PreallocatedCache


@dataclass(frozen=True, slots=True)
class Spilled:
    """Where a cache is, and what it must be when it comes back."""

    path: Path
    layout: KVLayout
    positions: tuple[int, ...]
    digest: bytes

    def forget(self) -> None:
        """Remove the file; it may be gone already."""
        self.path.unlink(missing_ok=True)


@torch.inference_mode()
def spill(cache: PreallocatedCache, folder: Path) -> Spilled:
    """Write the cells of a cache into a new file of ``folder``; the cache itself stays as it is.

    Raises ``SpillError``, leaving no file behind, if the disk is full or does not take what it is given.
    """
    path = folder / f"{uuid4().hex}.cache"
    try:
        digest = _write(cache, path)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise SpillError(f"{path}: {error.strerror or error}") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Spilled(path, cache.layout, tuple(cache.positions), digest)


@torch.inference_mode()
def restore(spilled: Spilled, cache: PreallocatedCache) -> None:
    """Read spilled cells into an empty cache with room for them; the file is gone afterwards, whatever happens.

    Raises ``SpillError`` if the file is missing, short, longer, or altered; the cache is still empty then.
    """
    cells = len(spilled.positions)
    assert cache.layout == spilled.layout, "a cache comes back in the geometry it left in"
    assert cache.cells == 0, f"{cache.cells} cells are there already"
    assert cache.capacity >= cells, f"room for {cache.capacity} of {cells} cells"
    digest = hashlib.blake2b()
    try:
        with spilled.path.open("rb", buffering=0) as file:
            for layer in range(spilled.layout.layers):
                keys, values = (_read(file, part, digest) for part in _empty_like(cache, layer, cells))
                cache.put(layer, keys, values)
            is_whole = not file.read(1)
    except OSError as error:
        raise SpillError(f"{spilled.path}: {error.strerror or error}") from error
    finally:
        spilled.forget()
    if not is_whole or digest.digest() != spilled.digest:
        raise SpillError(f"{spilled.path}: not what was written")
    cache.commit(spilled.positions)


def _write(cache: PreallocatedCache, path: Path) -> bytes:
    """Write all cells; returns their checksum."""
    digest = hashlib.blake2b()
    with path.open("wb", buffering=0) as file:
        for layer in range(cache.layout.layers):
            for tensor in cache.up_to(layer, cache.cells):
                data = _bytes(tensor.contiguous().cpu())
                digest.update(data)
                if file.write(data) != len(data):
                    raise SpillError(f"{path}: the disk took only a part of a layer")
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
