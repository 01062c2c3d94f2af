"""Bringing the weights of a ladder to this machine, and checking that they are still what was brought.

A GGUF file, local or joined from parts, is converted once into a folder of the cache. One process at a time
works on a folder: others wait for its lock, and then find the work done. What is interrupted is taken up again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from molt.errors import LadderError, NotFetchedError
from molt.formats import manifest
from molt.models import hub_snapshot, image
from molt.models.fetching import convert, parts
from molt.models.ladder_file import LadderFile, LadderSpec, RungSpec, check_model, read_ladder_file, resolve
from molt.models.loader import find_image, prepare
from molt.models.source import (
    ConvertedSource,
    FolderSource,
    GgufSource,
    HubSource,
    PackageSource,
    PartsSource,
    Source,
    check_current,
    converted_folder,
    gguf_path,
    locate,
)
from molt.paths import cache_folder
from molt.units import show_size

STORED_BYTES = {"fp32": 4, "bf16": 2}
DISK_MARGIN_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchConsole:
    """Where progress is shown: bars for bytes, and lines for what they do not say."""

    progress: Progress

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        """A bar for the time of a ``with`` block; what it gives counts the bytes done."""
        task = self.progress.add_task(what, total=total_bytes)
        try:
            yield lambda count: self.progress.advance(task, count)
        finally:
            self.progress.stop_task(task)

    @contextmanager
    def given_away(self) -> Iterator[None]:
        """Leave the screen to another's progress for the time of a ``with`` block."""
        self.progress.stop()
        try:
            yield
        finally:
            self.progress.start()


def fetch(name_or_path: str) -> None:
    """Bring every model of a ladder that is not here; what is here is checked, and mended if it is not whole.

    Then every rung is prepared, so that loading it is reading or mapping one file.

    Raises ``LadderError`` with one line if a model cannot be had: no network, no room, a source that is not what
    the ladder file says. What was brought until then is kept.
    """
    with _screen() as screen:
        sources = _sources(name_or_path)
        _need_room(_parts_bytes([source for _, source, _ in sources]), cache_folder())
        for place, source, beside in sources:
            try:
                _bring(source, beside, screen)
            except LadderError as error:
                raise LadderError(f"{place}: {error}") from None
            except OSError as error:
                raise LadderError(f"{place}: {_words(error)}") from None
        _prepare(resolve(name_or_path), screen)


def verify(name_or_path: str) -> None:
    """Raise ``LadderError`` unless every model of a ladder is here and byte for byte what was brought."""
    with _screen() as screen:
        for place, source, beside in _sources(name_or_path):
            try:
                _check(source, locate(source, beside), screen)
            except LadderError as error:
                remedy = f"bring it with: molt ladders fetch {name_or_path}"
                raise LadderError(f"{place}: {error}; {remedy}") from None
            screen.say(f"{place}: whole")


def _sources(name_or_path: str) -> list[tuple[str, Source, Path]]:
    """Every source of a ladder once, with the place that names it first and the folder it is relative to."""
    path, file = read_ladder_file(name_or_path)
    return [(f"{path}: rungs ({names})", source, path.parent) for names, source in _by_source(file).items()]


def _by_source(file: LadderFile) -> dict[str, Source]:
    names: dict[Source, list[str]] = {}
    for rung in file.rungs:
        names.setdefault(rung.source, []).append(rung.name)
    return {", ".join(rungs): source for source, rungs in names.items()}


def _check(source: Source, folder: Path, screen: FetchConsole) -> None:
    match source:
        case GgufSource() | PartsSource():
            with screen.bar(f"checking {folder.name}", manifest.total_bytes(folder)) as advance:
                manifest.check_contents(folder, advance)
        case HubSource():
            hub_snapshot.check_contents(folder)
    check_model(folder)


def _bring(source: Source, beside: Path, screen: FetchConsole) -> None:
    match source:
        case PackageSource():
            check_model(locate(source, beside))
            screen.say(f"{source.package}: comes with the package")
        case FolderSource():
            check_model(locate(source, beside))
            screen.say(f"{source.folder}: a folder of yours, nothing to fetch")
        case HubSource():
            _bring_from_hub(source, screen)
        case GgufSource() | PartsSource():
            _bring_converted(source, beside, screen)


def _bring_from_hub(source: HubSource, screen: FetchConsole) -> None:
    try:
        _check(source, hub_snapshot.find(source.hub, source.revision), screen)
    except LadderError as error:
        screen.say(f"{error}; fetching it")
    else:
        screen.say(f"{source.hub}: here, and whole")
        return
    _need_room(hub_snapshot.missing_bytes(source.hub, source.revision), hub_snapshot.cache())
    with screen.given_away():
        folder = hub_snapshot.download(source.hub, source.revision)
    check_model(folder)
    screen.say(f"{source.hub}: ready")


def _bring_converted(source: ConvertedSource, beside: Path, screen: FetchConsole) -> None:
    folder = converted_folder(source, beside)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, screen):
        if (folder / manifest.MANIFEST).is_file():
            try:
                check_current(source, folder)
                _check(source, folder, screen)
            except LadderError as error:
                screen.say(f"{error}; fetching it again")
            else:
                screen.say(f"{folder}: here, and whole")
                return
        if isinstance(source, PartsSource):
            joined = _joined(source, folder.name, screen)
            _convert(joined, source, folder, screen)
            joined.unlink()
        else:
            _convert(_checked(source, beside, screen), source, folder, screen)
        screen.say(f"{folder}: ready")


def _joined(source: PartsSource, name: str, screen: FetchConsole) -> Path:
    target = _download(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with screen.bar(f"fetching {source.joined}", source.bytes) as advance:
        parts.join(source, target, advance)
    with screen.bar(f"checking {source.joined}", source.bytes) as advance:
        parts.check_sha256(source, target, advance)
    return target


def _checked(source: GgufSource, beside: Path, screen: FetchConsole) -> Path:
    path = gguf_path(source, beside)
    if source.sha256 is None:
        return path
    with screen.bar(f"checking {path.name}", path.stat().st_size) as advance:
        found = manifest.sha256(path, advance)
    if found != source.sha256:
        raise LadderError(f"{path}: sha256 {found}, not {source.sha256} as the ladder file has it")
    return path


def _convert(gguf: Path, source: ConvertedSource, folder: Path, screen: FetchConsole) -> None:
    model, shape = convert.begin(gguf, folder)
    total = image.image_bytes(shape, source.stored)
    _need_room(total, folder)
    with screen.bar(f"converting {folder.name}", total) as advance:
        convert.write_weights(model, shape, folder, source.stored, advance)
    with screen.bar(f"recording {folder.name}", total) as advance:
        convert.seal(folder, advance)
    check_model(folder)


def _parts_bytes(sources: list[Source]) -> int:
    """The most that models in parts will take on the disk, one after the other, beside what they take now.

    A joined file goes when it is converted; a wheel and what pip unpacks beside it go when its piece is joined.
    """
    peak = held = 0
    for source in sources:
        if not isinstance(source, PartsSource) or _is_here(source):
            continue
        missing = parts.missing_bytes(source, _download(converted_folder(source, Path()).name))
        wheels = 2 * source.bytes // len(parts.pieces(source)) if missing else 0
        converted = STORED_BYTES[source.stored] * source.parameters
        peak = max(peak, held + missing + max(wheels, converted))
        held += converted
    return peak


def _is_here(source: PartsSource) -> bool:
    try:
        locate(source, Path())
    except NotFetchedError:
        return False
    return True


def _download(name: str) -> Path:
    """Where the parts of a model are joined, until it is converted."""
    return cache_folder() / "downloads" / f"{name}.gguf"


def _prepare(ladder: LadderSpec, screen: FetchConsole) -> None:
    """Write the images of rungs whose precision is not the one their weights are stored in."""
    missing = [rung for rung in ladder.rungs if not _is_prepared(rung)]
    try:
        _need_room(sum(image.image_bytes(rung.shape, rung.precision) for rung in missing), cache_folder())
        for rung in missing:
            screen.say(f"{ladder.ladder.name}: preparing {rung.name} at {rung.precision}")
            prepare(rung)
    except OSError as error:
        raise LadderError(f"{ladder.path}: {_words(error)}") from None


def _is_prepared(rung: RungSpec) -> bool:
    try:
        return find_image(rung) is not None
    except LadderError:  # a damaged image is made again
        return False


def _words(error: OSError) -> str:
    return f"{error.filename or 'the cache'}: {error.strerror or error}"


def _need_room(wanted_bytes: int, folder: Path) -> None:
    """Raise ``LadderError`` unless the disk of ``folder`` has room for so much more, and a margin."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    wanted_bytes += DISK_MARGIN_BYTES if wanted_bytes else 0
    if (free := shutil.disk_usage(there).free) < wanted_bytes:
        raise LadderError(
            f"{there}: {show_size(wanted_bytes)} are needed on this disk, {show_size(free)} are free"
        )


@contextmanager
def _alone(folder: Path, screen: FetchConsole) -> Iterator[None]:
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        screen.say(f"{folder.name}: another process is fetching it; waiting for that to end")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _screen() -> Iterator[FetchConsole]:
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16),
        DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield FetchConsole(progress)
