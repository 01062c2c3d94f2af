"""A user without a home folder, and one who may not read it: what is cached there is not here, and that is all."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.engine.real import RealEngine
from molt.errors import LadderError, NotFetchedError
from molt.models import ladder_list
from molt.models.ladder_file import resolve
from molt.models.pico import corpus
from molt.paths import cache_folder, find_cache_folder
from realproc.doctor.diagnosis import read_cache


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither HOME nor an entry in the list of users."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MOLT_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", home)


@pytest.fixture
def barred(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that this user may not look into; root may look anywhere, so the system's answers are made up."""
    stat = Path.stat

    def refused(path: Path, **options: bool) -> object:
        if path.is_relative_to("/barred"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setenv("MOLT_CACHE", "/barred/cache")
    monkeypatch.setattr(Path, "stat", refused)


def test_a_cache_that_is_named_needs_no_home(homeless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cache_folder() is None
    with pytest.raises(LadderError, match="no home folder; set MOLT_CACHE"):
        cache_folder()
    monkeypatch.setenv("MOLT_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")


@pytest.mark.parametrize("user", ["homeless", "barred"])
def test_the_embedded_ladder_needs_no_home(user: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(user)
    spec = resolve("pico")
    engine = RealEngine(spec, measure_handoff=False)
    for rung in spec.rungs:
        engine.load(rung.name)
    engine.kill()


@pytest.mark.parametrize("user", ["homeless", "barred"])
def test_ladders_are_listed_as_not_here(user: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(user)
    found = {one.name: one for one in ladder_list.ladders()}
    assert found["pico"].is_here
    assert not found["qwen2.5-coder"].is_here
    with pytest.raises((LadderError, NotFetchedError)):
        resolve("qwen2.5-coder")


def test_the_doctor_says_so(homeless: None) -> None:
    assert read_cache().folder is None


def test_the_corpus_is_not_here(homeless: None) -> None:
    with pytest.raises(LadderError, match="no home folder"):
        list(corpus.documents("fit"))
