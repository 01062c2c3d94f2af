"""A cache on disk comes back bit for bit, or not at all."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import molt.kv.spill
from molt.core.engine_protocol import SpillError
from molt.kv.cache import PreallocatedCache
from molt.kv.spill import restore, spill
from tests.tiny_rungs import TinyRung


def room_for(cache: PreallocatedCache, spare: int = 0) -> PreallocatedCache:
    return PreallocatedCache(cache.layout, cache.cells + spare)


@pytest.mark.parametrize("keep", [0, 1, 12, 40])
def test_what_comes_back_is_what_left_bit_for_bit(
    large: TinyRung, ids: list[int], tmp_path: Path, keep: int
) -> None:
    cache = large.prefill_afresh(ids)
    cache.shed(keep, sinks=4)  # with a gap among its positions
    before = cache.export()
    back = room_for(cache, spare=3)
    spilled = spill(cache, tmp_path)
    assert list(tmp_path.iterdir()) == []
    restore(spilled, back)
    after = back.export()
    assert torch.equal(after.keys, before.keys)
    assert torch.equal(after.values, before.values)
    assert torch.equal(after.positions, before.positions)
    assert spilled.file.closed


def size_of(file: int) -> int:
    return os.fstat(file).st_size


DAMAGE: dict[str, Callable[[int], object]] = {
    "a bit": lambda file: os.pwrite(file, bytes([os.pread(file, 1, 0)[0] ^ 1]), 0),
    "the last byte": lambda file: os.ftruncate(file, size_of(file) - 1),
    "one byte more": lambda file: os.pwrite(file, b"x", size_of(file)),
    "everything": lambda file: os.ftruncate(file, 0),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_an_altered_file_is_refused_and_the_room_stays_empty(
    large: TinyRung, ids: list[int], tmp_path: Path, damage: Callable[[int], object]
) -> None:
    cache = large.prefill_afresh(ids)
    spilled, back = spill(cache, tmp_path), room_for(cache)
    damage(spilled.file.fileno())
    with pytest.raises(SpillError):
        restore(spilled, back)
    assert back.cells == 0
    assert spilled.file.closed


class FullDisk(io.FileIO):
    """A file that takes the first thousand bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


class ShortWrites(io.FileIO):
    """A file that takes only a half of what it is given."""

    def write(self, data: Any) -> int:
        return super().write(data[: len(data) // 2])


@pytest.mark.parametrize(("disk", "words"), [(FullDisk, "No space left"), (ShortWrites, "only a part")])
def test_a_disk_that_does_not_take_it_is_told(
    large: TinyRung,
    ids: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disk: type[io.FileIO],
    words: str,
) -> None:
    cache = large.prefill_afresh(ids)
    before = cache.export()
    monkeypatch.setattr(molt.kv.spill, "TemporaryFile", lambda buffering, dir: disk(dir / "file", "w"))
    with pytest.raises(SpillError, match=words):
        spill(cache, tmp_path)
    assert torch.equal(cache.export().keys, before.keys)


def test_a_disk_that_is_not_there_is_told(large: TinyRung, ids: list[int], tmp_path: Path) -> None:
    with pytest.raises(SpillError, match="No such file"):
        spill(large.prefill_afresh(ids), tmp_path / "nowhere")
