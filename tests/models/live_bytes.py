"""How many bytes of tensors are alive while something runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Peak bytes of the storages that operations made and that were alive at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for storage in made_by((args, kwargs), result):
            if storage._cdata not in self.live and storage.device.type != "meta":
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.live.values()))
        return result


def made_by(arguments: Any, result: Any) -> Iterator[torch.UntypedStorage]:
    """The storages that the result of an operation has and its arguments have not."""
    known = {one._cdata for one in _storages(arguments)}
    return (one for one in _storages(result) if one._cdata not in known)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    return (one.untyped_storage() for one in tree_leaves(tree) if isinstance(one, torch.Tensor))
