"""Fitting a ladder writes maps that the engine accepts, the same ones every time, with their residuals."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from molt.errors import InputError
from molt.fitting import checkpoint
from molt.fitting.collect import folder_corpus, windows
from molt.fitting.fit import Options, fit_ladder, table
from molt.kv import map_file
from molt.kv.loaded_rung import LoadedRung
from molt.models.ladder_file import resolve
from tests.engine.test_real_detokenise import BYTES, byte_tokenizer
from tests.tiny_rungs import tiny

OPTIONS = Options(rows=1500, heldout_rows=400)


def save(rung: LoadedRung, folder: Path) -> None:
    assert isinstance(rung.model, PreTrainedModel)
    rung.model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random rungs over bytes, and the second again in int8."""
    root = tmp_path_factory.mktemp("fit")
    save(tiny(vocabulary=257), root / "big")
    save(tiny(layers=2, kv_heads=1, head_dim=6, seed=1, vocabulary=257), root / "little")
    (root / "ladder.yaml").write_text(
        "name: tiny\n"
        "rungs:\n"
        "  - {name: big, source: {folder: big}, precision: fp32}\n"
        "  - {name: little, source: {folder: little}, precision: fp32}\n"
        "  - {name: least, source: {folder: little}, precision: int8}\n"
        "maps: {folder: maps}\n"
    )
    return root / "ladder.yaml"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty short texts of few words."""
    folder, words = (
        tmp_path_factory.mktemp("texts"),
        ["the", "rung", "of", "a", "ladder", "is", "held", "by", "its", "cache"],
    )
    for number in range(20):
        chosen = random.Random(number).choices(words, k=30)
        (folder / f"{number:02}.txt").write_text(" ".join(chosen))
    (folder / "picture.bin").write_bytes(b"\xff\xfe\x00")
    return folder


def test_every_directed_pair_of_weights_is_fitted_and_found(ladder: Path, texts: Path) -> None:
    fitted = fit_ladder(str(ladder), ladder.parent / "maps", folder_corpus(texts), OPTIONS)
    assert [(one.card.source, one.card.dest) for one in fitted] == [("big", "little"), ("little", "big")]
    spec = resolve(ladder)
    assert set(spec.maps) == {("big", "little"), ("little", "big")}
    assert spec.ladder.route("big", "least").map_bytes == map_file.resident_bytes(fitted[0].path)


def test_the_map_explains_what_it_was_not_fitted_on(ladder: Path, texts: Path, tmp_path: Path) -> None:
    down, up = fit_ladder(str(ladder), tmp_path, folder_corpus(texts), OPTIONS)
    for fitted in (down, up):
        assert fitted.card.rows >= 1500
        assert fitted.card.heldout_rows > 0
        first, *others = zip(fitted.card.residual_k, fitted.card.residual_v, strict=True)
        assert max(first) < 1e-4, "linear in the destination's own embedding"
        assert all(0.0 < share < 0.9 for layer in others for share in layer)
    assert down.card.features_per_row == pytest.approx((3 * 32 + 32) / down.card.rows)
    assert "none: exact" in table(down)


def test_more_source_layers_explain_more(ladder: Path, texts: Path, tmp_path: Path) -> None:
    corpus = folder_corpus(texts)
    one, _ = fit_ladder(str(ladder), tmp_path, corpus, Options(1500, 400, sources=1))
    assert one.card.sources == ((), (2,))
    every, _ = fit_ladder(str(ladder), tmp_path, corpus, OPTIONS)
    assert sum(every.card.residual_v) < sum(one.card.residual_v)


def test_native_layers_leave_fewer_to_map(ladder: Path, texts: Path, tmp_path: Path) -> None:
    corpus = folder_corpus(texts)
    _, up = fit_ladder(str(ladder), tmp_path, corpus, Options(1500, 400, native_layers=1))
    assert up.card.sources == ((), (0, 1))
    assert max(up.card.residual_v[0], up.card.residual_k[0]) < 1e-4
    with pytest.raises(InputError, match="2 native layers, but a rung has only 2"):
        fit_ladder(str(ladder), tmp_path, corpus, Options(1500, 400, native_layers=2))


def test_the_same_fit_writes_the_same_bytes(ladder: Path, texts: Path, tmp_path: Path) -> None:
    corpus = folder_corpus(texts)
    for name in ("one", "other"):
        fit_ladder(str(ladder), tmp_path / name, corpus, OPTIONS)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_a_killed_fit_goes_on_and_writes_the_same_bytes(
    ladder: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = folder_corpus(texts)
    fit_ladder(str(ladder), tmp_path / "whole", corpus, OPTIONS)
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    read: list[int] = []

    def killed(phase: str, rows: int) -> None:
        if len(read) == 5:
            raise KeyboardInterrupt
        read.append(rows)

    with pytest.raises(KeyboardInterrupt):
        fit_ladder(str(ladder), tmp_path / "killed", corpus, OPTIONS, killed)
    again: list[int] = []
    fit_ladder(str(ladder), tmp_path / "killed", corpus, OPTIONS, lambda phase, rows: again.append(rows))
    assert again[0] > read[-2], "what was collected is not collected again"
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }, "and nothing is left of the checkpoint"
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()


def test_a_shared_map_explains_nearly_as_much_with_far_fewer_weights(
    ladder: Path, texts: Path, tmp_path: Path
) -> None:
    corpus = folder_corpus(texts)
    every = fit_ladder(str(ladder), tmp_path / "every", corpus, OPTIONS)
    shared = fit_ladder(str(ladder), tmp_path / "shared", corpus, replace(OPTIONS, rank=24))
    for one, other in zip(every, shared, strict=True):
        assert sum(other.card.residual_v) < sum(one.card.residual_v) * 1.3
        assert map_file.resident_bytes(other.path) < map_file.resident_bytes(one.path)
        assert max(other.card.residual_k[0], other.card.residual_v[0]) < 1e-4


def test_a_higher_rank_explains_more(ladder: Path, texts: Path, tmp_path: Path) -> None:
    corpus = folder_corpus(texts)
    low, high = (
        fit_ladder(str(ladder), tmp_path / str(rank), corpus, replace(OPTIONS, rank=rank)) for rank in (4, 12)
    )
    for one, other in zip(low, high, strict=True):
        assert sum(other.card.residual_k) < sum(one.card.residual_k)
        assert sum(other.card.residual_v) < sum(one.card.residual_v)


def test_no_document_is_both_fitted_and_held_out(texts: Path) -> None:
    corpus = folder_corpus(texts)
    assert len(corpus.fit) == 18
    assert len(corpus.heldout) == 2
    assert not set(corpus.fit) & set(corpus.heldout)


def test_windows_are_whole_documents_in_pieces() -> None:
    text = "x" * 100
    assert [len(window) for window in windows([("a", text), ("b", "short")], BYTES, length=40)] == [40, 40]
    assert [len(window) for window in windows([("a", text), ("b", text)], BYTES, 40, 1)] == [40, 40]
    assert [len(window) for window in windows([("a", text)], BYTES, length=60)] == [60, 40]


def test_without_texts_nothing_is_fitted(tmp_path: Path, ladder: Path) -> None:
    with pytest.raises(InputError, match="0 UTF-8 text files"):
        folder_corpus(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("too short")
    with pytest.raises(InputError, match="too short"):
        fit_ladder(str(ladder), tmp_path / "maps", folder_corpus(tmp_path), OPTIONS)


def test_a_ladder_of_one_weights_has_nothing_to_fit(ladder: Path, texts: Path, tmp_path: Path) -> None:
    alone = ladder.parent / "alone.yaml"
    alone.write_text("name: alone\nrungs:\n  - {name: little, source: {folder: little}, precision: fp32}\n")
    with pytest.raises(InputError, match="no map to fit"):
        fit_ladder(str(alone), tmp_path, folder_corpus(texts), OPTIONS)
