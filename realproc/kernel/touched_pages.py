"""Resident memory: pages that were written to, in blocks that go back to the system one by one.

Small blocks are 1 MiB of small pages. Huge blocks are one huge page each, 2 MiB, where the kernel has one left; an odd
MiB is a small block. What is resident is exact either way: only the blocks are written to, and small blocks refuse huge
pages, which would bring in more than was asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from molt.units import MIB

HUGE_BYTES = 2 * MIB
_ADVICE_NONE = -1


class TouchedBlocks:
    """A stack of blocks of resident memory."""

    def __init__(self) -> None:
        self._blocks: list[tuple[mmap.mmap, int]] = []
        self.taken_bytes = 0

    def grow(self, target_bytes: int, *, huge: bool = False) -> int:
        """Take the largest block that stays within a target, which is a MiB away or more; returns its bytes."""
        missing = target_bytes - self.taken_bytes
        assert missing >= MIB, missing
        size_bytes = HUGE_BYTES if huge and missing >= HUGE_BYTES else MIB
        block = _huge_block() if size_bytes == HUGE_BYTES else _small_block()
        self._blocks.append((block, size_bytes))
        self.taken_bytes += size_bytes
        return size_bytes

    def shrink(self) -> int:
        """Give the newest block back to the system; returns its bytes."""
        block, size_bytes = self._blocks.pop()
        block.close()
        self.taken_bytes -= size_bytes
        return size_bytes


def _small_block() -> mmap.mmap:
    block = _private(MIB)
    _advise(block, getattr(mmap, "MADV_NOHUGEPAGE", _ADVICE_NONE))
    _touch(block, 0, MIB)
    return block


def _huge_block() -> mmap.mmap:
    """Twice the address space of a huge page contains an aligned one; only that is written to."""
    block = _private(2 * HUGE_BYTES)
    _advise(block, getattr(mmap, "MADV_HUGEPAGE", _ADVICE_NONE))
    _touch(block, -ctypes.addressof(ctypes.c_char.from_buffer(block)) % HUGE_BYTES, HUGE_BYTES)
    return block


def _private(size_bytes: int) -> mmap.mmap:
    """Private anonymous memory; Python's default is a shared mapping, which the kernel counts as a file."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _advise(block: mmap.mmap, advice: int) -> None:
    if advice != _ADVICE_NONE:
        with contextlib.suppress(OSError):  # a kernel without huge pages knows neither advice
            block.madvise(advice)


def _touch(block: mmap.mmap, start: int, size_bytes: int) -> None:
    """Write to every page; one write to a huge page brings in all of it."""
    pages = size_bytes // mmap.PAGESIZE
    block[start : start + size_bytes : mmap.PAGESIZE] = b"\1" * pages
