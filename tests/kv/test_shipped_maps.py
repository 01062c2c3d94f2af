"""The maps that ship with the package: whole, made for the ladders that name them, and small."""

from __future__ import annotations

from pathlib import Path

import pytest

import molt.models
from molt.kv import map_file
from molt.models.ladder_file import read_ladder_file
from molt.models.source import PackageSource, locate

MODELS = Path(molt.models.__file__).parent
SHIPPED = sorted(MODELS.rglob("*--*.safetensors"))
BYTES_MAX = 64 * 10**6


def test_all_of_them_take_little_room_on_disk() -> None:
    assert len(SHIPPED) >= 4
    assert sum(path.stat().st_size for path in SHIPPED) <= BYTES_MAX


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shipped_map_is_whole_and_says_what_it_was_made_of(path: Path) -> None:
    card = map_file.read_card(path)
    assert path.name == map_file.file_name(card.source, card.dest)
    assert card.features_per_row < 0.15, "many more rows than features"
    assert card.heldout_rows > 1000
    assert card.calibration
    assert max(card.residual_k[0], card.residual_v[0]) < 1e-4, "the first layer is exact"
    assert all(0.0 < share < 0.6 for share in (*card.residual_k[1:], *card.residual_v[1:]))


@pytest.mark.parametrize("ladder", ["qwen2.5-coder", "qwen2.5-coder-int8"])
def test_two_ladders_of_the_same_weights_name_the_same_maps(ladder: str) -> None:
    path, file = read_ladder_file(ladder)
    assert isinstance(file.maps, PackageSource)
    folder = locate(file.maps, path.parent)
    names = [rung.name for rung in file.rungs]
    for source, dest in (("tier0", "tier1"), ("tier1", "tier0")):
        assert {source, dest} <= set(names)
        assert (folder / map_file.file_name(source, dest)) in SHIPPED
