"""What a table is made with: the rungs of a ladder in memory, its maps, its routes, and documents."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import torch

from molt.core.ladder import Route, RouteKind
from molt.errors import InputError
from molt.evals.result import Gate, MapFacts, Origin, Texts
from molt.fitting.collect import folder_texts
from molt.formats import provenance
from molt.formats.yaml_file import nearest, show
from molt.kv import map_file
from molt.kv.loaded_rung import LoadedRung, as_loaded_rung
from molt.kv.map_file import MapCard, binding
from molt.kv.project import KVMap
from molt.kv.transplant import Islands
from molt.models.ladder_file import LadderSpec, RungSpec, argument, resolve
from molt.models.loader import load
from molt.models.pico.corpus import Document, shipped_documents
from molt.models.tokenizer_file import read_tokenizer

MARKS = (1, 16, 64, 256)
"""Tokens after the switch at which figures are given by position."""

PRECISION_ORDER = ("fp32", "bf16", "int8")
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def quietly(what: str, done: int, total: int) -> None:
    """No progress."""


@dataclass(frozen=True, slots=True)
class JudgedText:
    """One document at the point of a switch.

    ``known`` is what both rungs have prefilled and the token that is fed next, ``next`` the rest of the document.
    """

    name: str
    known: tuple[int, ...]
    next: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a table is made; ``documents`` are at most that many."""

    documents: int = 32
    context: int = 256
    continuation: int = 64
    seed: int = 0
    islands: Islands = field(default_factory=Islands)

    @property
    def marks(self) -> tuple[int, ...]:
        """Those of ``MARKS`` that the continuation reaches."""
        return tuple(mark for mark in MARKS if mark <= self.continuation)


@dataclass(slots=True)
class LoadedLadder:
    """A ladder in memory: rungs and maps are loaded at first use, and stay.

    ``kept`` has all else that two routes can share.
    """

    spec: LadderSpec
    kept: dict[object, object] = field(default_factory=dict)
    _rungs: dict[str, LoadedRung] = field(default_factory=dict)
    _maps: dict[tuple[str, str], KVMap] = field(default_factory=dict)
    _cards: dict[tuple[str, str], MapCard] = field(default_factory=dict)

    def rung(self, name: str) -> LoadedRung:
        """A rung in memory."""
        if name not in self._rungs:
            self._rungs[name] = as_loaded_rung(load(self.spec.rung(name)).decoder, self.spec, name)
        return self._rungs[name]

    def kv_map(self, route: Route) -> KVMap:
        """The map of a projecting route, in memory."""
        pair = self._pair(route)
        if pair not in self._maps:
            self._cards[pair] = map_file.read_card(self.spec.maps[pair])
            self._maps[pair] = self.load_map(route)
        return self._maps[pair]

    def load_map(self, route: Route) -> KVMap:
        """The map of a projecting route, read from its file as a switch does."""
        path = self.spec.maps[self._pair(route)]
        return map_file.load(path, binding(self.spec, route.source, route.dest))

    def card(self, route: Route) -> MapCard:
        """The card of the map of a projecting route, as it was when the map was loaded."""
        self.kv_map(route)
        return self._cards[self._pair(route)]

    def full_precision(self, route: Route) -> str:
        """Of two rungs with the same weights, the one at the higher precision."""
        names = (route.source, route.dest)
        return min(names, key=lambda name: PRECISION_ORDER.index(self.spec.rung(name).precision))

    def _pair(self, route: Route) -> tuple[str, str]:
        return self.spec.rung(route.source).weights, self.spec.rung(route.dest).weights


class TableFacts(TypedDict):
    """What every table has besides its figures."""

    origin: Origin
    texts: Texts
    islands: list[int]
    gates: list[Gate]


@dataclass(frozen=True, slots=True, eq=False)
class TableSetup:
    """What a table that judges caches on documents is made with; ``gates`` have been passed.

    ``documents_from`` and ``command`` are what its file says of its origin.
    """

    loaded: LoadedLadder
    texts: Sequence[JudgedText]
    settings: Settings
    documents_from: str = ""
    command: str = ""
    gates: Sequence[Gate] = ()
    progress: Progress = quietly

    def facts(self) -> TableFacts:
        """What the file of the table has besides its figures."""
        return {
            "origin": origin(self.command, self.loaded.spec, self.settings.seed),
            "texts": texts_facts(self.texts, self.documents_from, self.settings),
            "islands": [self.settings.islands.first, self.settings.islands.last],
            "gates": list(self.gates),
        }


def open_ladder(ladder: str) -> LoadedLadder:
    """A ladder by name or file. Raises ``InputError`` as ``resolve`` does."""
    return LoadedLadder(resolve(ladder))


def routes(
    spec: LadderSpec, source: str | None, dest: str | None, *, only_maps: bool = False
) -> tuple[Route, ...]:
    """The routes of a ladder from ``source`` and to ``dest``, of all rungs where one is not named.

    With ``only_maps``, those that go through a map.

    Raises ``InputError`` for a rung that the ladder does not have and where no route is left.
    """
    names = [rung.name for rung in spec.rungs]
    for option, name in (("--from", source), ("--to", dest)):
        if name is not None and name not in names:
            raise InputError(f"{option}: {show(name)} is no rung of {spec.path}; {nearest(name, names)}")
    found = tuple(
        route
        for route in spec.ladder.routes
        if source in (None, route.source)
        and dest in (None, route.dest)
        and (route.kind == RouteKind.PROJECT or (route.kind == RouteKind.CARRY and not only_maps))
    )
    if not found:
        wanted = f"takes a cache from {source or 'any rung'} to {dest or 'any rung'}"
        remedy = f"fit maps with: molt fit {argument(spec.path)}"
        raise InputError(f"{spec.path}: no {'map' if only_maps else 'route'} {wanted}; {remedy}")
    return found


def documents(folder: Path | None) -> tuple[tuple[Document, ...], str]:
    """Documents to judge by, and what they are called: those of a folder, or the held-out ones of the package."""
    if folder is None:
        return tuple(shipped_documents()), "held-out excerpts shipped with Molt"
    if not folder.is_dir():
        raise InputError(f"--text: {folder}: no such folder")
    return folder_texts(folder), f"folder {folder.name}"


def texts(spec: LadderSpec, found: Sequence[Document], settings: Settings) -> tuple[JudgedText, ...]:
    """The first tokens of the documents that are long enough, in an order that the seed alone decides.

    Raises ``InputError`` where fewer than two are, since one is judged with the cache of another.
    """
    length = settings.context + 1 + settings.continuation
    fewest = min(rung.max_positions for rung in spec.ladder.rungs)
    if length > fewest:
        raise InputError(
            f"--context: {settings.context} tokens, one that is fed and {settings.continuation} more do not "
            f"fit into {fewest} positions"
        )
    if settings.islands.first + settings.islands.last >= settings.context:
        raise InputError(
            f"--first and --last: {settings.islands.first} and {settings.islands.last} tokens prefilled "
            f"natively leave nothing of {settings.context} to transplant"
        )
    tokenizer = read_tokenizer(spec.tokenizer)
    order = list(found)
    random.Random(settings.seed).shuffle(order)  # noqa: S311
    chosen: list[JudgedText] = []
    for name, text in order:
        ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids[:length])
        if len(ids) == length:
            chosen.append(JudgedText(name, ids[: settings.context + 1], ids[settings.context + 1 :]))
        if len(chosen) == settings.documents:
            break
    if len(chosen) < 2:
        raise InputError(
            f"{len(chosen)} of {len(found)} documents have {length} tokens, at least 2 must; name a folder of "
            "longer ones with --text, or ask for less --context"
        )
    return tuple(chosen)


def texts_facts(chosen: Sequence[JudgedText], source: str, settings: Settings) -> Texts:
    """What a file says of the documents it was made from."""
    digest = hashlib.sha256()
    for text in chosen:
        digest.update(repr((text.name, text.known, text.next)).encode())
    return Texts(
        documents=[text.name for text in chosen],
        source=source,
        sha256=digest.hexdigest(),
        context=settings.context,
        continuation=settings.continuation,
        marks=list(settings.marks),
    )


def map_facts(loaded: LoadedLadder, route: Route) -> MapFacts:
    """What a file says of a map."""
    card = loaded.card(route)
    return MapFacts(
        bytes=loaded.kv_map(route).nbytes,
        rows=card.rows,
        features_per_row=card.features_per_row,
        residual_k=list(card.residual_k),
        residual_v=list(card.residual_v),
        calibration=list(card.calibration),
    )


def origin(command: str, spec: LadderSpec, seed: int) -> Origin:
    """Where a file comes from."""
    return Origin(
        command=command,
        ladder=spec.ladder.name,
        seed=seed,
        commit=provenance.commit(),
        machine={
            key: value if isinstance(value, int) else str(value)
            for key, value in provenance.machine().items()
        },
        threads=torch.get_num_threads(),
        versions=provenance.versions(),
    )


def rungs_of(spec: LadderSpec, found: Sequence[Route]) -> tuple[RungSpec, ...]:
    """The rungs that some routes touch, from largest to smallest."""
    names = {name for route in found for name in (route.source, route.dest)}
    return tuple(rung for rung in spec.rungs if rung.name in names)
