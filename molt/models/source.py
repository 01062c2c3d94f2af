"""Where a rung's files are: inside an installed package, in a folder, or on a model hub."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field

from molt.errors import LadderError
from molt.models.weights_file import weight_files
from molt.yaml_file import StrictModel

NAME_PATTERN = r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$"
HUB_FILES = ("*.safetensors", "*.json")


class PackageSource(StrictModel):
    """A folder of data inside an installed package, which is not imported."""

    package: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
    path: str = Field(min_length=1)


class FolderSource(StrictModel):
    """A folder, relative to the file that names it."""

    folder: str = Field(min_length=1)


class HubSource(StrictModel):
    """A model on the hub, pinned to one commit so that bytes and behaviour cannot change underneath."""

    hub: str = Field(pattern=NAME_PATTERN)
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", description="full commit hash, 40 hex digits")]


Source = PackageSource | FolderSource | HubSource


def locate(source: Source, beside: Path) -> Path:
    """The folder of a source; ``beside`` is the folder of the file that names it.

    Raises ``LadderError`` if the package is not installed or the hub cannot be reached. Whether the folder
    exists is for its reader to say.
    """
    match source:
        case PackageSource():
            return package_folder(source.package) / _inside(source.path)
        case FolderSource():
            return (beside / Path(source.folder).expanduser()).resolve()
        case HubSource():
            return _hub_folder(source)


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


def _hub_folder(source: HubSource) -> Path:
    """The local snapshot of a hub model, downloaded first if it is not complete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    def snapshot(*, local_files_only: bool) -> Path:
        return Path(
            snapshot_download(
                source.hub,
                revision=source.revision,
                allow_patterns=list(HUB_FILES),
                ignore_patterns=["*/*"],  # copies of the weights in other layouts
                local_files_only=local_files_only,
            )
        )

    where = f"hub model {source.hub} at {source.revision[:12]}"
    try:
        folder = snapshot(local_files_only=True)
        if _is_complete(folder):
            return folder
    except LocalEntryNotFoundError:
        pass
    try:
        folder = snapshot(local_files_only=False)
    except RepositoryNotFoundError:
        raise LadderError(f"{where}: the hub has no such model, or it is not public") from None
    except RevisionNotFoundError:
        raise LadderError(f"{where}: the hub has no such revision") from None
    except Exception as error:  # whatever the network stack raises
        reason = type(error).__name__
        raise LadderError(
            f"{where}: not in the local cache, and the hub cannot be reached ({reason})"
        ) from None
    if not _is_complete(folder):
        raise LadderError(
            f"{where}: config.json or safetensors are missing, in the local cache and on the hub"
        )
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and bool(weight_files(folder))
    except LadderError:
        return False
