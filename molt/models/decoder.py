"""The forward pass of a rung: a dense decoder with grouped-query attention and rotary positions.

One implementation for every family in ``molt.models.model_config.FAMILIES`` and every precision; transformers'
own models are what the tests compare it with. It knows no cache but its interface, builds no mask for a single
token, and computes only the logits that are asked for.

Shape legend: t tokens of this pass, T cells they may see, H heads, G = KV heads, D dimension of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from molt.models.matrix import Matrix
from molt.models.model_config import ModelShape
from molt.models.rope import Rope
from molt.work import Work, finished

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class Cells(Protocol):
    """What a pass needs of a cache: the keys and values of a layer, with those of new tokens among them."""

    def mask(self, tokens: int, device: torch.device) -> Tensor | None:
        """What is added to the scores (t, T) of new tokens, or ``None`` where each may see every cell."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (G, t, D) of a layer; returns all of them, (G, T, D) each."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The weights of one layer; ``qkv`` and ``gate_up`` are several matrices in one."""

    input_norm: Tensor  # (hidden,)
    qkv: Matrix  # ((H + 2 G) D, hidden)
    query_norm: Tensor | None  # (D,)
    key_norm: Tensor | None  # (D,)
    output: Matrix  # (hidden, H D)
    post_norm: Tensor  # (hidden,)
    gate_up: Matrix  # (2 ff, hidden)
    down: Matrix  # (hidden, ff)


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A rung's weights, ready to run; ``dtype`` is what it computes in, ``device`` where."""

    shape: ModelShape
    rope: Rope
    embedding: Matrix  # (vocabulary, hidden)
    layers: tuple[Layer, ...]
    norm: Tensor  # (hidden,)
    head: Matrix  # (vocabulary, hidden)

    @property
    def dtype(self) -> torch.dtype:
        """float32, or bfloat16 for a bf16 rung."""
        return self.norm.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.norm.device

    def embed(self, ids: Sequence[int]) -> Tensor:
        """The input of the first layer for some tokens, before its norm, (t, hidden)."""
        return self.embedding.rows(torch.tensor(ids, dtype=torch.int64, device=self.device))

    def run(
        self, x: Tensor, positions: Sequence[int], cache: Cells, first: int = 0, end: int | None = None
    ) -> Tensor:
        """The residual stream (t, hidden) after the layers from ``first`` up to ``end`` (default: all).

        ``x`` is the stream before them, and becomes the one after; their keys and values enter the cache.
        """
        return finished(self.running(x, positions, cache, first, end))

    def running(
        self, x: Tensor, positions: Sequence[int], cache: Cells, first: int = 0, end: int | None = None
    ) -> Work[Tensor]:
        """``run``, which pauses after every layer."""
        turn = self._turn(positions)
        mask = cache.mask(len(x), x.device)
        for number in range(first, self.shape.layers if end is None else end):
            layer = self.layers[number]
            x += layer.output.linear(self._attended(number, layer, x, turn, mask, cache))
            x += self._mlp(layer, x)
            yield
        return x

    def normed_input(self, x: Tensor, layer: int) -> Tensor:
        """What layer ``layer`` computes its keys and values from, (t, hidden), given the stream before it."""
        return self._normed(x, self.layers[layer].input_norm)

    def queries(self, x: Tensor, positions: Sequence[int], layer: int) -> Tensor:
        """What layer ``layer`` looks for in its keys, turned by the positions, (t, H, D), given the stream."""
        turned, _ = self._projected(self.layers[layer], x, self._turn(positions))
        return turned[:, : self.shape.heads]

    def logits(self, x: Tensor) -> Tensor:
        """Logits (t, vocabulary) float32 after the last layer."""
        return self.head.linear(self._normed(x, self.norm)).float()

    # -- detail

    def _attended(
        self,
        number: int,
        layer: Layer,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cells,
    ) -> Tensor:
        """What the heads of a layer read from the cells, (t, H D)."""
        groups, tokens = self.shape.kv_heads, len(x)
        turned, values = self._projected(layer, x, turn)
        queries, keys = turned.split((self.shape.heads, groups), dim=1)  # (t, H, D), (t, G, D)
        all_keys, all_values = cache.extend(number, keys.transpose(0, 1), values.transpose(0, 1))
        # Queries that share a key form one batch entry, so that keys are never repeated.
        queries = queries.view(tokens, groups, -1, self.shape.head_dim).to(all_keys.dtype)  # (t, G, H / G, D)
        if tokens == 1:
            attended = functional.scaled_dot_product_attention(queries, all_keys[None], all_values[None])
        else:
            shared = (groups, self.shape.heads // groups, -1, -1)
            attended = functional.scaled_dot_product_attention(
                queries.permute(1, 2, 0, 3),  # (G, H / G, t, D)
                all_keys[:, None].expand(shared),
                all_values[:, None].expand(shared),
                mask,
            ).permute(2, 0, 1, 3)
        return attended.reshape(tokens, -1).to(x.dtype)

    def _projected(self, layer: Layer, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Queries and keys (t, H + G, D), turned by their positions, and values (t, G, D)."""
        heads, groups, head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        qkv = layer.qkv.linear(self._normed(x, layer.input_norm)).view(len(x), heads + 2 * groups, head_dim)
        turned, values = qkv.split((heads + groups, groups), dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = turned.split((heads, groups), dim=1)
            queries.copy_(self._normed(queries, layer.query_norm))
            keys.copy_(self._normed(keys, layer.key_norm))
        turned = _turned(turned, *turn)
        if self.rope.score_factor != 1.0:
            turned[:, :heads] *= self.rope.score_factor
        return turned, values

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up.linear(self._normed(x, layer.post_norm)).chunk(2, dim=1)
        gate = ACTIVATIONS[self.shape.activation](gate).mul_(up)
        del up  # and with it the memory of both, before there is more
        return layer.down.linear(gate)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm over the last axis, in float32."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(self.shape.norm_eps))
        return weight * (wide * scale).to(x.dtype)

    def _turn(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """cos, and sin with the sign of its half, (t, 1, D) each."""
        cos, sin = self.rope.angles(torch.tensor(positions, dtype=torch.int64, device=self.device))
        return (
            torch.cat((cos, cos), dim=1)[:, None].to(self.dtype),
            torch.cat((-sin, sin), dim=1)[:, None].to(self.dtype),
        )


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (t, n, D) turned by their positions."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin)
