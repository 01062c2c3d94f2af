"""What ladders there are, what their rungs weigh, and whether their weights are here; nothing is fetched to say so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from molt.errors import LadderError
from molt.models import predict
from molt.models.ladder_file import RungEntry, check_model, ladder_names, read_ladder_file
from molt.models.source import FolderSource, GgufSource, HubSource, PackageSource, PartsSource, Source, locate
from molt.units import show_size

ABOUT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # a parameter, where only their number is known


@dataclass(frozen=True, slots=True)
class RungHere:
    """One rung: the bytes of its weights (exact if they are here, else estimated or ``None``), and what is missing."""

    name: str
    precision: str
    source: str
    weight_bytes: int | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class LadderHere:
    """One ladder; ``missing`` is the reason why it cannot be read at all."""

    name: str
    rungs: tuple[RungHere, ...]
    missing: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether it can be used as it is."""
        return self.missing is None and all(rung.missing is None for rung in self.rungs)


def ladders() -> tuple[LadderHere, ...]:
    """Every ladder that ships with Molt, by name; a broken one is an entry with its error."""
    return tuple(map(ladder, ladder_names()))


def ladder(name_or_path: str) -> LadderHere:
    """One ladder and its rungs."""
    try:
        path, file = read_ladder_file(name_or_path)
    except LadderError as error:
        return LadderHere(name_or_path, (), str(error))
    return LadderHere(file.name, tuple(_rung(rung, path) for rung in file.rungs))


def table(found: tuple[LadderHere, ...]) -> str:
    """Ladders as lines for people, one a rung."""
    body: list[tuple[str, str, str, str, str]] = []
    for one in found:
        state = "here" if one.is_here else f"molt ladders fetch {one.name}"
        if one.missing is not None:
            body.append((one.name, "", "", "", one.missing))
        for position, rung in enumerate(one.rungs):
            body.append(
                (
                    one.name if position == 0 else "",
                    f"{rung.name} {rung.precision}",
                    rung.source,
                    _size(rung),
                    "here" if rung.missing is None else state,
                )
            )
    headers = ("ladder", "rung", "source", "weights", "")
    align = ("left", "left", "left", "right", "left")
    return tabulate(body, headers=headers, colalign=align, disable_numparse=True, tablefmt="simple")


def _rung(entry: RungEntry, path: Path) -> RungHere:
    try:
        shape = check_model(locate(entry.source, path.parent))
    except LadderError as error:
        return RungHere(entry.name, entry.precision, _words(entry.source), _about_bytes(entry), str(error))
    weight_bytes = predict.weight_bytes(shape, entry.precision)
    return RungHere(entry.name, entry.precision, _words(entry.source), weight_bytes, None)


def _words(source: Source) -> str:
    match source:
        case PackageSource():
            return f"package {source.package}"
        case FolderSource():
            return f"folder {source.folder}"
        case HubSource():
            return f"hub {source.hub}"
        case GgufSource():
            return f"file {source.gguf}"
        case PartsSource():
            return f"packages {source.joined.removesuffix('.gguf')}"


def _about_bytes(entry: RungEntry) -> int | None:
    if isinstance(entry.source, PartsSource):
        return ABOUT_BYTES[entry.precision] * entry.source.parameters
    return None


def _size(rung: RungHere) -> str:
    if rung.weight_bytes is None:
        return ""
    about = "about " if rung.missing else ""
    return about + show_size(rung.weight_bytes)
