"""Ladder files: which models are the rungs, what each weighs, and which routes join them.

``resolve`` reads headers and settings only: it needs no tensor library and takes milliseconds. Every number
of the resulting ``Ladder`` is exact; ``molt.models.loader`` checks the weights against it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from molt.core.ladder import Ladder, Route, RouteKind, Rung
from molt.errors import InputError, LadderError, NotFetchedError
from molt.formats.weights_file import Stored, read_header, stored_tensors
from molt.formats.yaml_file import StrictModel, load, nearest, show, validate
from molt.models import image, predict
from molt.models.model_config import ModelShape, read_shape
from molt.models.source import FolderSource, PackageSource, Source, locate, package_folder
from molt.models.tokenizer_file import (
    difference,
    find_tokenizer,
    read_tokens,
    same_bytes,
    vocabulary_size,
)

Precision = Literal["fp32", "bf16", "int8"]
Residency = Literal["anonymous", "mapped"]
STORED_DTYPES = ("F32", "BF16", "F16")
MAP_SUFFIX = ".safetensors"
NAME_PATTERN = r"^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$"  # so that "--" and "->" can stand between two names


class RungEntry(StrictModel):
    """One rung in a ladder file."""

    name: str = Field(pattern=NAME_PATTERN)
    source: Source
    precision: Precision
    residency: Residency = "anonymous"


class LadderFile(StrictModel):
    """The schema of a ladder file; rungs from largest to smallest."""

    name: str = Field(pattern=NAME_PATTERN)
    rungs: tuple[RungEntry, ...] = Field(min_length=1)
    maps: PackageSource | FolderSource | None = None


@dataclass(frozen=True, slots=True)
class RungSpec:
    """What the loader needs of one rung; ``weights`` names the first rung with the same parameters.

    ``residency``: memory of the process, or pages of a file that the system can drop by itself.
    """

    name: str
    weights: str
    folder: Path
    precision: Precision
    shape: ModelShape
    residency: Residency = "anonymous"


@dataclass(frozen=True, slots=True)
class LadderSpec:
    """A ladder with the places of its files.

    ``vocabulary`` counts the tokenizer's entries; a model's logits beyond it belong to padding. ``maps`` is
    keyed by the weights of source and destination, so one map serves every precision of both.
    """

    path: Path
    ladder: Ladder
    rungs: tuple[RungSpec, ...]
    tokenizer: Path
    vocabulary: int
    maps: Mapping[tuple[str, str], Path]

    def rung(self, name: str) -> RungSpec:
        """The rung of that name; ``KeyError`` if the ladder has none."""
        return self.rungs[self.ladder.index(name)]


def resolve(name_or_path: str | Path) -> LadderSpec:
    """The ladder of a name in ``scenarios/ladders``, or of a file.

    Raises ``LadderError`` with one line that names the ladder file, the place and the value.
    """
    path, file = read_ladder_file(name_or_path)
    rungs = _rungs(file, path)
    tokenizer, vocabulary = _shared_tokenizer(rungs, path)
    maps = _maps(file, rungs, path)
    try:
        routes = _routes(rungs, maps)
    except LadderError as error:
        raise LadderError(f"{path}: maps: {error}") from None
    ladder = Ladder(file.name, tuple(_core_rung(rung) for rung in rungs), routes)
    _check_falling(ladder, path)
    return LadderSpec(path, ladder, rungs, tokenizer, vocabulary, maps)


def read_ladder_file(name_or_path: str | Path) -> tuple[Path, LadderFile]:
    """The path and the content of a ladder file; whether its models are here is not looked at.

    Raises ``LadderError`` as ``resolve`` does.
    """
    path = _ladder_path(name_or_path)
    try:
        return path, validate(LadderFile, load(path), path)
    except InputError as error:
        raise LadderError(str(error)) from None


def ladder_names() -> tuple[str, ...]:
    """The names of the ladders that ship with Molt, in order."""
    return tuple(sorted(path.stem for path in _shipped().glob("*.yaml")))


def _shipped() -> Path:
    return package_folder("scenarios") / "ladders"


def _ladder_path(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) != 1:
        return path
    if name_or_path in ladder_names():
        return _shipped() / f"{name_or_path}.yaml"
    known = nearest(name_or_path, ladder_names())
    raise LadderError(f"ladder: no ladder is named {show(name_or_path)}; {known}")


def argument(path: Path) -> str:
    """The word for a ladder on the command line: the name of a shipped one, the file of any other."""
    return path.stem if path.parent == _shipped() else shlex.quote(str(path))


# --- rungs ---


def _rungs(file: LadderFile, path: Path) -> tuple[RungSpec, ...]:
    rungs: list[RungSpec] = []
    first_with: dict[Path, RungSpec] = {}
    for position, entry in enumerate(file.rungs):
        place = f"{path}: rungs[{position}] ({entry.name})"
        if entry.name in {rung.name for rung in rungs}:
            raise LadderError(f"{path}: rungs[{position}].name: {show(entry.name)} a second time")
        try:
            folder = locate(entry.source, path.parent)
            twin = first_with.get(folder)
            shape = twin.shape if twin else check_model(folder)
        except NotFetchedError as error:
            remedy = f"bring it with: molt ladders fetch {argument(path)}"
            raise NotFetchedError(f"{place}: {error}; {remedy}") from None
        except LadderError as error:
            raise LadderError(f"{place}: {error}") from None
        weights = twin.weights if twin else entry.name
        rung = RungSpec(entry.name, weights, folder, entry.precision, shape, entry.residency)
        first_with.setdefault(folder, rung)
        rungs.append(rung)
    return tuple(rungs)


def check_model(folder: Path) -> ModelShape:
    """The shape of a model whose stored tensors are exactly those the shape means; else ``LadderError``."""
    shape = read_shape(folder)
    check_stored(shape, stored_tensors(folder), folder)
    return shape


def check_stored(shape: ModelShape, stored: Mapping[str, Stored], folder: Path) -> None:
    """Raise ``LadderError`` unless ``stored`` has every parameter of ``shape``, in its shape, and no other.

    A stored copy of a tied head and recomputed buffers (RoPE frequencies) are tolerated.
    """
    wanted = image.parameters(shape)
    for name, extents in wanted.items():
        if name not in stored:
            raise LadderError(f"{folder}: the weights lack {name}")
        found = stored[name]
        if found.shape != extents:
            raise LadderError(f"{found.path}: {name} is {found.shape}, config.json means {extents}")
        if found.dtype not in STORED_DTYPES:
            raise LadderError(f"{found.path}: {name} is {found.dtype}; valid: {', '.join(STORED_DTYPES)}")
    for name in sorted(stored.keys() - wanted.keys()):
        is_tied_head = shape.tied and name == "lm_head.weight"
        if not is_tied_head and not name.endswith("rotary_emb.inv_freq"):
            raise LadderError(
                f"{stored[name].path}: {name} is no parameter of a {shape.family} of this shape"
            )


def _core_rung(rung: RungSpec) -> Rung:
    return Rung(
        name=rung.name,
        weights=rung.weights,
        precision=rung.precision,
        weight_bytes=predict.weight_bytes(rung.shape, rung.precision),
        scratch_bytes=predict.scratch_bytes(rung.shape, rung.precision),
        kv=predict.kv_layout(rung.shape),
        max_positions=rung.shape.positions,
        mapped=rung.residency == "mapped",
    )


def _check_falling(ladder: Ladder, path: Path) -> None:
    for position, (upper, lower) in enumerate(zip(ladder.rungs, ladder.rungs[1:], strict=False), start=1):
        if lower.weight_bytes >= upper.weight_bytes:
            raise LadderError(
                f"{path}: rungs[{position}] ({lower.name}): {lower.weight_bytes} bytes of weights, not fewer "
                f"than the {upper.weight_bytes} of {upper.name}; rungs stand from largest to smallest"
            )


# --- tokenizer ---


def _shared_tokenizer(rungs: tuple[RungSpec, ...], path: Path) -> tuple[Path, int]:
    """The tokenizer of the first rung and its entries, after every other was found to be the same."""
    first, size = None, 0
    for position, rung in enumerate(rungs):
        place = f"{path}: rungs[{position}] ({rung.name})"
        try:
            tokenizer = find_tokenizer(rung.folder)
            if first is None:
                first, size = tokenizer, vocabulary_size(tokenizer)
            differs = None if same_bytes(first, tokenizer) else _difference(first, tokenizer)
        except LadderError as error:
            raise LadderError(f"{place}: {error}") from None
        if differs:
            raise LadderError(f"{place}: not the tokenizer of {rungs[0].name}: {differs} in {tokenizer}")
        if size > rung.shape.vocab:
            raise LadderError(f"{place}: vocab_size: {rung.shape.vocab}, but {tokenizer} has {size} entries")
    assert first is not None, "a ladder has at least one rung"
    return first, size


def _difference(ours: Path, theirs: Path) -> str | None:
    return difference(read_tokens(ours), read_tokens(theirs))


# --- routes ---


def _maps(file: LadderFile, rungs: tuple[RungSpec, ...], path: Path) -> dict[tuple[str, str], Path]:
    """The fitted maps there are, by weights. A folder that does not exist yet has none."""
    if file.maps is None:
        return {}
    try:
        folder = locate(file.maps, path.parent)
    except LadderError as error:
        raise LadderError(f"{path}: maps: {error}") from None
    weights = dict.fromkeys(rung.weights for rung in rungs)
    pairs = {
        (source, dest): folder / f"{source}--{dest}{MAP_SUFFIX}" for source in weights for dest in weights
    }
    return {pair: file for pair, file in pairs.items() if pair[0] != pair[1] and file.is_file()}


def _routes(rungs: tuple[RungSpec, ...], maps: Mapping[tuple[str, str], Path]) -> tuple[Route, ...]:
    map_bytes = {pair: predict.map_bytes(read_header(file)) for pair, file in maps.items()}
    routes: list[Route] = []
    for source in rungs:
        for dest in rungs:
            pair = (source.weights, dest.weights)
            if source.name != dest.name and source.weights == dest.weights:
                routes.append(Route(source.name, dest.name, RouteKind.CARRY))
            elif pair in map_bytes:
                routes.append(Route(source.name, dest.name, RouteKind.PROJECT, map_bytes[pair]))
    return tuple(routes)
