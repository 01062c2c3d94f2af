"""A map file is used only if it is whole, unaltered and made for the very models at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from molt.core.ladder import KVLayout
from molt.formats.weights_file import read_header
from molt.kv import map_file
from molt.kv.features import columns_per_layer
from molt.kv.map_file import Binding, MapCard, MapRefused
from molt.kv.project import Code, KVMap, LayerMap, whole_numbers
from molt.models.predict import map_bytes

SOURCE, DEST = KVLayout(3, 2, 8, 4), KVLayout(2, 1, 6, 4)
HIDDEN = 5
BINDING = Binding(SOURCE, DEST, HIDDEN, "a" * 64, "b" * 64, "c" * 64)


def some_map() -> KVMap:
    generator = torch.Generator().manual_seed(0)
    layers = tuple(
        LayerMap(
            sources,
            torch.randn(32 * len(sources) + HIDDEN, 12, generator=generator),
            torch.randn(12, generator=generator),
        )
        for sources in ((0, 1), (2,))
    )
    return KVMap(SOURCE, DEST, HIDDEN, 0, layers)


def some_card(kv_map: KVMap) -> MapCard:
    return MapCard(
        source="big",
        dest="little",
        source_sha256=BINDING.source_sha256,
        dest_sha256=BINDING.dest_sha256,
        tokenizer_sha256=BINDING.tokenizer_sha256,
        hidden=HIDDEN,
        native_layers=0,
        sources=tuple(layer.sources for layer in kv_map.layers),
        ridge=0.001,
        rows=1000,
        features_per_row=0.05,
        residual_k=(0.1, 0.2),
        residual_v=(0.3, 0.4),
        heldout_rows=100,
        calibration=("some text",),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / map_file.file_name("big", "little")
    kv_map = some_map()
    map_file.save(file, kv_map, some_card(kv_map))
    return file


def rewrite(path: Path, change: dict[str, object]) -> None:
    """Write the file again with some entries of its card changed, as a careless hand would."""
    with safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()["molt"]) | change
    save_file(load_file(path), path, metadata={"molt": json.dumps(card)})


def test_a_map_comes_back_to_half_precision(path: Path) -> None:
    loaded, original = map_file.load(path, BINDING), some_map()
    for one, other in zip(loaded.layers, original.layers, strict=True):
        assert one.sources == other.sources
        assert one.weight.dtype == torch.float32
        assert torch.equal(one.weight, other.weight.half().float())
        assert torch.equal(one.bias, other.bias)
    assert map_file.resident_bytes(path) == loaded.nbytes


def shared_map() -> KVMap:
    """``some_map`` as a shared one: its first layer, which alone may read the input, stays as it is."""
    generator = torch.Generator().manual_seed(1)
    width, rank = SOURCE.layers * columns_per_layer(SOURCE) + HIDDEN, 5
    centre, spread = torch.randn(width, generator=generator), torch.rand(width, generator=generator) + 0.5
    code = Code(centre, spread, *whole_numbers(torch.randn(width, rank, generator=generator)))
    bias = torch.randn(12, generator=generator)
    first = LayerMap((), torch.randn(HIDDEN, 12, generator=generator), bias.clone())
    weight, scale = whole_numbers(torch.randn(rank, 12, generator=generator))
    every = tuple(range(SOURCE.layers))
    return KVMap(SOURCE, DEST, HIDDEN, 0, (first, LayerMap(every, weight, bias, scale)), code)


def test_a_shared_map_comes_back_exactly_and_its_bytes_are_known_before(tmp_path: Path) -> None:
    kv_map, path = shared_map(), tmp_path / "map"
    map_file.save(path, kv_map, some_card(kv_map))
    loaded = map_file.load(path, BINDING)
    one, other = kv_map.layers[1], loaded.layers[1]
    assert other.weight.dtype == torch.bfloat16
    assert torch.equal(one.weight, other.weight)
    assert one.scale is not None
    assert other.scale is not None
    assert torch.equal(one.scale, other.scale)
    assert kv_map.code is not None
    assert loaded.code is not None
    for name in ("centre", "spread", "weight", "scale"):
        assert torch.equal(getattr(kv_map.code, name), getattr(loaded.code, name))
    assert map_file.resident_bytes(path) == loaded.nbytes == map_bytes(read_header(path))


def test_a_code_that_no_layer_takes_is_refused(tmp_path: Path) -> None:
    kv_map = replace(some_map(), code=shared_map().code)
    map_file.save(tmp_path / "map", kv_map, some_card(kv_map))
    with pytest.raises(MapRefused, match="not in the form of the others"):
        map_file.load(tmp_path / "map", BINDING)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("spread", lambda tensor: torch.zeros_like(tensor), "not positive"),
        ("centre", lambda tensor: tensor[:-1], "centre of the map's code"),
        ("scale", lambda tensor: tensor * float("nan"), "scale of the map's code"),
        ("weight", lambda tensor: tensor[:-1], "weight of the map's code"),
    ],
)
def test_a_code_that_does_not_fit_is_refused(
    tmp_path: Path, part: str, value: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    kv_map = shared_map()
    assert kv_map.code is not None
    code = replace(kv_map.code, **{part: value(getattr(kv_map.code, part))})
    kv_map = replace(kv_map, code=code)
    map_file.save(tmp_path / "map", kv_map, some_card(kv_map))
    with pytest.raises(MapRefused, match=words):
        map_file.load(tmp_path / "map", BINDING)


def test_the_same_map_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    kv_map = some_map()
    map_file.save(tmp_path / "again", kv_map, some_card(kv_map))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("field", ["source_sha256", "dest_sha256", "tokenizer_sha256"])
def test_a_map_of_other_models_is_refused(path: Path, field: str) -> None:
    with pytest.raises(MapRefused, match=f"another {field.removesuffix('_sha256')}"):
        map_file.load(path, replace(BINDING, **{field: "d" * 64}))


def test_a_truncated_map_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(MapRefused, match="not a whole"):
        map_file.load(path, BINDING)


def test_a_missing_map_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MapRefused, match="nowhere"):
        map_file.load(tmp_path / "nowhere", BINDING)


def test_one_flipped_bit_is_noticed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(MapRefused, match="altered"):
        map_file.load(path, BINDING)


def test_an_altered_card_is_noticed(path: Path) -> None:
    rewrite(path, {"residual_k": [0.0, 0.0]})
    with pytest.raises(MapRefused, match="altered"):
        map_file.load(path, BINDING)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other/1"}, "format"),
        ({"surprise": 1}, "damaged card"),
        ({"rows": None, "digest": 3}, "altered"),
    ],
)
def test_a_strange_card_is_refused(path: Path, change: dict[str, object], words: str) -> None:
    rewrite(path, change)
    with pytest.raises(MapRefused, match=words):
        map_file.load(path, BINDING)


def test_shapes_of_another_geometry_are_refused(path: Path) -> None:
    with pytest.raises(MapRefused, match="the rungs need"):
        map_file.load(path, replace(BINDING, dest=KVLayout(2, 1, 8, 4)))


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    kv_map = some_map()
    kv_map.layers[1].weight[3, 4] = float("nan")
    map_file.save(tmp_path / "nan", kv_map, some_card(kv_map))
    with pytest.raises(MapRefused, match="not finite"):
        map_file.load(tmp_path / "nan", BINDING)


def test_every_refusal_is_one_line_and_names_the_file(path: Path) -> None:
    path.write_bytes(b"not a map at all")
    with pytest.raises(MapRefused) as refusal:
        map_file.load(path, BINDING)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
