"""Memory for weights: a mapping of its own, which goes back to the operating system when it is dropped.

Not malloc's, which keeps what is freed for later. An anonymous arena asks for huge pages, which makes it
faster to fill, to read and to give back; a mapped one is a file's own pages, which the system can drop by
itself.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from pathlib import Path

import torch
from torch import Tensor


class Arena:
    """One range of memory that tensors are views of.

    The memory returns when the arena and every tensor made from it are gone, which ``watch`` shows.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @staticmethod
    def anonymous(nbytes: int) -> Arena:
        """Fresh memory of this process, all zeros. Raises ``MemoryError`` if the system has none to give."""
        try:
            if sys.platform == "win32":
                return Arena(mmap.mmap(-1, nbytes))
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no {nbytes} bytes to be had: {error.strerror}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return Arena(memory)

    @staticmethod
    def mapped(path: Path, offset: int, nbytes: int) -> Arena:
        """A file's bytes from ``offset`` on, a multiple of the page size. Writing to them changes no file."""
        with path.open("rb") as file:
            return Arena(mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY, offset=offset))

    @property
    def nbytes(self) -> int:
        """Bytes of address space."""
        return len(self._memory)

    @property
    def memory(self) -> memoryview:
        """All of it, to be written; keep no reference."""
        return memoryview(self._memory)

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A view of the values from ``offset`` bytes on."""
        count = 1
        for extent in shape:
            count *= extent
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)

    def watch(self) -> weakref.ref[mmap.mmap]:
        """A reference that is dead once the memory is back with the system."""
        return weakref.ref(self._memory)
