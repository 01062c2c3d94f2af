"""Stop strings are found across tokens, and nothing of one gets out."""

from __future__ import annotations

from hypothesis import example, given

from molt.server.stop_strings import StopStrings
from tests.strategies import pieces_and_stops


def let_through(pieces: list[str], stops: list[str]) -> tuple[list[tuple[str, str]], bool]:
    """Everything that gets out of a text, piece ``n`` of which comes from ``str(n)``."""
    strings, out = StopStrings(stops), []
    for number, piece in enumerate(pieces):
        passed, stopped = strings.push(str(number), piece)
        out += passed
        if stopped:
            return out, True
    return out + strings.flush(), False


def by_hand(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop string that is complete first."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(pieces_and_stops())
@example((["aab", "b"], ["abb", "b"]))
@example((["abab"], ["b", "abab"]))
def test_however_a_text_is_cut_the_same_gets_out(case: tuple[list[str], list[str]]) -> None:
    """What gets out is the text before the stop string that is complete first; without one, all of it."""
    pieces, stops = case
    out, stopped = let_through(pieces, stops)
    assert ("".join(text for _, text in out), stopped) == by_hand("".join(pieces), stops)


@given(pieces_and_stops())
def test_every_character_keeps_its_origin(case: tuple[list[str], list[str]]) -> None:
    """What was withheld and gets out late is still that of the piece it came in."""
    pieces, stops = case
    origins = [str(number) for number, piece in enumerate(pieces) for _ in piece]
    out, _ = let_through(pieces, stops)
    assert [origin for origin, text in out for _ in text] == origins[: sum(len(text) for _, text in out)]


def test_text_is_withheld_no_longer_than_it_must_be() -> None:
    strings = StopStrings(["</end>"])
    assert strings.push("a", "one <") == ([("a", "one ")], False)
    assert strings.push("b", "/e") == ([], False)
    assert strings.push("c", "x") == ([("a", "<"), ("b", "/e"), ("c", "x")], False)


def test_without_stop_strings_nothing_is_withheld() -> None:
    assert StopStrings(()).push("a", "text") == ([("a", "text")], False)
