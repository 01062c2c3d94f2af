"""What torch makes of this machine. The import takes a second or two."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator that torch can use."""

    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """torch as this process has it; ``capability`` is the widest vector extension its kernels use."""

    version: str
    threads: int
    interop_threads: int
    capability: str
    onednn: bool
    wait_policy: str | None
    devices: tuple[Device, ...]


def read_torch() -> TorchFacts | None:
    """Import torch as Molt does and ask it; ``None`` where it cannot be imported."""
    import molt.openmp  # noqa: F401  before torch

    try:
        import torch
    except (ImportError, OSError):
        return None
    return TorchFacts(
        version=torch.__version__,
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
        onednn=torch.backends.mkldnn.is_available(),
        wait_policy=os.environ.get("OMP_WAIT_POLICY"),
        devices=tuple(_devices()),
    )


def _devices() -> list[Device]:
    import torch

    devices = []
    if torch.cuda.is_available():
        properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        devices += [Device(one.name, one.total_memory) for one in properties]
    if torch.backends.mps.is_available():
        devices.append(Device("Apple GPU (mps)", None))
    return devices
