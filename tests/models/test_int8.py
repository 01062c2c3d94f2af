"""INT8: how far a quantised matrix may be from its original, and what it costs in memory."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from molt.models import int8
from molt.models.ladder_file import resolve
from molt.models.loader import load

SIZES = st.integers(1, 40)
COLUMNS = st.integers(2, 40)


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = 10.0 ** torch.randint(-3, 3, (rows, 1), generator=generator)
    return torch.randn(rows, columns, generator=generator) * spread


@given(SIZES, SIZES, st.integers(0, 9))
def test_every_value_is_within_half_a_step_of_its_row(rows: int, columns: int, seed: int) -> None:
    original = matrix(rows, columns, seed)
    quantised, scale = int8.quantise_rows(original)
    assert quantised.abs().max() <= int8.LIMIT
    step = scale.unsqueeze(-1)
    assert ((quantised * step - original).abs() <= step * 0.5001).all()


def test_a_row_of_zeros_stays_zero() -> None:
    quantised, scale = int8.quantise_rows(torch.zeros(2, 3))
    assert not quantised.any()
    assert scale.isfinite().all()


@given(SIZES, COLUMNS, SIZES, st.integers(0, 9), st.booleans())
def test_linear_is_the_product_of_the_quantised_values(
    tokens: int, columns: int, rows: int, seed: int, has_bias: bool
) -> None:
    """Only the scales, the bias and, where weights are widened, the sum are rounded."""
    x, (weight, scale) = matrix(tokens, columns, seed), int8.quantise_rows(matrix(rows, columns, seed + 1))
    bias = torch.arange(rows, dtype=torch.float32) if has_bias else None
    x8, x_scale = int8.quantise_rows(x)
    for small_values, seen in ((0, x8.double() * x_scale.double().unsqueeze(-1)), (1 << 17, x.double())):
        if small_values and tokens > int8.FEW_TOKENS:
            continue
        product = (seen @ weight.double().T) * scale.double()
        expected = product if bias is None else product + bias
        with patch.object(int8, "WIDENED_VALUES_MAX", small_values):
            found = int8.linear(x, weight, scale, bias).double()
        tolerance = 1e-5 * (seen.abs() @ weight.double().abs().T * scale.double()).max().item() + 1e-5
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=tolerance)


def test_the_kernel_does_not_saturate() -> None:
    """Some processors add products in 16 bits, which the largest values would overflow."""
    rows = torch.full((3, 512), int8.LIMIT, dtype=torch.int8)
    assert (torch._int_mm(rows, rows.t()) == 512 * int8.LIMIT**2).all()
    assert (torch._int_mm(-rows, rows.t()) == -512 * int8.LIMIT**2).all()


@given(st.integers(2, 20), st.integers(0, 9))
def test_a_token_does_not_depend_on_its_neighbours(tokens: int, seed: int) -> None:
    """Scales are per token: a huge first token takes no resolution from the others."""
    x, (weight, scale) = matrix(tokens, 24, seed), int8.quantise_rows(matrix(16, 24, seed + 1))
    x[0] *= 1000
    with patch.object(int8, "WIDENED_VALUES_MAX", 0):
        together = int8.linear(x, weight, scale, None)
        alone = torch.cat([int8.linear(row.unsqueeze(0), weight, scale, None) for row in x])
    assert torch.equal(together, alone)


def test_linear_keeps_the_leading_dimensions() -> None:
    weight, scale = int8.quantise_rows(matrix(5, 7, 0))
    assert int8.linear(torch.ones(2, 3, 7), weight, scale, None).shape == (2, 3, 5)


def test_embedding_reads_rows() -> None:
    table = matrix(9, 4, 0)
    embedding = int8.Int8Embedding(9, 4)
    embedding.weight, embedding.scale = int8.quantise_rows(table)
    ids = torch.tensor([[8, 0], [3, 3]])
    read = embedding(ids)
    assert read.dtype == torch.float32
    assert read.shape == (2, 2, 4)
    torch.testing.assert_close(read, table[ids], rtol=0, atol=float(table.abs().max()) / 254 * 1.001)


@torch.inference_mode()
def test_quantising_the_embedded_ladder_costs_next_to_nothing() -> None:
    """On held-out text, KL to float32 stays below 0.02 nats a token; a per-tensor kernel would cost 0.5."""
    pico = resolve("pico")
    tokenizer = Tokenizer.from_file(str(pico.tokenizer))
    full, small = load(pico.rung("tier1")).model, load(pico.rung("tier2")).model
    divergence, agreed, windows = 0.0, 0.0, 0
    for line in (pico.tokenizer.parent / "heldout.jsonl").read_text().splitlines()[:4]:
        ids = torch.tensor([tokenizer.encode(json.loads(line)["text"]).ids[:256]])
        ours, theirs = full(ids).logits.log_softmax(-1), small(ids).logits.log_softmax(-1)
        divergence += (ours.exp() * (ours - theirs)).sum(-1).mean().item()
        agreed += (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
        windows += 1
    assert windows == 4
    assert 0 < divergence / windows < 0.02
    assert agreed / windows > 0.95


def test_only_matrices_are_replaced() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3))
    int8.replace_matrices(model)
    assert [type(module) for module in model] == [int8.Int8Embedding, torch.nn.LayerNorm, int8.Int8Linear]


@pytest.mark.parametrize("columns", [1, 16, 129])
def test_bytes_are_one_a_value_and_four_a_row(columns: int) -> None:
    layer = int8.Int8Linear(10, columns, bias=True)
    sizes = {name: tensor.untyped_storage().nbytes() for name, tensor in layer.state_dict().items()}
    assert sizes == {"weight": 10 * columns, "scale": 40, "bias": 40}
