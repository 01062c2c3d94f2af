"""A campaign's page counts the kills, with exact bounds, and shows every trial that went beyond its bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from molt.errors import InputError
from reports import campaign as c
from reports.confidence import upper_bound

MIB = 2**20
SESSION = {
    "session": "2026-01-01T00:00:00+00:00", "ladder": "pico", "signal": "poll-10ms", "left_bytes": 14 * MIB,
    "machine": {"processor": "a processor", "cores": 2, "memory_bytes": 4 * 2**30, "system": "Linux 6.1 x86_64"},
    "commit": "c0ffee",
}  # fmt: skip


def trial(kills: int = 0, *, over_mib: int = -5, room_mib: int = 10, reaction_ms: int = 40) -> dict[str, Any]:
    """At 100 MiB/s, the budget reported with so much room, and relief so much later: 10 ms for the look come on top."""
    return {
        "kills": kills,
        "line_bytes": 200 * MIB,
        "peak_bytes": 210 * MIB,
        "over_line_bytes": over_mib * MIB,
        "fastest_bytes_per_s": 100 * MIB,
        "reliefs": [
            {
                "signal_ns": None,
                "boundary_ns": (reaction_ms - 10) * 10**6,
                "release_ns": 10 * 10**6,
                "load_ns": 20 * 10**6,
                "transplant_ns": None,
                "held_bytes": (200 - room_mib) * MIB,
            }
        ],
    }


def row(pair: int, molt: dict[str, Any], *, hold_kills: int = 1, **more: Any) -> dict[str, Any]:
    rate = None if pair % 2 else 50 * MIB
    hold = trial(hold_kills)
    return {
        "pair": pair,
        "rate_bytes_per_s": rate,
        "huge": False,
        "void": None,
        "hold": hold,
        "molt": molt,
        **more,
    }


def campaign(*rows: dict[str, Any]) -> c.Campaign:
    return c.Campaign((SESSION,), rows)


def test_the_written_bound() -> None:
    """100 MiB/s for 50 ms are 5 MiB, of which there was room for 10."""
    assert c.bound_bytes(trial()) == -5 * MIB
    assert c.overshoot_bytes(trial()) == -5 * MIB
    assert not c.is_miss(trial())
    assert not c.is_miss(trial(over_mib=0)), "below the line is never a miss"
    assert not c.is_miss(trial(over_mib=1)), "within the grain"
    assert c.is_miss(trial(over_mib=2))
    assert not c.is_miss(trial(over_mib=2, room_mib=4))
    assert c.is_miss(trial(kills=1))
    assert c.bound_bytes({**trial(), "reliefs": []}) is None
    assert c.is_miss(trial(), c.peak_overshoot_bytes), "the kernel's peak has more in it"
    assert not c.is_miss({**trial(), "peak_bytes": None}, c.peak_overshoot_bytes)


def test_void_pairs_do_not_count() -> None:
    found = campaign(row(0, trial()), row(1, trial(1)), row(2, trial(1), void="made up"))
    assert (len(found.valid), c.kills(found.valid, "hold"), c.kills(found.valid, "molt")) == (2, 2, 1)
    page = c.page(found, "x", "molt real campaign")
    assert "Of 3 pairs 1 were void." in page
    assert "made up (1)" in page
    assert f"at most {100 * upper_bound(1, 2):.1f} % of such cases" in page


def test_controls_are_counted_by_signal() -> None:
    control = {"signal": "psi", **trial(1)}
    found = campaign(
        row(0, trial(), control=control), row(1, trial(), control={"signal": "psi", "void": "x"})
    )
    (line,) = [line for line in c.control_table(found).splitlines() if "psi" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["psi", "1", "1", "5.0 %"]


def test_latencies_are_those_of_the_first_release() -> None:
    twice = trial()
    twice["reliefs"] = [*twice["reliefs"], {**twice["reliefs"][0], "boundary_ns": 10**9}]
    found = campaign(row(0, twice))
    assert c.latencies_ms(found.valid, "boundary") == [30.0]
    assert c.latencies_ms(found.valid, "load") == [20.0]
    assert c.latencies_ms(found.valid, "signal") == []
    parts = [line.split("|")[1].strip() for line in c.relief_table(found).splitlines()[2:]]
    assert parts == ["boundary", "release", "load"], "what there was nothing of has no line"


def test_the_page_says_how_much_room_there_was() -> None:
    old, new = row(0, trial()), row(1, trial(), room_bytes=40 * MIB)
    assert "others leave 14MiB\n" in c.page(campaign(old), "x", "molt real campaign")
    assert "others leave 14MiB of 40MiB to 40MiB, by the rate\n" in c.page(
        campaign(old, new), "x", "molt real campaign"
    )


def test_misses_are_shown() -> None:
    fine, bad = c.picture(campaign(row(0, trial()))), c.picture(campaign(row(0, trial(over_mib=3))))
    assert f'fill="{c.MISS}" fill-opacity' not in fine
    assert f'fill="{c.MISS}" fill-opacity' in bad


def test_a_file_is_read_whatever_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    lines = [json.dumps(SESSION), json.dumps(row(3, trial())), json.dumps(row(3, trial(1)))]
    file.write_text("\n".join(lines) + '\n{"pair": 4')
    read = c.Campaign.read(file)
    assert [r["pair"] for r in read.rows] == [3]
    assert read.rows[0]["molt"]["kills"] == 1, "the last word on a pair counts"
    c.publish(file, tmp_path / "published")
    assert sorted(p.name for p in (tmp_path / "published").iterdir()) == [
        "pairs.jsonl",
        "pairs.md",
        "pairs.svg",
    ]
    file.write_text("{}\n")
    with pytest.raises(InputError, match="no pairs"):
        c.Campaign.read(file)


@pytest.mark.parametrize("file", sorted(c.PUBLISHED_REAL.glob("*.jsonl")), ids=lambda file: file.stem)
def test_published_pages_are_those_of_their_files(file: Path) -> None:
    for ending, text in c.pages(c.Campaign.read(file), file.stem).items():
        assert file.with_suffix(ending).read_text(encoding="utf-8") == text
