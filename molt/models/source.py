"""Where a rung's files are: in an installed package, a folder, on a model hub, or converted from a GGUF file.

``locate`` only looks, in milliseconds; ``molt.models.fetching.fetch`` is what fetches, when it is asked to.
"""

from __future__ import annotations

import hashlib
import os
import re
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from molt.errors import LadderError, NotFetchedError
from molt.formats import manifest
from molt.formats.yaml_file import StrictModel, show
from molt.models import hub_snapshot
from molt.paths import cache_folder

HUB_NAME_PATTERN = r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$"
DISTRIBUTION_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
VERSION_PATTERN = r"^[0-9]+(\.[0-9]+)*([A-Za-z0-9.+!-]*)$"
PARTS_MAX = 1000
SHA256_SHOWN = 16
SAME_SINCE_FORMAT_1 = frozenset(
    {
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",  # qwen2.5-coder-1.5b-instruct, Q4_K_M
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",  # qwen2.5-coder-0.5b-instruct, Q4_K_M
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",  # smollm2-135m-instruct, Q4_1
    }
)
"""GGUF files of the shipped ladders: what format 1 of a conversion wrote of them is what is written today."""
_RANGE = re.compile(r"\{([0-9]{1,4})\.\.([0-9]{1,4})\}")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="sha256, 64 hex digits")]
StoredPrecision = Literal["fp32", "bf16"]


class PackageSource(StrictModel):
    """A folder of data inside an installed package, which is not imported."""

    package: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
    path: str = Field(min_length=1)


class FolderSource(StrictModel):
    """A folder, relative to the file that names it."""

    folder: str = Field(min_length=1)


class HubSource(StrictModel):
    """A model on the hub, pinned to one commit so that bytes and behaviour cannot change underneath."""

    hub: str = Field(pattern=HUB_NAME_PATTERN)
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", description="full commit hash, 40 hex digits")]


class GgufSource(StrictModel):
    """A GGUF file, relative to the file that names it; converted once, to safetensors of type ``stored``."""

    gguf: str = Field(min_length=1)
    sha256: Sha256 | None = None
    stored: StoredPrecision = "fp32"


class PackedParts(StrictModel):
    """The pieces of a file in packages of an index; the packages are neither installed nor imported.

    ``packages`` is a list, or one name with a range (``some-part{1..22}``). ``path`` is that of the piece in a
    wheel; ``{N}`` in it is the number of the package, counted from 1, and ``{NN}`` the same with two digits.
    """

    packages: str | tuple[str, ...]
    version: str = Field(pattern=VERSION_PATTERN)
    path: str = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_sound(self) -> Self:
        names = packages(self)
        if not 1 <= len(names) <= PARTS_MAX:
            raise ValueError(
                f"packages: {show(self.packages)}: {len(names)} packages; 1 to {PARTS_MAX} are read"
            )
        if wrong := [name for name in names if not re.fullmatch(DISTRIBUTION_PATTERN, name)]:
            raise ValueError(f"packages: {show(wrong[0])} is no name of a package")
        return self


class PartsSource(StrictModel):
    """A GGUF file in pieces: ``joined`` names the whole, whose size and sha256 are checked; then as ``GgufSource``.

    ``parameters`` (a tied head counted once) is how much the converted model will take, known before it is there.
    """

    parts: PackedParts
    joined: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.gguf$")
    bytes: int = Field(gt=0)
    sha256: Sha256
    parameters: int = Field(gt=0)
    stored: StoredPrecision = "fp32"


ConvertedSource = GgufSource | PartsSource
Source = PackageSource | FolderSource | HubSource | GgufSource | PartsSource


def locate(source: Source, beside: Path) -> Path:
    """The folder of a source; ``beside`` is the folder of the file that names it.

    Raises ``NotFetchedError`` if the source is known but its files are not here, or not whole, and
    ``LadderError`` if it cannot be. Whether a package's or a plain folder exists is for its reader to say.
    """
    match source:
        case PackageSource():
            return package_folder(source.package) / _inside(source.path)
        case FolderSource():
            return (beside / _at_home(source.folder)).resolve()
        case HubSource():
            return hub_snapshot.find(source.hub, source.revision)
        case GgufSource() | PartsSource():
            folder = converted_folder(source, beside)
            try:
                manifest.check_sizes(folder)
                check_current(source, folder)
            except (LadderError, OSError) as error:
                reason = f" ({error})" if os.path.exists(folder / manifest.MANIFEST) else ""
                raise NotFetchedError(f"{_name(source)}: not fetched yet{reason}") from None
            return folder


def _at_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise LadderError(f"{path}: no home folder is known") from None


def check_current(source: ConvertedSource, folder: Path) -> None:
    """Raise ``LadderError`` if an earlier version converted the model and would have read its file in another way."""
    if not manifest.is_current(folder) and source.sha256 not in SAME_SINCE_FORMAT_1:
        raise LadderError(
            "converted by an earlier version of Molt, which read some settings of such files otherwise"
        )


def converted_folder(source: ConvertedSource, beside: Path) -> Path:
    """Where the converted model of a source is, or will be.

    The name has the sha256 of the file it is made from, so another file is another folder. A local file whose
    sha256 is not given is known by its path, size and time instead. Raises ``LadderError`` if that is missing.
    """
    match source:
        case GgufSource(sha256=None):
            key = _stat_key(gguf_path(source, beside))
        case _:
            key = str(source.sha256)
    suffix = "" if source.stored == "fp32" else f"-{source.stored}"
    return cache_folder() / "models" / f"{_name(source).removesuffix('.gguf')}-{key[:SHA256_SHOWN]}{suffix}"


def gguf_path(source: GgufSource, beside: Path) -> Path:
    """The path of a local GGUF file."""
    return (beside / _at_home(source.gguf)).resolve()


def packages(parts: PackedParts) -> tuple[str, ...]:
    """The packages in order, a range written out."""
    if not isinstance(parts.packages, str):
        return parts.packages
    if not (found := _RANGE.search(parts.packages)):
        return (parts.packages,)
    first, last = map(int, found.groups())
    before, after = parts.packages[: found.start()], parts.packages[found.end() :]
    return tuple(f"{before}{number}{after}" for number in range(first, last + 1))


def path_in_wheel(parts: PackedParts, number: int) -> str:
    """The path of the piece in the wheel of the package of that number, counted from 1."""
    return parts.path.replace("{NN}", f"{number:02d}").replace("{N}", str(number))


def _name(source: ConvertedSource) -> str:
    return source.joined if isinstance(source, PartsSource) else Path(source.gguf).name


def _stat_key(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError as error:
        raise LadderError(f"{path}: {error.strerror or error}") from None
    return hashlib.sha256(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()


def package_folder(package: str) -> Path:
    """The folder of an installed package; nothing is imported to find it.

    Raises ``LadderError`` if there is no such package, or if it is not unpacked on disk.
    """
    top, *rest = package.split(".")
    spec = find_spec(top)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location, *rest)
        if folder.is_dir():
            return folder
    raise LadderError(f"package {package!r} is not installed")


def _inside(path: str) -> PurePosixPath:
    inner = PurePosixPath(path)
    if inner.is_absolute() or ".." in inner.parts:
        raise LadderError(f"path {path!r} leaves the package")
    return inner
