"""Kernels that rungs could use: time and memory traffic, by shape and number of tokens.

``python -m benchmarks.kernels [--tokens 1 8 128] [--rounds 9] [--out benchmarks/results/kernels.json]``

The matrices are those of the Qwen2.5 0.5B, all of its layers, so that no cache holds them from one use to the
next; the values are random. All candidates lie in memory at once (7 GB) and are timed in turns. GB/s counts
the bytes of the weights alone; "roof" is the speed of plain reading (``benchmarks.timing.roof``). Accuracy is
not measured here but by ``benchmarks.decode``: a kernel that quantises a whole chunk of tokens with one scale
(fbgemm, marked *) is no candidate for prefill, however fast.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn import functional

import molt.openmp  # noqa: F401  before torch
from benchmarks.timing import Others, medians, roof, write
from molt.models.matrix import Int8Matrix, row_offsets

LAYERS = 24
SHAPES = {"qkv": (1152, 896), "output": (896, 896), "gate_up": (9728, 896), "down": (896, 4864)}
HEAD = (151936, 896)
INT4_GROUP = 64

Product = Callable[[Tensor], Tensor]
"""One matrix, ready: from tokens (t, in) float32 to (t, out)."""


def fp32(weight: Tensor) -> Product:
    """``linear`` in float32."""
    wide = weight.float()
    return lambda x: functional.linear(x, wide)


def fp32_onednn(weight: Tensor) -> Product:
    """oneDNN in float32, weights as they are."""
    wide = weight.float()
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, wide, None, "none", [], "")


def bf16(weight: Tensor) -> Product:
    """``linear`` in bfloat16, weights as they are."""
    half = weight.bfloat16()
    return lambda x: functional.linear(x.bfloat16(), half)


def bf16_packed(weight: Tensor) -> Product:
    """oneDNN with weights in its own order, bfloat16."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16())
    return lambda x: torch.ops.mkldnn._linear_pointwise(x.bfloat16(), packed, None, "none", [], "")


def int8_row_major(weight: Tensor) -> Product:
    """What Molt uses, with everything around it: ``molt.models.matrix``."""
    return Int8Matrix(weight, torch.ones(len(weight)), row_offsets(weight)).linear


def int8_right(weight: Tensor) -> Product:
    """``torch._int_mm`` with the weights on the right; the product alone."""
    return lambda x: torch._int_mm(x.to(torch.int8), weight.t())


def int8_left(weight: Tensor) -> Product:
    """``torch._int_mm`` with the weights on the left; the product alone."""
    return lambda x: torch._int_mm(weight, x.to(torch.int8).t())


def int8_unsigned(weight: Tensor) -> Product:
    """``torch._int_mm`` of unsigned tokens with the weights on the right; the product alone."""
    return lambda x: torch._int_mm(x.to(torch.uint8), weight.t())


def int8_fbgemm(weight: Tensor) -> Product:
    """What ``quantize_dynamic`` runs: fbgemm's packed weights, one scale for all tokens of a call."""
    scale, zero = torch.ones(len(weight), dtype=torch.double), torch.zeros(len(weight), dtype=torch.long)
    packed = torch.ops.quantized.linear_prepack(
        torch._make_per_channel_quantized_tensor(weight, scale, zero, 0), None
    )
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, False)


def int8_onednn(weight: Tensor) -> Product:
    """oneDNN with weights in its own order, tokens quantised beforehand; the product and its scales."""
    packed = torch.ops.onednn.qlinear_prepack(weight, [1, weight.shape[1]])
    scale, zero = torch.ones(len(weight)), torch.zeros(len(weight), dtype=torch.int64)
    rest = (scale, zero, None, 1.0, 0, torch.float32, "none", [], "")
    return lambda x: torch.ops.onednn.qlinear_pointwise(x.to(torch.int8), 1.0, 0, packed, *rest)


def int8_weights_only(weight: Tensor) -> Product:
    """``_weight_int8pack_mm``: bfloat16 tokens, weights widened on the way."""
    scale = torch.ones(len(weight), dtype=torch.bfloat16)
    return lambda x: torch._weight_int8pack_mm(x.bfloat16(), weight, scale)


def int4_packed(weight: Tensor) -> Product:
    """``_weight_int4pack_mm``: bfloat16 tokens, groups of ``INT4_GROUP``."""
    rows, columns = weight.shape
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu((weight.int() & 15).contiguous(), 1)
    groups = torch.ones(columns // INT4_GROUP, rows, 2, dtype=torch.bfloat16)
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x.bfloat16(), packed, INT4_GROUP, groups)


CANDIDATES: dict[str, tuple[Callable[[Tensor], Product], float]] = {
    "fp32 linear": (fp32, 4),
    "fp32 oneDNN": (fp32_onednn, 4),
    "bf16 linear": (bf16, 2),
    "bf16 oneDNN, packed": (bf16_packed, 2),
    "int8 _int_mm(x, W.T)": (int8_right, 1),
    "int8 _int_mm(W, x.T)": (int8_left, 1),
    "int8 _int_mm(unsigned x, W.T)": (int8_unsigned, 1),
    "int8 Molt: the above and its scales": (int8_row_major, 1),
    "int8 fbgemm, packed *": (int8_fbgemm, 1),
    "int8 oneDNN, packed": (int8_onednn, 1),
    "int8 weights, bf16 tokens": (int8_weights_only, 1),
    "int4 weights, bf16 tokens": (int4_packed, 0.5 + 4 / INT4_GROUP),
}
"""By name: how it is made ready, and its bytes a weight."""


def measure(
    shape: tuple[int, int], count: int, tokens: list[int], rounds: int
) -> dict[int, dict[str, float]]:
    """Median seconds that ``count`` matrices of a shape take together, by number of tokens and candidate."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8) for _ in range(count)]
    ready = {name: [make(weight) for weight in weights] for name, (make, _) in CANDIDATES.items()}
    found = {}
    for number in tokens:
        x = torch.randint(-60, 60, (number, shape[1]), generator=generator).float()

        def whole(products: list[Product], x: Tensor = x) -> None:
            for product in products:
                product(x)

        found[number] = medians(
            {name: lambda products=products: whole(products) for name, products in ready.items()}, rounds
        )
    return found


def main() -> None:
    """Print a table for each number of tokens; write all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 128])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # fbgemm's tensors are deprecated
    bytes_per_s, others = roof(), Others()
    shapes = {name: (shape, LAYERS) for name, shape in SHAPES.items()} | {"head": (HEAD, 1)}
    with torch.inference_mode():
        found = {
            name: measure(shape, count, options.tokens, options.rounds)
            for name, (shape, count) in shapes.items()
        }
    busy = others.cores()
    for tokens in options.tokens:
        rows = []
        for candidate, (_, width) in CANDIDATES.items():
            seconds = {name: found[name][tokens][candidate] for name in shapes}
            moved = {name: width * count * shape[0] * shape[1] for name, (shape, count) in shapes.items()}
            total = sum(seconds.values())
            rows.append(
                (
                    candidate,
                    total * 1e3,
                    100 * sum(moved.values()) / total / bytes_per_s,
                    *(moved[name] / seconds[name] / 1e9 for name in shapes),
                )
            )
        print(f"\n{tokens} tokens; roof {bytes_per_s / 1e9:.1f} GB/s; others used {busy:.2f} cores")
        print(
            tabulate(
                rows, ("kernel", "ms", "% of roof", *(f"{name} GB/s" for name in shapes)), floatfmt=".1f"
            )
        )
    write(
        options.out,
        {"roof_bytes_per_s": bytes_per_s, "others_cores": busy, "rounds": options.rounds, "seconds": found},
    )


if __name__ == "__main__":
    main()
