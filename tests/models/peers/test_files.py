"""Files of a kind that is not read: refused for what they are, not as damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from molt.errors import LadderError
from molt.models.fetching.gguf_file import read_gguf
from molt.models.ladder_file import check_model
from tests.models.fetching.gguf_files import QWEN2, random_tensors, write_gguf
from tests.models.peers.models import save


def refusal(read: Any, path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(LadderError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("count", [2, 3])
def test_a_part_of_a_split_file_is_named(count: int, tmp_path: Path) -> None:
    """The first part has all metadata and some of the tensors; the others have no metadata of a model."""
    keys = {"split.no": 0, "split.count": count, "split.tensors.count": 60}
    tensors = random_tensors(tmp_path / "hf", QWEN2)
    first = write_gguf(tmp_path / "x-00001-of-00002.gguf", QWEN2, dict(list(tensors.items())[:5]), keys=keys)
    message = refusal(read_gguf, first)
    assert f"split.count: {count}: one part of a model in {count} files" in message
    writer = gguf.GGUFWriter(tmp_path / "x-00002-of-00002.gguf", "")
    writer.kv_data[0].clear()
    for name, value in (keys | {"split.no": 1}).items():
        writer.add_uint16(name, value)
    writer.add_tensor("blk.1.ffn_up.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert f"split.count: {count}" in refusal(read_gguf, tmp_path / "x-00002-of-00002.gguf")


def test_a_file_that_says_it_is_its_only_part_is_read(tmp_path: Path) -> None:
    keys = {"split.no": 0, "split.count": 1, "split.tensors.count": 26}
    read_gguf(write_gguf(tmp_path / "x.gguf", QWEN2, random_tensors(tmp_path / "hf", QWEN2), keys=keys))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_big_endian_file_is_named(version: int, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", version, 1, 1) + bytes(64))
    assert "header: big-endian; only little-endian files are read" in refusal(read_gguf, path)


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.float64, torch.int8, torch.bool, torch.uint8],
)
def test_a_stored_type_that_is_not_read_is_named(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", "llama")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    message = refusal(check_model, folder)
    assert f"{name} is {header[name]['dtype']}; valid: F32, BF16, F16" in message


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "U16", "C64", "F16_OF_TOMORROW"])
def test_a_type_that_the_header_names_is_repeated(dtype: str, tmp_path: Path) -> None:
    """Also one whose size in bytes is not known here, which is why the tensors after it cannot be found."""
    folder = save(tmp_path / "m", "llama")
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["lm_head.weight"]["dtype"] = dtype
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    message = refusal(check_model, folder)
    assert "'lm_head.weight' is" in message
    assert dtype in message


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", "llama", shard_bytes=8_000)
    one, other = sorted(folder.glob("*.safetensors"))[:2]
    both = load_file(other) | {"model.norm.weight": torch.zeros(48)} | dict(list(load_file(one).items())[:1])
    save_file(both, other, {"format": "pt"})
    assert "a second time" in refusal(check_model, folder)
