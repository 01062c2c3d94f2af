"""FLOPs of what a map does; ``molt.models.flops`` says how they are counted."""

from __future__ import annotations

from molt.kv.project import KVMap
from molt.models.flops import PER_MULTIPLY_ADD, MapSize, carry_flops
from molt.models.model_config import ModelShape


def map_flops(kv_map: KVMap, cells: int) -> int:
    """Sending ``cells`` cells through a map: every weight once a cell."""
    return PER_MULTIPLY_ADD * cells * _size(kv_map).weights


def transplant_flops(kv_map: KVMap, dest: ModelShape, cells: int, first: int, last: int) -> int:
    """A transplant of ``cells`` cells with islands of ``first`` and ``last`` tokens."""
    return carry_flops(_size(kv_map), dest, cells, first, last)


def _size(kv_map: KVMap) -> MapSize:
    code = 0 if kv_map.code is None else kv_map.code.weight.numel()
    return MapSize(code + sum(layer.weight.numel() for layer in kv_map.layers), kv_map.native_layers)
