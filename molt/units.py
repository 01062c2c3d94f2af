"""The only parser and the only printer of sizes ("512MiB"), durations ("250ms") and percentages ("150%").

Rules of this module:

- A quantity is ASCII digits, optionally one point and more digits, and directly behind it a unit. The unit is
  mandatory; there are no signs, exponents, separators or leading zeros.
- Inside Molt a size is integer bytes, a duration integer nanoseconds, a percentage integer millionths. The
  conversion is exact: text that means no whole number of them is refused, nothing is rounded.
- There is no ``kB``: it is 1,024 bytes in /proc/meminfo and 1,000 in SI. It is refused with both readings.
- ``format_*`` is exact as well: parsing what it prints gives the number back. ``show_*`` rounds, for people.
- An ``InputError`` from here says what is wrong and what would be right. The caller knows the place, and adds it and
  the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from molt.errors import InputError

MIB = 2**20
MS_NS, SECOND_NS = 1_000_000, 1_000_000_000
QUANTITY_MAX = 2**63 - 1
"""Largest number of bytes, nanoseconds or millionths that is accepted: it fits a signed 64-bit word."""
ABSENT = "–"
"""Shown where there is no quantity."""

_TEXT_CHARS_MAX = 40
_DECIMALS_MAX = 6  # of an exact text; a longer one is never the shortest
_NUMBER = r"(0|[1-9][0-9]*)(\.[0-9]+)?"
_QUANTITY = re.compile(rf"(?P<number>{_NUMBER})(?P<unit>[A-Za-z]+|%)")
_NEARLY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[^\W\d_]+|%)?")


@dataclass(frozen=True, slots=True)
class Dimension:
    """What is measured.

    ``word`` names it and ``base`` its base unit in messages; ``units`` are worth whole numbers of that one;
    ``example`` is a quantity to show, ``usual`` the unit to suggest where none was given; ``slips`` has, in
    lower case, what people write instead of a unit and the units they may mean by it.
    """

    word: str
    base: str
    units: Mapping[str, int]
    example: str
    usual: str
    slips: Mapping[str, tuple[str, ...]]


SIZE = Dimension(
    word="size",
    base="bytes",
    units={
        "B": 1,
        "KiB": 2**10,
        "MB": 10**6,
        "MiB": 2**20,
        "GB": 10**9,
        "GiB": 2**30,
        "TB": 10**12,
        "TiB": 2**40,
    },
    example="512MiB",
    usual="MiB",
    slips={
        **dict.fromkeys(("m", "mb"), ("MiB", "MB")),
        **dict.fromkeys(("g", "gb"), ("GiB", "GB")),
        **dict.fromkeys(("t", "tb"), ("TiB", "TB")),
        **{f"{letter}i": (f"{letter.upper()}iB",) for letter in "kmgt"},
        **dict.fromkeys(("byte", "bytes"), ("B",)),
    },
)

DURATION = Dimension(
    word="duration",
    base="nanoseconds",
    units={
        "ns": 1,
        "us": 10**3,
        "ms": 10**6,
        "s": 10**9,
        "min": 60 * 10**9,
        "h": 3600 * 10**9,
    },
    example="90s",
    usual="s",
    slips={
        **dict.fromkeys(("µs", "μs"), ("us",)),  # micro sign, Greek mu
        **dict.fromkeys(("m", "mn"), ("min", "ms")),
        **dict.fromkeys(("sec", "secs", "second", "seconds"), ("s",)),
        **dict.fromkeys(("mins", "minute", "minutes"), ("min",)),
        **dict.fromkeys(("hr", "hrs", "hour", "hours"), ("h",)),
    },
)

PERCENTAGE = Dimension(
    word="percentage", base="millionths", units={"%": 10_000}, example="150%", usual="%", slips={}
)


def parse_size(value: object) -> int:
    """Bytes of a size such as ``"1.5GiB"``; raises ``InputError``."""
    return _parse(value, SIZE)


def parse_duration(value: object) -> int:
    """Nanoseconds of a duration such as ``"250ms"``; raises ``InputError``."""
    return _parse(value, DURATION)


def parse_percentage(value: object) -> int:
    """Millionths of a percentage such as ``"12.5%"``; raises ``InputError``."""
    return _parse(value, PERCENTAGE)


def format_size(size_bytes: int) -> str:
    """The shortest exact text of a size in bytes."""
    return _format(size_bytes, SIZE)


def format_duration(duration_ns: int) -> str:
    """The shortest exact text of a duration in nanoseconds."""
    return _format(duration_ns, DURATION)


def format_percentage(share_millionths: int) -> str:
    """The shortest exact text of a share in millionths."""
    return _format(share_millionths, PERCENTAGE)


def show_size(size_bytes: int) -> str:
    """A size in bytes for people: three digits or so, a binary unit, perhaps a sign."""
    return _show(size_bytes, {unit: worth for unit, worth in SIZE.units.items() if worth.bit_count() == 1})


def show_duration(duration_ns: int) -> str:
    """A duration in nanoseconds for people: three digits or so, perhaps a sign."""
    return _show(duration_ns, DURATION.units)


def show_percent(share: float, decimals: int = 0) -> str:
    """A fraction for people, as a percentage with so many decimals."""
    return f"{100 * share:.{decimals}f} %"


def pattern(dimension: Dimension) -> str:
    """A regular expression of every text that is a quantity of a dimension, for editors; not anchored."""
    return f"{_NUMBER}({'|'.join(dimension.units)})"


# --- reading ---


def _parse(value: object, dimension: Dimension) -> int:
    text = value if isinstance(value, str) and len(value) <= _TEXT_CHARS_MAX else ""
    match = _QUANTITY.fullmatch(text)
    if match is None or match["unit"] not in dimension.units:
        raise InputError(_diagnosis(value, dimension))
    whole, _, fraction = match["number"].partition(".")
    scaled = int(whole + fraction) * dimension.units[match["unit"]]
    quantity, rest = divmod(scaled, 10 ** len(fraction))
    if rest:
        raise InputError(f"not a whole number of {dimension.base}")
    if quantity > QUANTITY_MAX:
        raise InputError(f"too large a {dimension.word}, the limit is {QUANTITY_MAX} {dimension.base}")
    return quantity


def _diagnosis(value: object, dimension: Dimension) -> str:
    """What is wrong with a value that is no quantity, and what would be right."""
    word = dimension.word
    not_one = f"not a {word}, write for example {dimension.example}"
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < QUANTITY_MAX:
        value = str(value)  # files hand bare numbers over as numbers
    if not isinstance(value, str) or len(value) > _TEXT_CHARS_MAX:
        return not_one
    text = value.strip()
    if text.startswith(("+", "-")):
        return f"a {word} has no sign"
    if ":" in text:
        return f"a {word} has no colon, write for example {dimension.example}"
    if "," in text or "_" in text:
        return f"a {word} has no separators, only digits and at most one point"
    if match := _NEARLY.fullmatch(text):
        number = re.sub(r"^0+(?=[0-9])", "", match["number"])
        return _unit_diagnosis(number, match["unit"], dimension)
    return not_one


def _unit_diagnosis(number: str, unit: str | None, dimension: Dimension) -> str:
    if unit is None:
        return f"a {dimension.word} needs a unit, write for example {number}{dimension.usual}"
    if unit in dimension.units:
        return f"write {number}{unit}"
    if dimension is SIZE and unit.lower() in ("k", "kb"):
        thousands = Fraction(number) * 1000
        in_si = f" or {format_size(int(thousands))}" if thousands.denominator == 1 else ""
        return f"a kB is 1,024 bytes in /proc/meminfo and 1,000 in SI, write {number}KiB{in_si}"
    same = tuple(known for known in dimension.units if known.lower() == unit.lower())
    if meant := dimension.slips.get(unit.lower(), same):
        return f"no unit {unit!r}, write {' or '.join(number + known for known in meant)}"
    return f"no unit {unit!r}, use one of {', '.join(dimension.units)}"


# --- printing ---


def _format(quantity: int, dimension: Dimension) -> str:
    assert quantity >= 0, f"a {dimension.word} is not negative: {quantity}"
    texts = (_exact(quantity, worth, unit) for unit, worth in dimension.units.items())
    return min((text for text in texts if text), key=len)


def _exact(quantity: int, worth: int, unit: str) -> str | None:
    """A quantity in one unit, or ``None`` if that takes more than ``_DECIMALS_MAX`` decimals."""
    scaled, rest = divmod(quantity * 10**_DECIMALS_MAX, worth)
    if rest:
        return None
    whole, decimals = divmod(scaled, 10**_DECIMALS_MAX)
    return f"{whole}.{decimals:0{_DECIMALS_MAX}}".rstrip("0").rstrip(".") + unit


def _show(quantity: int, units: Mapping[str, int]) -> str:
    unit, worth = next(iter(units.items()))
    for larger, larger_worth in units.items():
        if abs(quantity) >= larger_worth:
            unit, worth = larger, larger_worth
    number = abs(quantity) / worth
    decimals = 0 if worth == 1 or number >= 100 else 1 if number >= 10 else 2
    sign = "-" if quantity < 0 else ""
    text = f"{number:.{decimals}f}"
    return sign + (text.rstrip("0").rstrip(".") if decimals else text) + unit
