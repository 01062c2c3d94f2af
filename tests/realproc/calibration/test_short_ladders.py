"""Ladders of few positions are calibrated within them: every step has a cost, and nothing runs past the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.core.healing import CHUNKS
from molt.errors import InputError
from molt.jobs.profile import load_profile
from molt.models.ladder_file import resolve
from realproc.calibration import calibrate as calibration
from realproc.calibration.calibrate import ANSWER_TOKENS, CELLS, CONTEXTS, HEALING_CELLS, measured_lengths
from tests import own_ladder


def ladder(folder: Path, positions: int) -> str:
    return str(own_ladder.make(folder, positions))


@pytest.mark.parametrize("positions", [128, 512, 700, 1024])
def test_a_short_ladder_is_calibrated(
    tmp_path: Path, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_process_start_ns", lambda: 1)
    path, out = ladder(tmp_path, positions), tmp_path / "mine.json"
    calibration.calibrate(path, out)
    costs = load_profile(str(out), resolve(path).ladder)
    for rung in costs.rungs.values():
        assert rung.read.ns(8, 0) > 1
        assert rung.decode.ns(1, positions // 2) > 1
    assert costs.routes["small->small-int8"].switch.ns(64, 0) > 1


def test_an_engine_apart_is_calibrated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_process_start_ns", lambda: 1)
    path, out = ladder(tmp_path, 128), tmp_path / "mine.json"
    calibration.calibrate(path, out, apart=True)
    assert load_profile(str(out), resolve(path).ladder).rungs["small"].decode.ns(1, 64) > 1


@pytest.mark.parametrize("positions", [1, 16, 64, 127])
def test_too_few_positions_are_refused_before_the_work(tmp_path: Path, positions: int) -> None:
    with pytest.raises(InputError, match=f"{positions} positions; calibration needs at least 128") as caught:
        calibration.calibrate(ladder(tmp_path, positions), tmp_path / "mine.json")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mine.json").exists()


@pytest.mark.parametrize("positions", [*range(128, 1100, 7), 1024, 2047, 2048, 32768])
def test_everything_measured_fits_into_the_positions(positions: int) -> None:
    lengths = measured_lengths(positions)
    for context in lengths.contexts:
        assert context + lengths.repeats * sum(lengths.chunks) + 1 + ANSWER_TOKENS <= positions
    assert len(lengths.contexts) >= 2, "the cost of a pair of tokens is seen in two contexts"
    assert len(lengths.cells) >= 2, "the cost of a cell is seen in two lengths"
    assert max(lengths.cells) + 1 + ANSWER_TOKENS <= positions
    assert lengths.healing_repeats * sum(lengths.healing) + 32 <= max(lengths.cells)
    assert 2 * calibration.STEP_REPEATS + lengths.healing_repeats * len(lengths.healing) < ANSWER_TOKENS


def test_a_ladder_with_room_is_measured_as_before() -> None:
    lengths = measured_lengths(2048)
    assert (lengths.contexts, lengths.cells) == (CONTEXTS, CELLS)
    assert (lengths.chunks, lengths.repeats) == (calibration.MEASURED_CHUNKS, calibration.STEP_REPEATS)
    assert max(lengths.cells) == HEALING_CELLS
    assert (lengths.healing, lengths.healing_repeats) == (tuple(sorted(CHUNKS)), calibration.STEP_REPEATS)
