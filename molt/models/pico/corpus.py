"""Free English documentation from Debian packages, as plain-text documents.

Rules of this module:

- A document is `(name, text)`; its name is `package/path`, and the split depends on the name alone.
- Markup is dropped, words are kept; paragraphs and preformatted blocks keep their line breaks.
- A long paragraph belongs to the first document that has it. It is removed from every later one, so no long
  paragraph of a held-out document occurs in a training document.
- The same packages give the same corpus, byte for byte; `manifest.json` names their versions and licences.

Splits: `train` and `heldout` are disjoint and together everything; `fit` is a fixed tenth of `train`, for
learning the maps between rungs.

    python -m molt.models.pico.corpus            # download, extract, clean, write
    python -m molt.models.pico.corpus --ship     # and renew the excerpts and the manifest in the package
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from molt.models.pico import WEIGHTS
from molt.models.pico.markup import html_to_text, normalise, pod_to_text
from molt.models.pico.sources import SOURCES, Source
from molt.paths import cache_folder, find_cache_folder

Split = Literal["train", "heldout", "fit"]
Document = tuple[str, str]

HELDOUT_FRACTION = 0.04
FIT_FRACTION = 0.10
DOCUMENT_CHARS_MIN = 500
PARAGRAPH_CHARS_SHARED_MAX = 100
ASCII_FRACTION_MIN = 0.97
WORD_FRACTION_MIN = 0.70
DICTIONARY_PART_CHARS = 8_000

SHIPPED_PACKAGES = ("debian-handbook", "dict-jargon", "postgresql-doc-15", "apache2-doc")
SHIPPED_DOCUMENT_BYTES = range(2_000, 24_000)
SHIPPED_PACKAGE_BYTES_MAX = 48_000


# -------------------------------------------------------------------------------------- files to documents


def read_text(path: Path) -> str:
    """A text file, unpacked if its suffix says so; bytes that are not UTF-8 are dropped."""
    raw = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", errors="ignore")


def _parts(text: str, chars: int) -> Iterator[str]:
    """`text` cut at empty lines into parts of at least `chars` characters (the last may be shorter)."""
    part, size = [], 0
    for paragraph in text.split("\n\n"):
        part.append(paragraph)
        size += len(paragraph)
        if size >= chars:
            yield "\n\n".join(part)
            part, size = [], 0
    if part:
        yield "\n\n".join(part)


def _source_documents(source: Source, tree: Path) -> Iterator[Document]:
    root = tree / source.package / source.root
    for path in sorted(root.glob(source.pattern)):
        below = path.relative_to(root).as_posix()
        if path.is_symlink() or not path.is_file() or re.search(source.exclude, below):
            continue
        name, raw = f"{source.package}/{below}", read_text(path)
        match source.kind:
            case "html":
                yield name, html_to_text(raw)
            case "pod":
                yield name, pod_to_text(raw)
            case "text":
                yield name, normalise(raw)
            case "dictionary":
                for index, part in enumerate(_parts(normalise(raw), DICTIONARY_PART_CHARS)):
                    yield f"{name}/{index:04d}", normalise(part)


def is_prose(text: str) -> bool:
    """Whether a text is long enough, English by its letters, and mostly words rather than tables."""
    if len(text) < DOCUMENT_CHARS_MIN:
        return False
    ascii_count = sum(c < "\x7f" for c in text)
    word_count = sum(c.isalpha() or c == " " for c in text)
    return ascii_count / len(text) >= ASCII_FRACTION_MIN and word_count / len(text) >= WORD_FRACTION_MIN


def deduplicate(documents: Iterable[Document]) -> Iterator[Document]:
    """Drops every paragraph longer than `PARAGRAPH_CHARS_SHARED_MAX` that an earlier paragraph equals."""
    seen: set[bytes] = set()
    for name, text in documents:
        kept = []
        for paragraph in text.strip("\n").split("\n\n"):
            if len(paragraph) > PARAGRAPH_CHARS_SHARED_MAX:
                digest = hashlib.sha256(" ".join(paragraph.split()).encode()).digest()[:12]
                if digest in seen:
                    continue
                seen.add(digest)
            kept.append(paragraph)
        yield name, "\n\n".join(kept) + "\n"


# -------------------------------------------------------------------------------------------------- splits


def _unit_hash(salt: str, name: str) -> float:
    """A number in [0, 1) that depends on `salt` and `name` alone."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{name}".encode()).digest()[:6], "big") / 2**48


def in_split(name: str, split: Split) -> bool:
    """Whether the document of this name belongs to `split`."""
    heldout = _unit_hash("heldout", name) < HELDOUT_FRACTION
    match split:
        case "heldout":
            return heldout
        case "train":
            return not heldout
        case "fit":
            return not heldout and _unit_hash("fit", name) < FIT_FRACTION


def corpus_folder() -> Path:
    """Where the packages and the corpus are kept, if nothing else is said."""
    return cache_folder() / "corpus"


def corpus_is_here() -> bool:
    """Whether the corpus was built on this machine."""
    return find_cache_folder() is not None and os.path.isfile(corpus_folder() / "documents.jsonl")


def documents(split: Split, folder: Path | None = None) -> Iterator[Document]:
    """The documents of one split as `(name, text)`, in the order of the corpus.

    Raises FileNotFoundError, naming the command that builds the corpus, if `folder` holds none.
    """
    folder = folder or corpus_folder()
    path = folder / "documents.jsonl"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no corpus here; build it with: python -m molt.models.pico.corpus --cache {folder}"
        )
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if in_split(record["name"], split):
                yield record["name"], record["text"]


# ------------------------------------------------------------------------------------------------ building


@dataclass(frozen=True)
class ManifestEntry:
    """What one package gave: sizes are UTF-8 bytes of cleaned text; `sha256` is that of the package file."""

    package: str
    version: str
    licence: str
    sha256: str
    documents: int
    bytes: int
    heldout_documents: int
    heldout_bytes: int


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)  # noqa: S603 (fixed programs, our arguments)


def _package_file(package: str, folder: Path) -> Path:
    found = sorted(folder.glob(f"{package}_*.deb"))
    if not found:
        _run(["apt-get", "download", package], folder)
        found = sorted(folder.glob(f"{package}_*.deb"))
    return found[-1]


def _unpack(package_file: Path, target: Path) -> None:
    if not target.is_dir():
        target.mkdir(parents=True)
        _run(["dpkg-deb", "-x", str(package_file.resolve()), "."], target)


def _entry(source: Source, package_file: Path, found: list[Document]) -> ManifestEntry:
    sizes = {name: len(text.encode()) for name, text in found}
    held = [size for name, size in sizes.items() if in_split(name, "heldout")]
    return ManifestEntry(
        package=source.package,
        version=package_file.name.split("_")[1].replace("%3a", ":"),
        licence=source.licence,
        sha256=hashlib.sha256(package_file.read_bytes()).hexdigest(),
        documents=len(sizes),
        bytes=sum(sizes.values()),
        heldout_documents=len(held),
        heldout_bytes=sum(held),
    )


def build(folder: Path | None = None, sources: tuple[Source, ...] = SOURCES) -> list[ManifestEntry]:
    """Downloads and cleans every source; writes `documents.jsonl` and `manifest.json` into `folder`."""
    folder = folder or corpus_folder()
    packages, tree = folder / "deb", folder / "tree"
    packages.mkdir(parents=True, exist_ok=True)
    files = {source.package: _package_file(source.package, packages) for source in sources}
    for package, file in files.items():
        _unpack(file, tree / package)
    raw = (document for source in sources for document in _source_documents(source, tree))
    prose = (document for document in raw if is_prose(document[1]))
    kept = [document for document in deduplicate(prose) if len(document[1]) >= DOCUMENT_CHARS_MIN]
    entries = [
        _entry(source, files[source.package], [d for d in kept if d[0].startswith(source.package + "/")])
        for source in sources
    ]
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(
            json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n" for name, text in kept
        )
    (folder / "manifest.json").write_text(json.dumps([asdict(entry) for entry in entries], indent=1) + "\n")
    return entries


def select_shipped(found: Iterable[Document]) -> list[Document]:
    """The held-out documents that ship with the package: whole ones, of middling size."""
    chosen, room = [], dict.fromkeys(SHIPPED_PACKAGES, SHIPPED_PACKAGE_BYTES_MAX)
    for name, text in found:
        package, size = name.split("/")[0], len(text.encode())
        if size in SHIPPED_DOCUMENT_BYTES and size <= room.get(package, 0):
            room[package] -= size
            chosen.append((name, text))
    return chosen


def ship(folder: Path | None = None, weights: Path = WEIGHTS) -> None:
    """Writes the excerpts, with licences, and the manifest into the package's folder `weights`."""
    licences = {source.package: source.licence for source in SOURCES}
    records = [
        {"name": name, "licence": licences[name.split("/")[0]], "text": text}
        for name, text in select_shipped(documents("heldout", folder))
    ]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (weights / "heldout.jsonl").write_text(lines, encoding="utf-8")
    (weights / "corpus.json").write_bytes(((folder or corpus_folder()) / "manifest.json").read_bytes())


def shipped_documents(weights: Path = WEIGHTS) -> Iterator[Document]:
    """The held-out excerpts of the package as `(name, text)`; no corpus is needed."""
    with (weights / "heldout.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield record["name"], record["text"]


def main() -> None:
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m molt.models.pico.corpus", description=summary)
    parser.add_argument(
        "--cache", type=Path, help="folder of packages and corpus (default: corpus/ in the folder of caches)"
    )
    parser.add_argument("--ship", action="store_true", help="renew the package's excerpts and manifest")
    options = parser.parse_args()
    for entry in build(options.cache):
        size = f"{entry.documents:5} documents {entry.bytes:10,} bytes"
        print(f"{entry.package:26} {entry.version:24} {size}  {entry.licence}")
    if options.ship:
        ship(options.cache)


if __name__ == "__main__":
    main()
