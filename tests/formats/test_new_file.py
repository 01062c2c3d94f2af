"""A file for results: refused before the work where it cannot be, never overwritten, and never lost afterwards."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from molt.errors import InputError
from molt.formats import new_file
from molt.formats.new_file import check_folder, check_new_file, save_new, unused


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("there", "exists already; results are never overwritten"),
        ("link", "exists already"),
        ("folder", "is a folder; give a file"),
        ("absent/x", "absent: no such folder"),
        ("there/x", "there: no such folder"),
        ("a" * 300, "cannot be written: File name too long"),
    ],
)
def test_a_place_that_will_not_do(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=words) as caught:
        check_new_file(tmp_path / name)
    assert str(caught.value).startswith("--out: ")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there").read_text() == "mine"


def test_a_place_that_will_do_is_left_as_it_was(tmp_path: Path) -> None:
    check_new_file(tmp_path / "new folder.json")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["file", "file/below", "a" * 300])
def test_a_folder_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out: "):
        check_folder(tmp_path / name)


def test_a_folder_that_can_be_made_is_not_made_yet(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    check_new_file(tmp_path / "a" / "b.json", make_folder=True)
    assert not any(tmp_path.iterdir())


def test_the_next_name_that_is_free(tmp_path: Path) -> None:
    for name in ("pico.json", "pico-2.json", "pico-3.json"):
        assert unused(tmp_path / "pico.json") == tmp_path / name
        save_new(tmp_path / name, name)
    assert (tmp_path / "pico.json").read_text() == "pico.json"


def test_what_cannot_be_written_in_the_end_is_in_a_file_that_is_named(tmp_path: Path) -> None:
    """Meanwhile the folder went, or another program took the name."""
    (tmp_path / "taken.json").write_text("theirs")
    (tmp_path / "gone").write_text("")
    for path in (tmp_path / "gone" / "table.json", tmp_path / "taken.json"):
        with pytest.raises(InputError, match="the result is in ") as caught:
            save_new(path, "worth hours: ü")
        kept = Path(str(caught.value).partition("the result is in ")[2])
        assert kept.read_text(encoding="utf-8") == "worth hours: ü"
        kept.unlink()
    assert (tmp_path / "taken.json").read_text() == "theirs"


def test_on_a_full_disk_nothing_is_left_half_and_the_result_is_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")

    def full(*words: object, **options: object) -> object:
        return open("/dev/full", "w", encoding="utf-8")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    monkeypatch.setattr(new_file, "_write", lambda path, text: full().write(text * 10**5))  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="No space left on device; the result is on stdout"):
        save_new(tmp_path / "table.json", "worth hours")
    assert "worth hours" in capsys.readouterr().out
