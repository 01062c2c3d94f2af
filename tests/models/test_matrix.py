"""Kernels: what they compute; how far an INT8 matrix may be from its original, and what it does to a real rung."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from molt.formats.provenance import cpuinfo
from molt.models import matrix
from molt.models.ladder_file import LadderSpec, resolve
from molt.models.matrix import (
    FEW_TOKENS,
    LIMIT,
    ZERO,
    FloatMatrix,
    Int8Matrix,
    prefers_onednn,
    quantise_rows,
    quantise_token,
    row_offsets,
)
from tests.models.tiny import all_logits

SIZES = st.integers(1, 40)
COLUMNS = st.integers(2, 40)


def random_matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = 10.0 ** torch.randint(-3, 3, (rows, 1), generator=generator)
    return torch.randn(rows, columns, generator=generator) * spread


def int8_matrix(original: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Matrix:
    weight, scale = quantise_rows(original)
    return Int8Matrix(weight, scale[:, 0], row_offsets(weight), bias)


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens as a matrix takes them, around 0, float64, and their scales (t, 1)."""
    if len(x) > 1:
        x8, scale = quantise_rows(x)
        return x8.double(), scale.double()
    x8, token_scale = quantise_token(x)
    return x8.double() - ZERO, torch.tensor([[token_scale]])


@pytest.mark.parametrize("onednn", [True, False])
@given(SIZES, SIZES, SIZES, st.integers(0, 9), st.booleans())
def test_float_products_are_the_same_whoever_multiplies(
    onednn: bool, tokens: int, columns: int, rows: int, seed: int, has_bias: bool
) -> None:
    if onednn and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    x, weight = random_matrix(tokens, columns, seed), random_matrix(rows, columns, seed + 1)
    bias = torch.arange(rows, dtype=torch.float32) if has_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix, "PREFERS_ONEDNN", onednn)
        patch.setattr(matrix, "ONEDNN_LEAST_BYTES", 0)
        found = FloatMatrix(weight, bias).linear(x)
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    size = (x.double().abs() @ weight.double().abs().T).max().item() + 1
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6 * size)


@pytest.mark.parametrize(
    ("vendor", "prefers"), [("AuthenticAMD", True), ("GenuineIntel", False), (None, False)]
)
def test_onednn_multiplies_where_mkl_is_not_at_home(
    tmp_path: Path, vendor: str | None, prefers: bool
) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\n" + (f"vendor_id\t: {vendor}\n" if vendor else "CPU part\t: 0xd40\n"))
    assert prefers_onednn(cpuinfo("vendor_id", file)) is prefers
    assert not prefers_onednn(cpuinfo("vendor_id", tmp_path / "nothing"))


@given(SIZES, SIZES, st.integers(0, 9))
def test_every_value_is_within_half_a_step_of_its_row(rows: int, columns: int, seed: int) -> None:
    original = random_matrix(rows, columns, seed)
    x8, scale = quantised(original)
    assert x8.abs().max() <= LIMIT
    assert ((x8 * scale - original).abs() <= scale * 0.5001).all()


def test_a_row_of_zeros_stays_zero() -> None:
    for rows in (1, 2):
        x8, scale = quantised(torch.zeros(rows, 3))
        assert not x8.any()
        assert scale.isfinite().all()


@given(SIZES, COLUMNS, SIZES, st.integers(0, 9), st.booleans())
def test_linear_is_the_product_of_the_quantised_values(
    tokens: int, columns: int, rows: int, seed: int, has_bias: bool
) -> None:
    """Only the scales and the bias are rounded; the sum is exact."""
    x, bias = random_matrix(tokens, columns, seed), torch.arange(rows, dtype=torch.float32)
    small = int8_matrix(random_matrix(rows, columns, seed + 1), bias if has_bias else None)
    x8, x_scale = quantised(x)
    seen = x8 * x_scale
    expected = (seen @ small.weight.double().T) * small.scale.double() + (bias if has_bias else 0.0)
    tolerance = 1e-5 * (seen.abs() @ small.weight.double().abs().T * small.scale.double()).max().item() + 1e-5
    torch.testing.assert_close(small.linear(x).double(), expected, rtol=1e-5, atol=tolerance)


def test_the_kernel_does_not_saturate() -> None:
    """Some processors add products in 16 bits, which the largest values would overflow."""
    rows = torch.full((3, 512), LIMIT, dtype=torch.int8)
    for tokens in (1, FEW_TOKENS, FEW_TOKENS + 1):
        x = torch.ones(tokens, 512)
        for sign in (1, -1):
            weight = sign * rows
            small = Int8Matrix(weight, torch.ones(3), row_offsets(weight))
            assert (small.linear(x) == sign * 512 * LIMIT).all()


@given(st.integers(2, 20), st.integers(0, 9))
def test_a_token_does_not_depend_on_its_neighbours(tokens: int, seed: int) -> None:
    """Scales are per token: a huge first token takes no resolution from the others."""
    x, small = random_matrix(tokens, 24, seed), int8_matrix(random_matrix(16, 24, seed + 1))
    together = small.linear(x)
    x[0] *= 1000
    assert torch.equal(small.linear(x)[1:], together[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_read_in_the_type_that_is_computed_in(dtype: torch.dtype) -> None:
    table = random_matrix(9, 4, 0)
    ids = torch.tensor([8, 0, 3, 3])
    assert torch.equal(FloatMatrix(table.to(dtype)).rows(ids), table[ids].to(dtype))
    read = int8_matrix(table).rows(ids)
    assert read.dtype == torch.float32
    torch.testing.assert_close(read, table[ids], rtol=0, atol=float(table.abs().max()) / 254 * 1.001)


def held_out(pico: LadderSpec) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(pico.tokenizer))
    lines = (pico.tokenizer.parent / "heldout.jsonl").read_text().splitlines()[:4]
    return [tokenizer.encode(json.loads(line)["text"]).ids[:256] for line in lines]


def divergence(pico: LadderSpec) -> tuple[float, float]:
    """KL (nats a token) of tier2 to tier1, and how often both would say the same, on held-out text."""
    kl, agreed, texts = 0.0, 0.0, held_out(pico)
    for ids in texts:
        ours, theirs = (
            all_logits(pico.rung(name), ids).log_softmax(-1).double() for name in ("tier1", "tier2")
        )
        kl += (ours.exp() * (ours - theirs)).sum(-1).mean().item()
        agreed += (ours.argmax(-1) == theirs.argmax(-1)).double().mean().item()
    return kl / len(texts), agreed / len(texts)


def test_quantising_the_embedded_ladder_costs_next_to_nothing() -> None:
    kl, agreed = divergence(resolve("pico"))
    assert 0 < kl < 0.02
    assert agreed > 0.95


def test_one_scale_for_all_tokens_would_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the fast kernels do by themselves (one scale for a whole chunk)."""
    pico = resolve("pico")
    per_token, _ = divergence(pico)

    def per_tensor(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = (x.abs().max() / LIMIT).expand(len(x), 1)
        return (x / scale).round().to(torch.int8), scale

    monkeypatch.setattr(matrix, "quantise_rows", per_tensor)
    assert divergence(pico)[0] > 2 * per_token
