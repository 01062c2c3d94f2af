"""Strict YAML: plain data or one line that says where and why."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.errors import InputError
from molt.formats.yaml_file import StrictModel, load, validate


def written(folder: Path, content: bytes | str) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def outcome(path: Path) -> str:
    """What a file holds, as JSON on one line, or the message that refuses it."""
    try:
        return json.dumps(load(path), allow_nan=False)
    except InputError as error:
        return str(error)


# What the file says -> what the one line must contain, after "<path>: ".
UNREADABLE = {
    "a: !!python/object/apply:os.system [ls]": "line 1: tag",
    "a: !!str 1": "line 1: tag",
    "!local {a: 1}": "line 1: tag",
    "a: &x 1\nb: *x": "line 1: anchors",
    "b: 1\na: *x": "line 2: anchors",
    "a: 1\nb: 2\na: 3": "line 3: key 'a' a second time (first on line 1)",
    "a: {b: 1, b: 2}": "line 1: key 'b' a second time",
    "a: 012": "line 1: 012: a leading zero; write 12, or '012' if it is text",
    "a: .nan": "line 1: .nan is not a finite number",
    "a: -.inf": "line 1: -.inf is not a finite number",
    "a: 1e999": "line 1: 1e999 is not a finite number",
    f"a: {'9' * 5000}": "more than 40 characters",
    "a: [1,": "line 1: not YAML",
    "a:\n\tb: 1": "line 2: not YAML",
    "a: b: c": "line 1: not YAML",
    "? [a]\n: b": "line 1: a key is plain text",
    "": "the file is empty",
    "# only a comment\n": "the file is empty",
    "--- 1\n--- 2": "line 2: a second document",
    "%YAML 1.1\n---\na: NO": "line 2: a % directive",
    "[" * 5000: "line 1: nested deeper than 32 levels",
    b"ok: 1\nname: \xff": "line 2: not UTF-8 (byte 0xff)",
    'a: "\\ud800"': "half a surrogate pair",
}


@pytest.mark.parametrize(("content", "reason"), UNREADABLE.items(), ids=lambda value: str(value)[:40])
def test_what_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | str, reason: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(InputError, match=r"^[^\n]+: (No such file|Is a directory)[^\n]*$"):
            load(path)


def test_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = (
        "{no: NO, on: on, time: 1:30, day: 2024-01-01, under: 1_000, quoted: '012', hex: 0x10, oct: 0o17, "
        "float: 1.5e3, none: ~, empty: , bool: true, minus: -3, unit: 2G}"
    )
    assert load(written(tmp_path, text)) == {
        "no": "NO", "on": "on", "time": "1:30", "day": "2024-01-01", "under": "1_000", "quoted": "012",
        "hex": 16, "oct": 15, "float": 1500.0, "none": None, "empty": None, "bool": True, "minus": -3,
        "unit": "2G",
    }  # fmt: skip


SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text("abc 01:#-é", max_size=8)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc: 0"), inner, max_size=3)
)


@given(PLAIN)
def test_json_reads_back_as_itself(tmp_path_factory: pytest.TempPathFactory, data: object) -> None:
    assert load(written(tmp_path_factory.mktemp("yaml"), json.dumps(data, ensure_ascii=False))) == data


@given(st.binary(max_size=40) | st.text("a:-[]{}&*!|>'\"%@\n\t 0", max_size=40).map(str.encode))
def test_any_bytes_are_plain_data_or_one_line(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    assert "\n" not in outcome(written(tmp_path_factory.mktemp("yaml"), raw))


class Kind(StrEnum):
    BATCH = "batch"
    FOREGROUND = "foreground"


class FromFile(StrictModel):
    file: str


class FromText(StrictModel):
    text: str


class Tenant(StrictModel):
    name: str
    kind: Kind
    prompt: FromFile | FromText
    stop: Literal["never", "eos"] = "eos"


class Scenario(StrictModel):
    name: str
    seed: int = 0
    speed: float | None = None
    tenants: tuple[Tenant, ...] = ()


GOOD = "name: x\ntenants:\n  - {name: c, kind: batch, prompt: {text: t}}"
INVALID = {
    "name: x\nsed: 1": "line 2: sed: unknown key; did you mean 'seed'?",
    "name: x\nqqqq: 1": "line 2: qqqq: unknown key; valid: name, seed, speed, tenants",
    "seed: 1": "line 1: name: is missing",
    "name: 3": "line 1: name: 3: input should be a valid string",
    "name: x\nseed: true": "line 2: seed: True: input should be a valid integer",
    "name: x\nseed: '7'": "line 2: seed: '7': input should be a valid integer",
    "name: x\nseed: 1.5": "line 2: seed: 1.5",
    "name: x\nspeed: fast": "line 2: speed: 'fast'",
    "[1, 2]": "line 1: [1, 2]: input should be an object",
    "name: x\ntenants: {}": "line 2: tenants: {}",
    GOOD.replace("batch", "bach"): "line 3: tenants[0].kind: 'bach' is not known; did you mean 'batch'?",
    GOOD.replace(
        "kind: batch", "kind: batch, stop: nevr"
    ): "tenants[0].stop: 'nevr' is not known; did you mean",
    GOOD.replace("text: t", "text: t, foo: 1"): "tenants[0].prompt.foo: unknown key; valid: text",
    GOOD.replace("text: t", "fil: t"): "tenants[0].prompt.fil: unknown key; did you mean 'file'?",
    GOOD.replace("{text: t}", "3"): "tenants[0].prompt: 3",
}


@pytest.mark.parametrize(("content", "reason"), INVALID.items())
def test_what_a_model_refuses_is_one_line_with_its_place(tmp_path: Path, content: str, reason: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        validate(Scenario, load(path), path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_become_tuples_and_text_becomes_enums(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    scenario = validate(Scenario, load(path), path)
    assert scenario.tenants == (Tenant(name="c", kind=Kind.BATCH, prompt=FromText(text="t")),)
