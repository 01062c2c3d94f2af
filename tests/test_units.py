"""Sizes, durations and percentages: exact, strict, and helpful about slips."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt import units
from molt.errors import InputError
from tests import strategies

PARSERS = st.sampled_from(
    [
        (units.SIZE, units.parse_size),
        (units.DURATION, units.parse_duration),
        (units.PERCENTAGE, units.parse_percentage),
    ]
)
Parser = tuple[units.Dimension, Callable[[object], int]]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0B", 0),
        ("64KiB", 65_536),
        ("512MiB", 536_870_912),
        ("1.5GiB", 1_610_612_736),
        ("1.50GiB", 1_610_612_736),
        ("100MB", 100_000_000),
        ("2GB", 2_000_000_000),
        ("2GiB", 2_147_483_648),
        ("0.000001MB", 1),
        ("8TiB", 8 * 2**40),
    ],
)
def test_a_size_is_exact_bytes(text: str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0s", 0),
        ("5ns", 5),
        ("10us", 10_000),
        ("250ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        ("0.000000001s", 1),
        ("2min", 120_000_000_000),
        ("1h", 3_600_000_000_000),
    ],
)
def test_a_duration_is_exact_nanoseconds(text: str, duration_ns: int) -> None:
    assert units.parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (512, "a size needs a unit, write for example 512MiB"),
        (1.5, "a size needs a unit, write for example 1.5MiB"),
        ("512", "a size needs a unit, write for example 512MiB"),
        ("012", "a size needs a unit, write for example 12MiB"),
        ("2G", "no unit 'G', write 2GiB or 2GB"),
        ("2Gb", "no unit 'Gb', write 2GiB or 2GB"),
        ("2Gi", "no unit 'Gi', write 2GiB"),
        ("52000kB", "a kB is 1,024 bytes in /proc/meminfo and 1,000 in SI, write 52000KiB or 52MB"),
        ("52000 kB", "a kB is 1,024 bytes in /proc/meminfo and 1,000 in SI, write 52000KiB or 52MB"),
        ("0.5kB", "a kB is 1,024 bytes in /proc/meminfo and 1,000 in SI, write 0.5KiB or 500B"),
        ("0.0001kB", "a kB is 1,024 bytes in /proc/meminfo and 1,000 in SI, write 0.0001KiB"),
        ("64KB", "a kB is 1,024 bytes in /proc/meminfo and 1,000 in SI, write 64KiB or 64000B"),
        ("64k", "a kB is 1,024 bytes in /proc/meminfo and 1,000 in SI, write 64KiB or 64000B"),
        ("64mib", "no unit 'mib', write 64MiB"),
        ("64 MiB", "write 64MiB"),
        ("5bytes", "no unit 'bytes', write 5B"),
        ("5s", "no unit 's', use one of B, KiB, MB, MiB, GB, GiB, TB, TiB"),
        ("1,024MiB", "a size has no separators, only digits and at most one point"),
        ("1_024MiB", "a size has no separators, only digits and at most one point"),
        ("012MiB", "write 12MiB"),
        ("-5MiB", "a size has no sign"),
        ("+5MiB", "a size has no sign"),
        ("0.3B", "not a whole number of bytes"),
        ("0.1KiB", "not a whole number of bytes"),
        ("nan", "not a size, write for example 512MiB"),
        ("1e3MiB", "not a size, write for example 512MiB"),
        ("5.MiB", "not a size, write for example 512MiB"),
        (".5MiB", "not a size, write for example 512MiB"),
        ("٣MiB", "not a size, write for example 512MiB"),
        ("", "not a size, write for example 512MiB"),
        (None, "not a size, write for example 512MiB"),
        (True, "not a size, write for example 512MiB"),
        (float("nan"), "not a size, write for example 512MiB"),
        (float("inf"), "not a size, write for example 512MiB"),
        ([], "not a size, write for example 512MiB"),
        (1 << 100_000, "not a size, write for example 512MiB"),
        ("9" * 100_000, "not a size, write for example 512MiB"),
        ("9" * 30 + "TiB", "too large a size, the limit is 9223372036854775807 bytes"),
    ],
    ids=lambda value: ascii(value)[:20] if not isinstance(value, int) else str(value % 1000),
)
def test_what_is_no_size_is_refused_with_what_would_be_right(value: object, reason: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(reason)}$"):
        units.parse_size(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (60, "a duration needs a unit, write for example 60s"),
        ("1:30", "a duration has no colon, write for example 90s"),
        ("012s", "write 12s"),
        ("5m", "no unit 'm', write 5min or 5ms"),
        ("5sec", "no unit 'sec', write 5s"),
        ("5 seconds", "no unit 'seconds', write 5s"),
        ("5µs", "no unit 'µs', write 5us"),
        ("5MS", "no unit 'MS', write 5ms"),
        ("1min30s", "not a duration, write for example 90s"),
        ("-1s", "a duration has no sign"),
        ("0.5ns", "not a whole number of nanoseconds"),
        ("3000000h", "too large a duration, the limit is 9223372036854775807 nanoseconds"),
    ],
)
def test_what_is_no_duration_is_refused_with_what_would_be_right(value: object, reason: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(reason)}$"):
        units.parse_duration(value)


@given(st.data(), PARSERS)
def test_parsing_agrees_with_exact_arithmetic(data: st.DataObject, parser: Parser) -> None:
    dimension, parse = parser
    number, unit = data.draw(strategies.quantity_texts(dimension))
    exact = Fraction(number) * dimension.units[unit]
    if exact.denominator == 1 and exact <= units.QUANTITY_MAX:
        assert parse(number + unit) == exact
    else:
        with pytest.raises(InputError):
            parse(number + unit)


@given(strategies.sizes())
def test_a_printed_size_is_read_back(size_bytes: int) -> None:
    assert units.parse_size(units.format_size(size_bytes)) == size_bytes


@given(strategies.durations())
def test_a_printed_duration_is_read_back(duration_ns: int) -> None:
    assert units.parse_duration(units.format_duration(duration_ns)) == duration_ns


@given(st.integers(0, 10**12))
def test_a_printed_percentage_is_read_back(millionths: int) -> None:
    assert units.parse_percentage(units.format_percentage(millionths)) == millionths


@given(st.text() | st.integers() | st.floats() | st.none(), PARSERS)
def test_anything_else_is_refused_in_one_line(value: object, parser: Parser) -> None:
    _, parse = parser
    try:
        quantity = parse(value)
    except InputError as error:
        message = str(error)
    else:
        message = units.format_size(quantity)
    assert message.isprintable()


@given(st.data(), PARSERS)
def test_the_pattern_for_editors_accepts_what_is_well_formed(data: st.DataObject, parser: Parser) -> None:
    dimension, _ = parser
    number, unit = data.draw(strategies.quantity_texts(dimension))
    assert re.fullmatch(units.pattern(dimension), number + unit)


def test_an_exact_text_is_the_shortest() -> None:
    assert [units.format_size(n) for n in (0, 1000, 1024, 1_572_864, 1_572_865)] == [
        "0B",
        "1000B",
        "1KiB",
        "1.5MiB",
        "1572865B",
    ]
    assert [units.format_duration(n) for n in (0, 1_500, 60_000_000_000, 7_200_000_000_000)] == [
        "0s",
        "1.5us",
        "60s",
        "2h",
    ]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (12_345_678, "11.8MiB"),
        (-(3 << 29), "-1.5GiB"),
        (10**9, "954MiB"),
    ],
)
def test_a_size_for_people_is_rounded(size_bytes: int, text: str) -> None:
    assert units.show_size(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(0, "0ns"), (999, "999ns"), (1_234_567, "1.23ms"), (90_000_000_000, "1.5min"), (-2_000_000_000, "-2s")],
)
def test_a_duration_for_people_is_rounded(duration_ns: int, text: str) -> None:
    assert units.show_duration(duration_ns) == text
