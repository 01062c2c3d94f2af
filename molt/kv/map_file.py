"""A learned map on disk: one safetensors file per directed pair, bound to models and tokenizer by hash.

A map in float32 is stored in half precision; on pico the mean KL of a switch is the same to three digits
in both. Whole numbers of a shared map are stored as int8. All metadata is one JSON string under one key,
because safetensors writes several keys in no fixed order and the same fit must give the same file.
``digest`` covers the tensors and the card, so a file that was altered or mixed up is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from molt.core.ladder import KVLayout
from molt.errors import InputError
from molt.formats.weights_file import file_sha256, read_header, weights_sha256
from molt.kv.project import Code, KVMap, LayerMap
from molt.models.ladder_file import LadderSpec
from molt.models.predict import map_bytes

MAP_FORMAT = "molt.kv.map/2"
_unaltered: set[tuple[Path, int, int]] = set()  # path, size, mtime_ns of files that matched their digest


class MapRefused(InputError):
    """A map file that must not be used; the message is one line and names the file."""


@dataclass(frozen=True, slots=True)
class MapCard:
    """What a map is, what it was fitted on and how well.

    ``features_per_row`` is p/n of the layer with most features; ``residual_k`` and ``residual_v`` are 1 - R^2
    on held-out documents, one for each of ``sources``, the mapped layers. ``sharpened`` is how strongly the outputs
    were moved away from their means (``molt.fitting.holdout``).
    """

    source: str
    dest: str
    source_sha256: str
    dest_sha256: str
    tokenizer_sha256: str
    hidden: int
    native_layers: int
    sources: tuple[tuple[int, ...], ...]
    ridge: float
    rows: int
    features_per_row: float
    residual_k: tuple[float, ...]
    residual_v: tuple[float, ...]
    heldout_rows: int
    calibration: tuple[str, ...]
    sharpened: float = 0.0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """The pair of models at hand, as a map must have been made for it."""

    source: KVLayout
    dest: KVLayout
    dest_hidden: int
    source_sha256: str
    dest_sha256: str
    tokenizer_sha256: str


def file_name(source: str, dest: str) -> str:
    """Name of the map between two weights."""
    return f"{source}--{dest}.safetensors"


def binding(spec: LadderSpec, source: str, dest: str) -> Binding:
    """What the map between two rungs of a ladder must have been made for."""
    return Binding(
        source=spec.ladder.rung(source).kv,
        dest=spec.ladder.rung(dest).kv,
        dest_hidden=spec.rung(dest).shape.hidden,
        source_sha256=weights_sha256(spec.rung(source).folder),
        dest_sha256=weights_sha256(spec.rung(dest).folder),
        tokenizer_sha256=file_sha256(spec.tokenizer),
    )


def save(path: Path, kv_map: KVMap, card: MapCard) -> None:
    """Write a map; the same map and card give the same bytes."""
    tensors = {}
    for number, layer in enumerate(kv_map.layers, start=kv_map.native_layers):
        dtype = torch.half if layer.scale is None else torch.int8
        tensors[f"{number}.weight"] = layer.weight.to(dtype).contiguous()
        tensors[f"{number}.bias"] = layer.bias.contiguous()
        if layer.scale is not None:
            tensors[f"{number}.scale"] = layer.scale.contiguous()
    if (code := kv_map.code) is not None:
        tensors |= {
            "code.centre": code.centre,
            "code.spread": code.spread,
            "code.weight": code.weight.to(torch.int8).contiguous(),
            "code.scale": code.scale,
        }
    card = replace(card, digest=_digest(tensors, card))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        tensors, path, metadata={"molt": json.dumps({"format": MAP_FORMAT, **asdict(card)}, sort_keys=True)}
    )


def read_card(path: Path) -> MapCard:
    """The card of a map file alone; ``MapRefused`` if the file is not a whole one."""
    return _open(path)[0]


def resident_bytes(path: Path) -> int:
    """Bytes the map takes once loaded, from the file's header alone."""
    return map_bytes(read_header(path))


def load(path: Path, made_for: Binding) -> KVMap:
    """The map, ready for use; ``MapRefused`` if it is not whole, unaltered and ``made_for`` the models at hand."""
    card, tensors = _open(path)
    for field in ("source_sha256", "dest_sha256", "tokenizer_sha256"):
        found, wanted = getattr(card, field), getattr(made_for, field)
        if found != wanted:
            what = field.removesuffix("_sha256")
            raise MapRefused(
                f"{path}: made for another {what} ({found[:12]}, here {wanted[:12]}); fit it again"
            )
    _check_unaltered(path, card, tensors)
    try:
        layers = tuple(
            _layer(sources, number, tensors)
            for number, sources in enumerate(card.sources, start=card.native_layers)
        )
        kv_map = KVMap(
            made_for.source, made_for.dest, made_for.dest_hidden, card.native_layers, layers, _code(tensors)
        )
        kv_map.check()
    except (KeyError, ValueError) as error:
        raise MapRefused(f"{path}: {error}") from error
    return kv_map


def _layer(sources: tuple[int, ...], number: int, tensors: dict[str, Tensor]) -> LayerMap:
    weight, bias = tensors[f"{number}.weight"], tensors[f"{number}.bias"].float()
    if weight.dtype == torch.int8:
        return LayerMap(sources, weight.bfloat16(), bias, tensors[f"{number}.scale"])
    return LayerMap(sources, weight.float(), bias)


def _code(tensors: dict[str, Tensor]) -> Code | None:
    if "code.weight" not in tensors:
        return None
    centre, spread, weight, scale = (
        tensors[f"code.{name}"] for name in ("centre", "spread", "weight", "scale")
    )
    return Code(centre, spread, weight.bfloat16(), scale)


def _open(path: Path) -> tuple[MapCard, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads((file.metadata() or {}).get("molt", "{}"))
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError, ValueError) as error:
        raise MapRefused(f"{path}: not a whole safetensors file ({error})") from error
    if card.pop("format", None) != MAP_FORMAT:
        raise MapRefused(f"{path}: not a map of format {MAP_FORMAT}")
    try:
        return MapCard(**{key: _frozen(value) for key, value in card.items()}), tensors
    except TypeError as error:
        raise MapRefused(f"{path}: damaged card ({error})") from error


def _check_unaltered(path: Path, card: MapCard, tensors: dict[str, Tensor]) -> None:
    """Hash a file's contents, once for as long as it does not change: a switch loads its map every time."""
    stat = path.stat()
    version = (path, stat.st_size, stat.st_mtime_ns)
    if version in _unaltered:
        return
    if card.digest != _digest(tensors, replace(card, digest="")):
        raise MapRefused(f"{path}: the contents do not match their digest; the file was altered")
    _unaltered.add(version)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _digest(tensors: dict[str, Tensor], card: MapCard) -> str:
    digest = hashlib.sha256(json.dumps(asdict(card), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
