"""A log that was cut anywhere, as a crash or a full disk leaves it, is decided again as far as it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.jobs.replay import replay
from tests.jobs.test_replay import spike


def test_a_log_may_end_after_any_byte(tmp_path: Path) -> None:
    """Between a fact and its decisions, within a line, within a character."""
    path = tmp_path / "events.jsonl"
    whole = spike("molt").text.replace('"chat"', '"chät"').encode()
    lines = whole.splitlines(keepends=True)
    ends = [sum(map(len, lines[:count])) for count in range(1, len(lines))]
    decided = [end for end, line in zip(ends, lines[1:], strict=False) if b'"kind":"decision"' in line]
    within = [begin + lines[number].index("ä".encode()) + 1 for number, begin in enumerate([0, *ends])
              if "ä".encode() in lines[number]]  # fmt: skip
    assert len(decided) > 4
    assert len(within) > 4
    for end in sorted({*ends[::7], *decided, *(end + 30 for end in decided), *within[:60]}):
        path.write_bytes(whole[:end])
        result = replay(path)
        assert result.difference is None, end
        assert not result.complete


@pytest.mark.parametrize("which", [0, -1])
def test_what_is_there_is_compared_all_the_same(tmp_path: Path, which: int) -> None:
    """The control: a decision that was changed is noticed in a cut log, the last one too."""
    path = tmp_path / "events.jsonl"
    lines = spike("molt").text.splitlines(keepends=True)
    of = [number for number, line in enumerate(lines) if '"type":"Load"' in line][which]
    lines[of] = lines[of].replace('"tier', '"tjer')
    path.write_text("".join(lines[: of + 1]), encoding="utf-8")
    assert replay(path).difference is not None
