"""GGUF files: what comes out is the model that went in, and a damaged file is one line, never a crash."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from molt.errors import LadderError
from molt.formats.manifest import check_contents
from molt.models.fetching import convert, gguf_file
from molt.models.fetching.gguf_file import TYPES, read_gguf, read_values
from molt.models.fetching.gguf_model import LLAMA3_ROPE, open_model
from molt.models.fetching.gguf_tokenizer import build
from molt.models.ladder_file import check_model
from tests.models.fetching.gguf_files import (
    LLAMA,
    MERGES,
    QWEN2,
    QWEN3,
    SPECIALS,
    random_tensors,
    value_type,
    write_gguf,
)
from tests.models.tiny import write_config

Kind = gguf.GGMLQuantizationType
FAMILIES = {"qwen2": QWEN2, "qwen3": QWEN3, "llama": LLAMA}
PRE = {"qwen2": "qwen2", "qwen3": "qwen2", "llama": "smollm"}
TEXTS = (
    "def f(x):\n\treturn x + 12345  # héllo\n\n\n",
    "😀👨‍👩‍👧 你好，世界 \u00a0é",
    "   \t \n\n  x \r\n",
    "I'll don't WE'RE 1,024",
    "<|im_start|>user\nhello hello<|im_end|>\n",
    "<tool_call>{}",
)


def converted(source: Path, folder: Path, stored: Any = "fp32") -> Path:
    """The folder that a file is converted into."""
    folder.mkdir(parents=True, exist_ok=True)
    model, shape = convert.begin(source, folder)
    convert.write_weights(model, shape, folder, stored, lambda _: None)
    convert.seal(folder, lambda _: None)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A good file of a qwen2; tests break it."""
    return write_gguf(tmp_path / "tiny.gguf", QWEN2, random_tensors(tmp_path / "hf", QWEN2))


def refusal(source: Path) -> str:
    """The message with which a file is refused: one line that begins with the file."""
    with pytest.raises(LadderError) as caught:
        converted(source, source.parent / "refused")
    message = str(caught.value)
    assert message.startswith(f"{source}: ")
    assert "\n" not in message
    return message


# --- what goes in comes out ---


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float_model_comes_out_bit_for_bit_and_computes_the_same(family: str, tmp_path: Path) -> None:
    """Compared with the parameters the file was written from, rows of queries and keys in place, and their logits."""
    config = FAMILIES[family]
    tensors = random_tensors(tmp_path / "hf", config)
    save_file(
        {k: torch.from_numpy(v) for k, v in tensors.items()},
        tmp_path / "hf/model.safetensors",
        {"format": "pt"},
    )
    folder = converted(write_gguf(tmp_path / "x.gguf", config, tensors, pre=PRE[family]), tmp_path / "out")
    found = load_file(folder / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name].numpy(), values) for name, values in tensors.items())
    ids = torch.arange(24).reshape(1, -1)
    logits = [
        AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)(ids).logits
        for place in (tmp_path / "hf", folder)
    ]
    assert torch.equal(*logits)
    check_model(folder)
    check_contents(folder, lambda _: None)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
def test_a_quantised_matrix_is_what_its_type_says(kind: Kind, tmp_path: Path) -> None:
    tensors = random_tensors(tmp_path / "hf", QWEN2)
    source = read_gguf(write_gguf(tmp_path / "x.gguf", QWEN2, tensors, kind))
    model = open_model(source)
    for name, values in tensors.items():
        stored = values if values.ndim == 1 else dequantize(quantize(values, kind), kind)
        assert np.array_equal(model.read(name), stored)
        assert np.linalg.norm(model.read(name) - values) <= 0.12 * np.linalg.norm(values)


@pytest.mark.parametrize("number", TYPES)
def test_the_table_of_types_is_the_librarys(number: int) -> None:
    kind = TYPES[number]
    assert (kind.block, kind.block_bytes) == gguf.GGML_QUANT_SIZES[Kind[kind.name]]
    assert Kind[kind.name] == number
    blocks = np.zeros((3, 2 * kind.block_bytes), np.uint8)
    assert dequantize(blocks, Kind[kind.name]).shape == (3, 2 * kind.block)


def test_a_four_bit_superblock_is_decoded_as_its_layout_says(tmp_path: Path) -> None:
    """Q4_K by hand: 256 values in 8 blocks, scales and minima of 6 bits times two float16. Source: ggml-quants.c."""
    raw = np.random.default_rng(1).integers(0, 256, 144, np.uint8)
    raw[:4] = np.array([0.01, 0.02], np.float16).view(np.uint8)
    packed, nibbles = raw[4:16].astype(int), raw[16:].astype(int)
    expected = []
    for block in range(8):
        if block < 4:
            scale, minimum = packed[block] & 63, packed[block + 4] & 63
        else:
            scale = (packed[block + 4] & 15) | ((packed[block - 4] >> 6) << 4)
            minimum = (packed[block + 4] >> 4) | ((packed[block] >> 6) << 4)
        part = nibbles[32 * (block // 2) : 32 * (block // 2) + 32]
        levels = part & 15 if block % 2 == 0 else part >> 4
        d, m = raw[:4].view(np.float16).astype(np.float32)
        expected += list(d * scale * levels - m * minimum)
    assert np.allclose(dequantize(raw[None], Kind.Q4_K)[0], expected, rtol=1e-5)


def test_bf16_can_be_stored(tiny: Path) -> None:
    folder = converted(tiny, tiny.parent / "out", "bf16")
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    check_model(folder)


# --- a head that is the embedding ---


@pytest.mark.parametrize(("embedding", "head"), [(Kind.Q4_0, Kind.Q8_0), (Kind.Q8_0, Kind.Q4_0)])
def test_of_a_matrix_stored_twice_the_more_precise_one_is_kept(
    embedding: Kind, head: Kind, tmp_path: Path
) -> None:
    tensors = random_tensors(tmp_path / "hf", QWEN2)
    whole = tensors["model.embed_tokens.weight"]
    source = write_gguf(tmp_path / "x.gguf", QWEN2, tensors, embedding, head=whole, head_kind=head)
    folder = converted(source, tmp_path / "out")
    found = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in found
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    expected = dequantize(quantize(whole, Kind.Q8_0), Kind.Q8_0)
    assert np.array_equal(found["model.embed_tokens.weight"].numpy(), expected)


def test_a_head_of_its_own_is_kept(tmp_path: Path) -> None:
    tensors = random_tensors(tmp_path / "hf", QWEN3)
    folder = converted(write_gguf(tmp_path / "x.gguf", QWEN3, tensors), tmp_path / "out")
    assert not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    assert np.array_equal(
        load_file(folder / "model.safetensors")["lm_head.weight"], tensors["lm_head.weight"]
    )


# --- settings ---


def test_settings_are_those_that_were_meant(tiny: Path) -> None:
    """Float32 metadata come back as the decimal they were written as."""
    config = json.loads((converted(tiny, tiny.parent / "out") / "config.json").read_text())
    assert {key: config[key] for key in QWEN2} == QWEN2
    assert config["eos_token_id"] == 256 + len(MERGES) + 2


def test_every_token_that_ends_an_answer_is_named(tiny: Path) -> None:
    folder = converted(tiny, tiny.parent / "out")
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    first = 256 + len(MERGES)
    assert ends == [first + 2, first]
    assert "message['content']" in (folder / "chat_template.jinja").read_text()


def test_the_frequencies_of_llama_3_become_its_settings(tmp_path: Path) -> None:
    """Read back from the divisors that the file holds; what they are not is refused."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, **LLAMA3_ROPE}
    config = LLAMA | {"rope_parameters": rope}
    tensors = random_tensors(tmp_path / "hf", config)
    from transformers import AutoConfig

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](
        AutoConfig.from_pretrained(tmp_path / "hf"), torch.device("cpu")
    )
    plain = 1 / 500000.0 ** (np.arange(0, 16, 2) / 16)
    factors = (plain / scaled.numpy()).astype(np.float32)
    source = write_gguf(
        tmp_path / "x.gguf", config, tensors, pre="llama-bpe", extra={"rope_freqs.weight": factors}
    )
    folder = converted(source, tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["rope_parameters"] == rope
    factors[-2] *= 1.5
    write_gguf(source, config, tensors, pre="llama-bpe", extra={"rope_freqs.weight": factors})
    assert "not the frequencies of Llama 3's RoPE" in refusal(source)


# --- the tokenizer ---


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "smollm"])
def test_any_text_comes_back_and_special_tokens_are_one_id(pre: str, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "x.gguf", QWEN2, random_tensors(tmp_path / "hf", QWEN2), pre=pre)
    tokenizer = build(read_gguf(source))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    first = 256 + len(MERGES)
    for position, special in enumerate((*SPECIALS, "<tool_call>")):
        assert tokenizer.encode(f"a{special}b", add_special_tokens=False).ids[1] == first + position
    assert tokenizer.decode(tokenizer.encode("<|im_end|>x<tool_call>").ids) == "x<tool_call>"
    assert tokenizer.get_vocab_size() == first + 4, "padding is no token"
    begin = ["<|endoftext|>"] if pre == "llama-bpe" else []
    assert tokenizer.encode(" hello").tokens == [*begin, "Ġhello"]


def test_digits_are_split_as_the_model_learnt_them(tmp_path: Path) -> None:
    tensors = random_tensors(tmp_path / "hf", QWEN2)
    pieces = {}
    for pre in ("qwen2", "llama-bpe", "smollm"):
        tokenizer: Tokenizer = build(read_gguf(write_gguf(tmp_path / "x.gguf", QWEN2, tensors, pre=pre)))
        pieces[pre] = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("12345 I'LL")]
    assert pieces == {
        "qwen2": ["1", "2", "3", "4", "5", "ĠI", "'LL"],
        "llama-bpe": ["123", "45", "ĠI", "'LL"],
        "smollm": ["1", "2", "3", "4", "5", "ĠI", "'", "LL"],
    }


def test_qwen_normalises_and_llama_does_not(tmp_path: Path) -> None:
    tensors = random_tensors(tmp_path / "hf", QWEN2)
    for pre, text in (("qwen2", "é"), ("llama-bpe", "e\u0301")):
        tokenizer = build(read_gguf(write_gguf(tmp_path / "x.gguf", QWEN2, tensors, pre=pre)))
        assert tokenizer.decode(tokenizer.encode("e\u0301").ids) == text


def test_a_token_that_begins_every_text_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    tensors, keys = random_tensors(tmp_path / "hf", QWEN2), {"tokenizer.ggml.add_bos_token": True}
    tokenizer = build(read_gguf(write_gguf(tmp_path / "x.gguf", QWEN2, tensors, keys=keys)))
    first = 256 + len(MERGES)
    assert tokenizer.encode("a").ids == [first, *tokenizer.encode("a", add_special_tokens=False).ids]


# --- files that are wrong ---

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"keys": {"general.architecture": "qwen2moe"}}, "did you mean 'qwen2'?"),
    "no RMS epsilon": ({"keys": {"qwen2.attention.layer_norm_rms_epsilon": 0.0}}, "0.0 is no positive number"),
    "no layers": ({"keys": {"qwen2.block_count": 0}}, "qwen2.block_count: 0 is no count"),
    "absurdly many layers": ({"keys": {"qwen2.block_count": 2_000_000_000}}, "num_hidden_layers"),
    "more layers than there are": ({"keys": {"qwen2.block_count": 3}}, "tensor 'blk.2.attn_q.weight' is missing"),
    "fewer layers": ({"keys": {"qwen2.block_count": 1}}, "is no parameter of a qwen2 of this shape"),
    "another width": ({"keys": {"qwen2.embedding_length": 128}}, "its keys mean"),
    "YaRN": ({"keys": {"qwen2.rope.scaling.type": "yarn"}}, "'yarn' is not supported; valid: linear, none"),
    "a part of the head": ({"keys": {"qwen2.rope.dimension_count": 8}}, "RoPE over a part of the head"),
    "experts": ({"keys": {"qwen2.expert_count": 8}}, "a mixture of experts is not supported"),
    "a tokenizer of pieces": ({"keys": {"tokenizer.ggml.model": "llama"}}, "'llama' is not supported; valid: gpt2"),
    "an unknown pre-tokenizer": ({"pre": "qwen"}, "tokenizer.ggml.pre: 'qwen' is not supported; did you mean 'qwen2'?"),
    "a token beyond the last": ({"keys": {"tokenizer.ggml.eos_token_id": 999}}, "999 is none of the 320 tokens"),
    "a token twice": ({"tokens": (("Ġhello", 1),)}, "'Ġhello' a second time"),
    "a tensor of no use": ({"extra": {"x.weight": np.zeros((2, 2), np.float32)}}, "tensor 'x.weight' is no parameter"),
    "not a number": ({"extra": {"output.weight": np.full((320, 64), np.nan, np.float32)}}, "is not finite"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_model_of_ours_is_one_line(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    changes = dict(changes)
    source = tmp_path / "x.gguf"
    keys = changes.pop("keys", {})
    write_gguf(source, QWEN2, random_tensors(tmp_path / "hf", QWEN2), **changes)
    for name, value in keys.items():
        _change_key(source, name, value)
    assert reason in refusal(source)


def _change_key(path: Path, name: str, value: Any) -> None:
    """Write a file again with one key changed or added."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    changed = path.with_suffix(".new")
    writer = gguf.GGUFWriter(changed, value if name == "general.architecture" else architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in (name, "general.architecture"):
            continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    if name != "general.architecture":
        writer.add_key_value(name, value, value_type(value))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    changed.replace(path)


def at(raw: bytes, text: bytes) -> int:
    """Where the value after a key's or tensor's name begins."""
    return raw.index(text) + len(text)


def patched(path: Path, position: int, value: int, width: int = 8) -> Path:
    raw = bytearray(path.read_bytes())
    raw[position : position + width] = value.to_bytes(width, "little")
    path.write_bytes(raw)
    return path


def test_absurd_numbers_in_the_header_are_one_line_each(tiny: Path) -> None:
    whole = tiny.read_bytes()
    tensor = at(whole, b"blk.0.attn_q.weight")
    array = at(whole, b"tokenizer.ggml.tokens")
    for position, value, width, reason in (
        (0, 0, 4, "does not begin with GGUF"),
        (4, 9, 4, "version 9 is not read; valid: 2, 3"),
        (8, 2**60, 8, "1152921504606846976 tensors, more than the 100000"),
        (16, 2**60, 8, "1152921504606846976 keys, more than the 10000"),
        (24, 2**60, 8, "1152921504606846976 bytes are announced"),
        (array + 8, 2**50, 8, "1125899906842624 values, more than the 4000000"),
        (array + 8, 3_999_999, 8, "truncated or damaged"),
        (array + 4, 9, 4, "an array of values of type 9"),
        (tensor, 77, 4, "77 dimensions; valid: 1 to 4"),
        (tensor + 4, 0, 8, "shape [64, 0] is none a file of"),
        (tensor + 4, 2**62, 8, "is none a file of"),
        (tensor + 20, 39, 4, "type MXFP4 is not read; valid: F32, F16"),
        (tensor + 20, 999, 4, "type 999 is not read"),
        (tensor + 20, 12, 4, "no multiple of the 256 of Q4_K"),
        (tensor + 24, 2**60, 8, "truncated, or damaged"),
        (tensor + 24, 7, 8, "offset 7 is no multiple of the alignment 32"),
        (tensor + 24, 32, 8, "begins inside"),
    ):
        tiny.write_bytes(whole)
        assert reason in refusal(patched(tiny, position, value, width)), reason


def test_a_truncated_file_is_one_line_wherever_it_was_cut(tiny: Path) -> None:
    whole = tiny.read_bytes()
    for size in (0, 3, 10, 23, 24, 100, 3000, len(whole) // 2, len(whole) - 40):
        tiny.write_bytes(whole[:size])
        refusal(tiny)
    tiny.unlink()
    assert "No such file" in refusal(tiny)


def test_a_file_cut_short_while_it_is_read_is_one_line(tiny: Path) -> None:
    source = read_gguf(tiny)
    tiny.write_bytes(tiny.read_bytes()[:-50_000])
    last = max(source.tensors.values(), key=lambda tensor: tensor.offset)
    with pytest.raises(LadderError, match="cut short while it was read"):
        read_values(source, last)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A place for broken files, and the bytes of a good one."""
    folder = tmp_path_factory.mktemp("fuzz")
    small = QWEN2 | {"num_hidden_layers": 1, "intermediate_size": 32}
    tensors = random_tensors(folder / "hf", small)
    source = write_gguf(
        folder / "x.gguf", small, tensors, Kind.Q8_0, head=tensors["model.embed_tokens.weight"]
    )
    return source, source.read_bytes()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    good: tuple[Path, bytes], data: st.DataObject
) -> None:
    """Bytes are changed and the end is cut off, more often in the header, which is what could mislead."""
    source, whole = good
    raw = bytearray(whole)
    positions = st.one_of(st.integers(0, 12_000), st.integers(0, len(raw) - 1))
    for position in data.draw(st.lists(positions, max_size=6)):
        raw[position] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF, raw[position] ^ 1)))
    cut = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    source.write_bytes(raw[:cut])
    with contextlib.suppress(LadderError):
        converted(source, source.parent / "out")


# --- memory ---


def test_reading_a_tensor_takes_little_more_than_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "PIECE_VALUES", 1 << 14)
    config = QWEN2 | {"vocab_size": 16_384}
    write_config(tmp_path / "hf", config)
    tensors = random_tensors(tmp_path / "hf", config)
    source = read_gguf(write_gguf(tmp_path / "x.gguf", config, tensors, Kind.Q8_0))
    embedding = source.tensors["token_embd.weight"]
    read_values(source, embedding)  # whatever the library keeps for good
    tracemalloc.start()
    read_values(source, embedding)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.25 * 4 * embedding.values
