"""Layer by layer: what a map leaves unexplained, and what of it attention notices.

R2 alone shows little: error in K is harmless unless it reorders attention, and error in V goes straight into the
stream. So the same queries, the destination's own along the document after the switch, look into its own cells
and into the mapped ones, and what they read and where they look is compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from molt.core.ladder import Route
from molt.evals.result import LayerResidual, Residuals, RouteResiduals
from molt.evals.setup import JudgedText, Settings, TableSetup
from molt.evals.statistics import summarise, summarise_share
from molt.kv.cache import PreallocatedCache, causal_mask
from molt.kv.key_rotation import unrotate
from molt.kv.loaded_rung import LoadedRung
from molt.kv.transplant import transplant


@dataclass(slots=True)
class _Layer:
    """Sums of one layer, one entry a document."""

    error: dict[str, list[float]] = field(default_factory=lambda: {"k": [], "v": []})
    variance: dict[str, list[float]] = field(default_factory=lambda: {"k": [], "v": []})
    cosine: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)


def residuals(made_with: TableSetup, found: Sequence[Route]) -> Residuals:
    """The table of ``molt eval residuals``, of routes that go through a map."""
    routes = []
    for number, route in enumerate(found):
        made_with.progress("routes", number, len(found))
        routes.append(_route(made_with, route))
    made_with.progress("routes", len(found), len(found))
    return Residuals(table="residuals", routes=routes, **made_with.facts())


def _route(made_with: TableSetup, route: Route) -> RouteResiduals:
    loaded, texts, settings = made_with.loaded, made_with.texts, made_with.settings
    source, dest, card = loaded.rung(route.source), loaded.rung(route.dest), loaded.card(route)
    layers = [_Layer() for _ in range(dest.layout.layers)]
    for number, text in enumerate(texts):
        read = text.known[:-1]
        transplanted = transplant(
            source.prefill_afresh(read),
            source.rope,
            loaded.kv_map(route),
            dest,
            text.known,
            len(text.known),
            settings.islands,
        )
        own = dest.prefill_afresh(read)
        _unexplained(dest, transplanted, own, settings, layers)
        _attention(dest, transplanted, own, text, layers)
        made_with.progress("documents", number + 1, len(texts))
    native = dest.layout.layers - len(card.residual_k)
    seed = settings.seed
    return RouteResiduals(
        source=route.source,
        dest=route.dest,
        features_per_row=card.features_per_row,
        rows=card.rows,
        layers=[
            LayerResidual(
                layer=number,
                residual_k=summarise_share(layer.error["k"], layer.variance["k"], seed, more_is_better=False),
                residual_v=summarise_share(layer.error["v"], layer.variance["v"], seed, more_is_better=False),
                card_k=card.residual_k[number - native] if number >= native else None,
                card_v=card.residual_v[number - native] if number >= native else None,
                attention_cosine=summarise(layer.cosine, seed, more_is_better=True),
                routing_tv=summarise(layer.moved, seed),
                routing_top1=summarise(layer.same, seed, more_is_better=True),
            )
            for number, layer in enumerate(layers)
        ],
    )


def _unexplained(
    dest: LoadedRung,
    transplanted: PreallocatedCache,
    own: PreallocatedCache,
    settings: Settings,
    layers: Sequence[_Layer],
) -> None:
    """Squared error of the mapped cells, and their variance about their mean; keys un-rotated."""
    first, end = settings.islands.first, transplanted.cells - settings.islands.last
    states = [cache.export(first, end) for cache in (transplanted, own)]
    keys = [unrotate(state.keys, state.positions, dest.rope) for state in states]
    for figure, (found, truth) in (("k", keys), ("v", [state.values for state in states])):
        error = (found - truth).double().square().sum((1, 2, 3))  # (L,)
        spread = (truth - truth.mean(2, keepdim=True)).double().square().sum((1, 2, 3))  # (L,)
        for layer, one, other in zip(layers, error.tolist(), spread.tolist(), strict=True):
            layer.error[figure].append(one)
            layer.variance[figure].append(other)


@torch.inference_mode()
def _attention(
    dest: LoadedRung,
    transplanted: PreallocatedCache,
    own: PreallocatedCache,
    text: JudgedText,
    layers: Sequence[_Layer],
) -> None:
    """What the queries after the switch read from either cache, and where they look."""
    fed = (text.known[-1], *text.next[:-1])
    positions = range(own.cells, own.cells + len(fed))
    fork = own.fork(spare=len(fed))
    x, queries = dest.decoder.embed(fed), []
    for number in range(dest.layout.layers):
        queries.append(dest.decoder.queries(x, positions, number))  # (t, H, D)
        x = dest.decoder.run(x, positions, fork, number, number + 1)
    fork.commit(positions)
    mine, theirs = fork.export(), transplanted.export()
    mask = causal_mask(len(fed), own.cells, mine.keys.device)  # (t, T)
    for number, layer in enumerate(layers):
        read, looked = [], []
        for keys, values in (
            (mine.keys[number], mine.values[number]),
            (
                torch.cat((theirs.keys[number], mine.keys[number][:, own.cells :]), dim=1),
                torch.cat((theirs.values[number], mine.values[number][:, own.cells :]), dim=1),
            ),
        ):
            weights = _weights(queries[number], keys, mask)  # (G, H / G, t, T)
            looked.append(weights)
            read.append(weights @ values[:, None])  # (G, H / G, t, D)
        cosine = torch.cosine_similarity(read[0], read[1], dim=-1)
        layer.cosine.append(float(cosine.mean()))
        layer.moved.append(float((looked[0] - looked[1]).abs().sum(-1).mean()) / 2)
        layer.same.append(float((looked[0].argmax(-1) == looked[1].argmax(-1)).float().mean()))


def _weights(queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """Attention weights (G, H / G, t, T) of queries (t, H, D) over keys (G, T, D)."""
    tokens, _, head_dim = queries.shape
    groups = len(keys)
    shared = queries.float().view(tokens, groups, -1, head_dim).permute(1, 2, 0, 3)  # (G, H / G, t, D)
    scores = shared @ keys[:, None].transpose(-1, -2) / math.sqrt(head_dim)
    return torch.softmax(scores + mask, dim=-1)
