"""The pressure on a pair, what makes it void, and how a campaign continues after an interruption."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from molt.errors import InputError
from molt.jobs import job
from molt.units import MIB, MS_NS, SECOND_NS
from realproc.campaigns import campaign as c
from realproc.campaigns.trial import PressureStep, TrialResult, TrialSubject, VoidError, fastest
from realproc.kernel.guard import BreachError
from realproc.kernel.pressure import Holding, Manner

FINE = TrialResult(
    0, None, 100, ("tier0", "tier1"), 200 * MIB, 196 * MIB, 190 * MIB, -6 * MIB, 50 * MIB, (), 1.5
)
KILLED = replace(FINE, kills=1, victim=4242)


class Scripted:
    """A subject whose trials are made up."""

    def __init__(self, *trials: TrialResult | VoidError) -> None:
        self._trials = list(trials)
        self.pressed: list[PressureStep] = []

    def try_once(self, step: PressureStep) -> TrialResult:
        self.pressed.append(step)
        if isinstance(trial := self._trials.pop(0), VoidError):
            raise trial
        return trial


PLAN = c.plan_of(job.prepare(c.SCENARIO), 150_000_000, 14 * MIB)


def rows(hold: Scripted, molt: Scripted, numbers: Iterable[int], **controls: Scripted) -> list[dict]:  # type: ignore[type-arg]
    subjects = c.Subjects(
        cast(TrialSubject, hold), cast(TrialSubject, molt), cast("dict[str, TrialSubject]", controls)
    )
    return list(c.pairs(subjects, iter(numbers), PLAN))


def test_a_manner_that_a_scenario_has_no_room_for_is_left_out() -> None:
    run = job.prepare(c.SCENARIO)
    slow = c.plan_of(run, 2 * 10**9, 14 * MIB)
    assert slow.manners == tuple(Manner(rate, huge) for huge in c.PAGES for rate in c.RATES[:3])
    assert all(slow.budget_bytes(manner) <= c.largest_budget(run) for manner in slow.manners)
    with pytest.raises(InputError, match="trace: the largest budget must be"):
        c.plan_of(run, 60 * 10**9, 14 * MIB)


@given(st.integers(0, 10**6))
def test_eight_pairs_in_a_row_have_every_pressure(pair: int) -> None:
    manners = {c.pressure_of(pair + i, PLAN).manner for i in range(8)}
    assert manners == {Manner(rate, huge) for rate in c.RATES for huge in c.PAGES}
    assert 4 <= c.pressure_of(pair, PLAN).tokens <= 26


def test_controls_go_round_by_everything() -> None:
    """In 216 pairs every late signal is tried under every pressure."""
    tried = {
        (c.control_of(pair), c.pressure_of(pair, PLAN).manner) for pair in range(216) if c.control_of(pair)
    }
    assert len(tried) == len(c.LATE_SIGNALS) * len(c.RATES) * len(c.PAGES)


def test_both_meet_the_same_pressure() -> None:
    hold, molt = Scripted(KILLED), Scripted(FINE)
    (row,) = rows(hold, molt, [3])
    assert hold.pressed == molt.pressed == [c.pressure_of(3, PLAN)]
    assert (row["pair"], row["void"], row["hold"]["victim"], row["molt"]["kills"]) == (3, None, 4242, 0)
    json.dumps(row)


@pytest.mark.parametrize(
    ("hold", "molt", "void"),
    [
        (FINE, FINE, "the holding process was not killed"),
        (replace(KILLED, victim=None), FINE, "another process"),
        (KILLED, VoidError("made up"), "made up"),
        (VoidError("made up"), FINE, "made up"),
        (KILLED, KILLED, None),
    ],
)
def test_what_makes_a_pair_void(
    hold: TrialResult | VoidError, molt: TrialResult | VoidError, void: str | None
) -> None:
    """A kill of the changing process never does."""
    (row,) = rows(Scripted(hold), Scripted(molt), [1])
    assert row["void"] is None if void is None else void in row["void"]


def test_a_control_says_nothing_about_its_pair() -> None:
    (first, second) = rows(
        Scripted(KILLED, KILLED), Scripted(FINE, FINE), [0, 1], psi=Scripted(VoidError("made up"))
    )
    assert first["control"] == {"signal": "psi", "void": "made up"}
    assert first["void"] is None
    assert "control" not in second


def test_a_campaign_continues_where_it_stood(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    assert c.done_before(file) == set()
    file.write_text('{"session": "x"}\n{"pair": 0}\n{"pair": 4}\n{"pai', encoding="utf-8")
    assert c.done_before(file) == {0, 4}
    assert file.read_text(encoding="utf-8").endswith('{"pair": 4}\n'), "the torn line is cut off"
    file.write_text("no campaign\n", encoding="utf-8")
    with pytest.raises(InputError, match="not the file of a campaign"):
        c.done_before(file)


@given(st.integers(10, 1000), st.lists(st.integers(1, 40), min_size=2, max_size=30))
def test_the_fastest_is_a_speed_that_was_reached(mib_per_s: int, gaps_ms: list[int]) -> None:
    """Of steady growth it is that growth, however often it was looked at."""
    at_ms, reports = 0, []
    for gap in gaps_ms:
        reports.append(Holding(at_ms * MS_NS, at_ms * mib_per_s * MIB // 1000, 0))
        at_ms += gap
    span_ms = (reports[-1].at_ns - reports[0].at_ns) // MS_NS
    if span_ms >= 5:
        assert fastest(reports) * 1000 == pytest.approx(mib_per_s * MIB * SECOND_NS / MS_NS, rel=1e-3)
    else:
        assert fastest(reports) == 0


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        (BreachError("too little left"), "molt: stopped: too little left"),
        (OSError(errno.ENOSPC, "No space left on device"), "molt: stopped: {out}: No space left on device"),
    ],
)
def test_a_campaign_that_has_to_stop_says_so_in_a_line(
    trouble: Exception,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its subjects are closed as in any other end."""
    out, left = tmp_path / "pairs.jsonl", list[str]()

    @contextmanager
    def subjects(*_: object) -> Iterator[c.Subjects]:
        try:
            yield c.Subjects(cast(TrialSubject, None), cast(TrialSubject, None), {})
        finally:
            left.append("all")

    def pairs(*_: object) -> Iterator[dict[str, object]]:
        raise trouble

    monkeypatch.setattr(c, "_subjects_of", subjects)
    monkeypatch.setattr(c, "pairs", pairs)
    with pytest.raises(typer.Exit) as end:
        c.command(
            count=1,
            out=out,
            within=None,
            left=c.LEFT,
            scenario=c.SCENARIO,
            signal="poll-10ms",
            no_controls=True,
        )
    assert end.value.exit_code == (2 if isinstance(trouble, OSError) else 1)
    assert capsys.readouterr().err == line.format(out=out) + "\n"
    assert left == ["all"]
