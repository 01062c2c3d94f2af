"""Models on the hub: whether a pinned one is in the local cache, and bringing it there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from molt.errors import LadderError, NotFetchedError
from molt.formats.manifest import sha256
from molt.formats.weights_file import weight_files

SHA256_DIGITS = 64
FILES = ("*.safetensors", "*.json", "*.jinja")


def find(name: str, revision: str) -> Path:
    """The local snapshot of a model; nothing is downloaded.

    Raises ``NotFetchedError`` if there is none, or only a part of it.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    where = _where(name, revision)
    try:
        folder = _snapshot(name, revision, local_files_only=True)
    except LocalEntryNotFoundError:
        raise NotFetchedError(f"{where}: not in the local cache") from None
    if reason := _reason_incomplete(folder):
        raise NotFetchedError(f"{where}: incomplete in the local cache ({reason})")
    return folder


def missing_bytes(name: str, revision: str) -> int:
    """Bytes still to be downloaded for a model; ``LadderError`` as in ``download``."""
    files: Any = _asked(name, revision, dry_run=True)
    return sum(file.file_size or 0 for file in files if file.will_download)


def download(name: str, revision: str) -> Path:
    """The local snapshot of a model, what is missing of it downloaded first, with the hub client's own progress.

    Raises ``LadderError`` if the hub cannot be reached, or does not give this model.
    """
    folder = Path(_asked(name, revision))
    if reason := _reason_incomplete(folder):
        raise LadderError(f"{_where(name, revision)}: the hub has no whole model there ({reason})")
    return folder


def check_contents(folder: Path) -> None:
    """Raise ``LadderError`` unless the weights of a snapshot have the sha256 by which the hub's cache names them.

    An altered file is removed from the cache, so that ``download`` brings it again.
    """
    for path in weight_files(folder):
        blob = path.resolve()
        if len(blob.name) == SHA256_DIGITS and (found := sha256(blob)) != blob.name:
            path.unlink()
            blob.unlink(missing_ok=True)
            raise LadderError(f"{path}: altered: sha256 {found[:16]}, the hub has {blob.name[:16]}")


def cache() -> Path:
    """The folder of the hub client's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _asked(name: str, revision: str, **options: Any) -> Any:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    where = _where(name, revision)
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it logs every further try; the last one is reported here
    try:
        return _snapshot(name, revision, **options)
    except GatedRepoError:
        raise LadderError(
            f"{where}: its licence is to be accepted on the hub first, and then: hf auth login"
        ) from None
    except RepositoryNotFoundError:
        raise LadderError(f"{where}: the hub has no such model, or it is not public") from None
    except RevisionNotFoundError:
        raise LadderError(f"{where}: the hub has no such revision") from None
    except Exception as error:  # whatever the network stack raises
        reason = type(_innermost(error)).__name__
        raise LadderError(
            f"{where}: not in the local cache, and the hub cannot be reached ({reason})"
        ) from None
    finally:
        logger.setLevel(level)


def _innermost(error: BaseException) -> BaseException:
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


def _snapshot(name: str, revision: str, **options: Any) -> Any:
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        name,
        revision=revision,
        allow_patterns=list(FILES),
        ignore_patterns=["*/*"],  # copies of the weights in other layouts
        **options,
    )
    return Path(found) if isinstance(found, str) else found


def _where(name: str, revision: str) -> str:
    return f"hub model {name} at {revision[:12]}"


def _reason_incomplete(folder: Path) -> str | None:
    if not (folder / "config.json").is_file():
        return "config.json is missing"
    try:
        weight_files(folder)
    except LadderError as error:
        return str(error)
    return None
