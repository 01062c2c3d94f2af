"""Where a real engine computes: the processor, or an accelerator that torch can use here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from molt.errors import InputError
from molt.formats.yaml_file import nearest, show

KINDS = ("cpu", "cuda")


def usable_device(name: str) -> torch.device:
    """The device of a name, ``cpu``, ``cuda`` or ``cuda:1``; ``InputError`` if it is not usable here."""
    kind, _, number = name.partition(":")
    if kind not in KINDS or (number and not number.isdecimal()):
        raise InputError(f"--device: {show(name)} is no device; {nearest(kind, KINDS)}")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            raise InputError(f"--device: {show(name)}: torch sees {count} CUDA devices here")
    return torch.device(name)


@contextmanager
def no_memory_is(fault: type[Exception], what: str) -> Iterator[None]:
    """Turn running out of memory, whatever raises it, into a ``fault``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # of the processor's memory torch raises a RuntimeError
        if isinstance(error, RuntimeError) and not _is_out_of_memory(error):
            raise
        raise fault(f"no memory {what}: {error}") from error


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def allocated_bytes(device: torch.device) -> int:
    """Bytes that tensors hold on an accelerator, by its own allocator's account."""
    return torch.cuda.memory_allocated(device)
