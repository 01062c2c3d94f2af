"""How many bytes of tensors are alive while something runs."""

from __future__ import annotations

import weakref
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
        known = {
            one.untyped_storage()._cdata
            for one in tree_leaves((args, kwargs))
            if isinstance(one, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                is_new = storage._cdata not in known and storage._cdata not in self.live
                if is_new and one.device.type != "meta":
                    self.live[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.live.values()))
        return result
