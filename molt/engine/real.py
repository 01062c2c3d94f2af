"""Generations on real models: the engine whose tokens, caches and transplants are computed.

Rules of this module:

- ``known`` is every token of the text so far, by position; ``read`` of them have been through a model. A
  decode step feeds ``known[read]`` and appends one token, so no switch, park or shed can lose or repeat a
  token: none of them touches ``known``, and only prefill and decode move ``read``.
- Memory is what the ladder says: a cache is allocated once for its capacity, a map exists only during the
  switch that needs it, a released rung is dropped at once: nothing else refers to its weights and no
  reference cycle holds them, so they are back with the system when ``release`` returns.
- With ``measure_handoff`` the engine is a laboratory as well: released rungs are kept aside so that a switch
  can be judged against what the source would have said. That memory is real but no part of any reported size;
  do not measure where memory is what is being studied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from molt.core import healing
from molt.core.engine_protocol import SINKS, Decoded, Destination, LoadError, Request, SpillError, SwitchError
from molt.core.events import Handoff
from molt.core.ladder import RouteKind
from molt.engine.detokenise import Detokeniser
from molt.engine.device import no_memory_is
from molt.engine.sampling import sample, uniform
from molt.errors import LadderError
from molt.formats.weights_file import read_json
from molt.kv import map_file
from molt.kv.cache import PreallocatedCache
from molt.kv.handoff_quality import SwitchReference, judge, switch_reference
from molt.kv.heal import step as heal_step
from molt.kv.loaded_rung import LoadedRung, NotFinite, as_loaded_rung
from molt.kv.map_file import MapRefused, binding
from molt.kv.project import KVMap
from molt.kv.spill import Spilled, restore, spill
from molt.kv.transplant import Islands, carry, transplanting
from molt.models.ladder_file import LadderSpec, argument
from molt.models.loader import CPU, loading
from molt.models.rope import rope_of
from molt.models.tokenizer_file import read_tokenizer
from molt.work import Unfinished, Work, advanced, finished


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A rung's weights in memory, and the tokens with which it ends a text.

    ``memory`` gives nothing once the weights are back with the system.
    """

    resident: LoadedRung
    weight_bytes: int
    memory: Callable[[], object]
    ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class _SwitchUnderWay:
    """A switch under way: its destination, and the work of it."""

    destination: Destination
    work: Work[PreallocatedCache]


@dataclass(frozen=True, slots=True)
class _ChunkUnderWay:
    """A chunk of prefill under way: whose, which of the known tokens, and the work of it."""

    tenant: str
    first: int
    end: int
    work: Work[None]


@dataclass(slots=True)
class _Generation:
    """One answer under way."""

    request: Request
    rung: str
    cache: PreallocatedCache
    known: list[int]
    detokeniser: Detokeniser
    read: int = 0
    settled: int = 0
    spilled: Spilled | None = None
    finish: str | None = None
    switch_under_way: _SwitchUnderWay | None = None

    @property
    def produced(self) -> int:
        return len(self.known) - len(self.request.prompt_ids)


class RealEngine:
    """``molt.core.engine_protocol.Engine`` over torch.

    ``spill_folder`` is on the disk to which caches are spilled; ``None``: where temporary files go.
    """

    def __init__(
        self,
        spec: LadderSpec,
        *,
        measure_handoff: bool = False,
        device: torch.device = CPU,
        spill_folder: Path | None = None,
    ) -> None:
        self._spec = spec
        self._device = device
        self._rungs = {rung.name: rung for rung in spec.rungs}
        self._ropes = {rung.name: rope_of(rung.shape) for rung in spec.rungs}
        self._tokenizer = read_tokenizer(spec.tokenizer)
        self._measure_handoff = measure_handoff
        self._loaded: dict[str, _Loaded] = {}
        self._loading: dict[str, Work[_Loaded]] = {}
        self._laboratory: dict[str, _Loaded] = {}
        self._generations: dict[str, _Generation] = {}
        self._chunk: _ChunkUnderWay | None = None
        self._spill_folder = spill_folder

    # -- weights

    def load(self, rung: str, within_ns: int | None = None) -> bool:
        """Bring a rung's weights in, or as much as ``within_ns`` is enough for; whether all are there. Idempotent.

        Raises ``LoadError`` if there is no memory for them.
        """
        if rung in self._loaded:
            return True
        if rung in self._laboratory:
            self._loaded[rung] = self._laboratory.pop(rung)
            return True
        parts = self._loading.pop(rung, None) or self._bring_in(rung)
        try:
            with no_memory_is(LoadError, f"for {rung}"):
                self._loaded[rung] = advanced(parts, within_ns)
        except Unfinished:
            self._loading[rung] = parts
        return rung in self._loaded

    def release(self, rung: str) -> int:
        """Give a rung's weights back, or what there is of them so far; returns the bytes freed of a whole rung.

        A switch to it that is under way is abandoned.
        """
        self._loading.pop(rung, None)
        self._chunk = None
        for generation in self._generations.values():
            if (
                generation.switch_under_way is not None
                and generation.switch_under_way.destination.dest == rung
            ):
                generation.switch_under_way = None
        loaded = self._loaded.pop(rung, None)
        if loaded is None:
            return 0
        freed, memory = loaded.weight_bytes, loaded.memory
        if self._measure_handoff:
            self._laboratory[rung] = loaded
        else:
            del loaded
            assert memory() is None, f"something still refers to the weights of {rung}"
        return freed

    def weight_bytes(self, rung: str) -> int:
        """Bytes allocated for a rung's weights, 0 when it is not resident."""
        return self._loaded[rung].weight_bytes if rung in self._loaded else 0

    # -- generations

    def admit(self, tenant: str, request: Request, rung: str, capacity: int) -> None:
        """Open a generation with an empty cache of ``capacity`` cells in the geometry of ``rung``."""
        assert tenant not in self._generations, f"tenant {tenant!r} has a generation already"
        assert request.prompt_ids, "a generation starts from at least one token"
        self._generations[tenant] = _Generation(
            request=request,
            rung=rung,
            cache=self._empty_cache(rung, capacity),
            known=list(request.prompt_ids),
            detokeniser=Detokeniser(self._tokenizer, request.prompt_ids),
        )

    def prefill(self, tenant: str, tokens: int, chunk: int, within_ns: int | None = None) -> None:
        """Prefill the next ``tokens`` known tokens on the rung of the cache, ``chunk`` at a time.

        With ``within_ns``, one chunk at most: it may raise ``Unfinished`` near that time, and the same call again
        goes on.
        """
        generation = self._generations[tenant]
        first, end = generation.read, generation.read + tokens
        assert end < len(generation.known), f"{tokens} tokens from {first}: the last is left to decode"
        assert within_ns is None or tokens <= chunk, "what is interrupted is a chunk"
        cells = generation.cache.cells
        under_way, self._chunk = self._chunk, None
        if under_way is None or (under_way.tenant, under_way.first, under_way.end) != (tenant, first, end):
            resident = self._loaded[generation.rung].resident
            work = resident.prefilling(generation.cache, generation.known[first:end], first, chunk)
            under_way = _ChunkUnderWay(tenant, first, end, work)
        try:
            advanced(under_way.work, within_ns)
        except Unfinished:
            self._chunk = under_way
            raise
        generation.settled += tokens if generation.settled == cells else 0
        generation.read = end

    def decode(self, tenant: str, count: int, heal: int = 0) -> Decoded:
        """Produce up to ``count`` tokens, fewer only at the end of the answer.

        Every step heals ``heal`` of the cells that are not settled.
        """
        self._chunk = None
        generation = self._generations[tenant]
        assert generation.read == len(generation.known) - 1, "known tokens are unread"
        ids: list[int] = []
        pieces: list[str] = []
        while len(ids) < count and generation.finish is None:
            token, piece = self._decode_one(generation, heal)
            ids.append(token)
            pieces.append(piece)
        return Decoded(len(ids), tuple(ids), tuple(pieces), generation.finish)

    def switch(self, tenant: str, destination: Destination, within_ns: int | None = None) -> Handoff | None:
        """Take the cache to another rung, which is resident; raises ``SwitchError`` and changes nothing if it cannot.

        With ``within_ns`` it may raise ``Unfinished`` near that time, and the same call again goes on.
        """
        self._chunk = None
        generation = self._generations[tenant]
        under_way, generation.switch_under_way = generation.switch_under_way, None
        text = generation.known[: generation.read + 1]
        if under_way is None or under_way.destination != destination:
            under_way = _SwitchUnderWay(
                destination, self._carried(generation.rung, generation.cache, text, destination)
            )
        target = self._loaded[destination.dest].resident
        with no_memory_is(SwitchError, "for the switch"):
            measures = self._measure_handoff
            by = self._switch_reference(generation.rung, target, generation.cache, text) if measures else None
            try:
                carried = advanced(under_way.work, within_ns)
            except Unfinished:
                generation.switch_under_way = under_way
                raise
        generation.rung, generation.cache = destination.dest, carried
        if destination.route is RouteKind.PROJECT:
            generation.settled = settled_cells(carried)
        return None if by is None else judge(target, carried, by).handoff()

    def _carried(
        self, source: str, cache: PreallocatedCache, text: list[int], destination: Destination
    ) -> Work[PreallocatedCache]:
        """A cache of ``source`` as it is to be on the rung it goes to."""
        target = self._loaded[destination.dest].resident
        match destination.route:
            case RouteKind.CARRY:
                return carry(cache, target, text, destination.capacity)
            case RouteKind.PROJECT:
                kv_map = self._map(source, destination.dest)
                yield
                rope, islands = self._ropes[source], Islands(SINKS, destination.native)
                return (
                    yield from transplanting(cache, rope, kv_map, target, text, destination.capacity, islands)
                )
            case RouteKind.REREAD:
                raise AssertionError("prefilling again is a shed to 0 and prefills")

    def park(self, tenant: str) -> int:
        """Trim the cache to the cells it holds in memory; returns the bytes freed."""
        cache = self._to_change(tenant).cache
        return cache.resize(cache.cells)

    def grow(self, tenant: str, capacity: int) -> None:
        """Give a cache room for ``capacity`` cells (the reverse of ``park``)."""
        self._to_change(tenant).cache.resize(capacity)

    def _to_change(self, tenant: str) -> _Generation:
        """A generation whose cache is about to be changed: a switch, or a chunk, that is under way is abandoned."""
        self._chunk = None
        generation = self._generations[tenant]
        generation.switch_under_way = None
        return generation

    def spill(self, tenant: str) -> int:
        """Write a trimmed cache to disk and free its memory; returns the bytes freed.

        Raises ``SpillError`` and changes nothing if it cannot be written.
        """
        generation = self._to_change(tenant)
        with no_memory_is(SpillError, "to write it"):
            empty = self._empty_cache(generation.rung, capacity=0)
            generation.spilled = spill(generation.cache, self._spill_folder)
        freed = generation.cache.nbytes
        generation.cache = empty
        return freed

    def restore(self, tenant: str) -> None:
        """Read a spilled cache back into the room that ``grow`` made for it, bit for bit.

        Raises ``SpillError`` if what is on disk is not what was written; then the cells are lost.
        """
        self._chunk = None
        generation = self._generations[tenant]
        spilled, generation.spilled = generation.spilled, None
        assert spilled is not None, f"the cache of {tenant!r} is not on disk"
        with no_memory_is(SpillError, "to read it"):
            restore(spilled, generation.cache)

    def shed(self, tenant: str, keep_cells: int, rung: str) -> int:
        """Keep ``keep_cells`` cells, the first and the most recent, trimmed; returns the bytes freed.

        With 0 the cache is dropped, takes the geometry of ``rung``, and every known token is to be prefilled again.
        """
        generation = self._to_change(tenant)
        if keep_cells > 0:
            try:
                return generation.cache.shed(keep_cells, SINKS)
            finally:  # without memory to trim it, the cache has lost its cells all the same
                generation.settled = generation.cache.cells
        if generation.spilled is not None:
            generation.spilled.forget()
            generation.spilled = None
        freed = generation.cache.nbytes
        generation.rung, generation.cache = rung, self._empty_cache(rung, capacity=0)
        generation.read = generation.settled = 0
        return freed

    def finish(self, tenant: str) -> None:
        """Forget a tenant and free its cache, wherever it is."""
        self._chunk = None
        generation = self._generations.pop(tenant)
        if generation.spilled is not None:
            generation.spilled.forget()

    def kill(self) -> None:
        """Lose everything at once."""
        for tenant in tuple(self._generations):
            self.finish(tenant)
        self._loading.clear()
        for rung in tuple(self._loaded):
            self.release(rung)

    def cache_bytes(self, tenant: str) -> int:
        """Bytes allocated for a tenant's cache, 0 for a tenant that has none."""
        generation = self._generations.get(tenant)
        return 0 if generation is None else generation.cache.nbytes

    def settled_cells(self, tenant: str) -> int:
        """The first cells of a tenant's cache that need no healing."""
        return self._generations[tenant].settled

    # -- detail

    def _decode_one(self, generation: _Generation, heal: int) -> tuple[int, str]:
        loaded, request = self._loaded[generation.rung], generation.request
        logits = self._next_logits(loaded.resident, generation, heal)
        draw = uniform(request.seed, generation.produced)
        token = sample(logits, request.temperature, request.top_p, draw, request.top_k, request.min_p)
        generation.read += 1
        generation.known.append(token)
        if request.stop_at_eos and token in loaded.ends:
            generation.finish = "stop"
        elif generation.produced == request.max_tokens:
            generation.finish = "length"
        piece = generation.detokeniser.push(token)
        return token, piece if generation.finish is None else piece + generation.detokeniser.flush()

    def _next_logits(self, resident: LoadedRung, generation: _Generation, heal: int) -> torch.Tensor:
        """Logits (vocabulary,) of the next token; on the destination, ``heal`` cells of the cache are healed."""
        cache, cells, settled = generation.cache, generation.cache.cells, generation.settled
        healed = healing.chunk(cells, settled, heal)
        try:
            if healed:
                logits = heal_step(resident, cache, generation.known, settled, healed)
            else:
                logits = resident.step(cache, generation.known[generation.read :], generation.read)[0]
        except NotFinite as fault:
            folder = self._rungs[generation.rung].folder
            raise LadderError(f"{folder}: {generation.rung}: {fault}") from None
        generation.settled = healing.settled_after(cells, settled, healed)
        return logits

    def _bring_in(self, rung: str) -> Work[_Loaded]:
        folder = self._rungs[rung].folder
        loaded = yield from loading(self._rungs[rung], self._device)
        resident = as_loaded_rung(loaded.decoder, self._spec, rung)
        memory = (lambda: None) if loaded.arena is None else loaded.arena.watch()
        return _Loaded(resident, loaded.weight_bytes, memory, end_tokens(folder))

    def _empty_cache(self, rung: str, capacity: int) -> PreallocatedCache:
        return PreallocatedCache(self._spec.ladder.rung(rung).kv, capacity, self._device)

    def _map(self, source: str, dest: str) -> KVMap:
        """The map between two rungs, read from its file: it is resident for the length of the switch only."""
        pair = (self._rungs[source].weights, self._rungs[dest].weights)
        path = self._spec.maps.get(pair)
        if path is None:
            raise SwitchError(
                f"no map from {pair[0]} to {pair[1]}; fit one with: molt fit {argument(self._spec.path)}"
            )
        try:
            return map_file.load(path, binding(self._spec, source, dest))
        except MapRefused as refusal:
            raise SwitchError(str(refusal)) from refusal

    def _switch_reference(
        self, source: str, dest: LoadedRung, cache: PreallocatedCache, text: list[int]
    ) -> SwitchReference | None:
        """What to judge a switch by; nothing if the cache is empty or the text fills the destination."""
        if cache.cells == 0 or len(text) >= dest.max_positions:
            return None
        return switch_reference(self._reference(source), dest, cache, text)

    def _reference(self, rung: str) -> LoadedRung:
        """A rung for measurements only, whether or not it is resident for the generations."""
        if rung in self._loaded:
            return self._loaded[rung].resident
        if rung not in self._laboratory:
            self._laboratory[rung] = finished(self._bring_in(rung))
        return self._laboratory[rung].resident


def settled_cells(projected: PreallocatedCache) -> int:
    """The first cells of a projected cache that are exact; all, in the sense of healing, where there is a gap."""
    has_gap = projected.cells > 0 and projected.positions[-1] != projected.cells - 1
    return projected.cells if has_gap else min(SINKS, projected.cells)


def end_tokens(folder: Path) -> frozenset[int]:
    """The tokens with which a model ends a text, from its generation settings or else its configuration."""
    for name in ("generation_config.json", "config.json"):
        ends = read_json(folder / name).get("eos_token_id") if (folder / name).is_file() else None
        if ends is not None:
            return frozenset([ends] if isinstance(ends, int) else ends)
    return frozenset()
