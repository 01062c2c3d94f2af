"""Numbers and hostile text as people see them. Sizes and durations are printed by ``molt.units``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from molt.units import ABSENT, MIB, MS_NS, QUANTITY_MAX, show_duration, show_percent, show_size

_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
_CONTROLS = {code: picture for code, picture in _PICTURES.items() if chr(code) not in "\n\t"}
_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0x80, 0xA0)), 0xFFFD)
_HARMLESS = _CONTROLS | _DIRECTIONS


def size(size_bytes: int | None) -> str:
    """Bytes, such as ``29.3MiB``."""
    return ABSENT if size_bytes is None else show_size(size_bytes)


def span(duration_ms: float | None) -> str:
    """Milliseconds, such as ``260ms`` or ``1.2s``."""
    return ABSENT if duration_ms is None else show_duration(round(duration_ms * MS_NS))


def moment(at_ns: int) -> str:
    """A time on the run's clock, in seconds to the millisecond."""
    return f"{at_ns / 1e9:.3f}".rstrip("0").rstrip(".") + " s"


def percent(share: float | None) -> str:
    """A fraction as a whole percentage; only exactly 0 and 1 are shown as 0 % and 100 %."""
    if share is None:
        return ABSENT
    if 0 < share < 0.005:
        return "<1 %"
    if 0.995 < share < 1:
        return ">99 %"
    return show_percent(share)


def signed_percent(share: float | None) -> str:
    """A signed fraction as a percentage to a tenth."""
    return ABSENT if share is None else f"{'-' if share < 0 else '+'}{show_percent(abs(share), 1)}"


def rate(bytes_per_s: float) -> str:
    """Bytes per second, in MiB."""
    return f"{bytes_per_s / MIB:.0f} MiB/s"


def number(value: int | None) -> str:
    """A whole number."""
    return ABSENT if value is None else str(value)


def decimal(value: float | None) -> str:
    """A plain number to three digits."""
    return ABSENT if value is None else f"{value:.3g}"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """A number and its noun: ``1 answer``, ``3 answers``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def machine(of: Mapping[str, Any]) -> str:
    """The machine of a run, as ``molt.formats.provenance.machine`` describes it, as far as it does."""
    processor, cores, system = (of.get(key) or ABSENT for key in ("processor", "cores", "system"))
    memory = of.get("memory_bytes")
    is_size = isinstance(memory, int) and 0 <= memory <= QUANTITY_MAX
    return f"{processor}, {cores} cores, {size(memory if is_size else None)}, {system}"


def printable(text: str) -> str:
    """Text that is safe on a terminal or a page: control characters as their pictures; what changes the direction of
    writing, or is no character, replaced. Newlines and tabs stay."""
    return text.translate(_HARMLESS).encode("utf-8", "replace").decode("utf-8")
