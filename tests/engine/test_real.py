"""A generation that changes its rung between two tokens: nothing lost, nothing repeated, nothing left behind.

The ladder is of random weights. ``twin`` holds the weights of ``large`` under another name, and the map
between the two is the identity: whatever is done to a generation on the two of them, its text must be that of
one left alone.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

import molt.openmp  # noqa: F401  before torch
from molt.core.engine_protocol import SINKS, Destination, Engine, Request, SwitchError
from molt.core.ladder import KVLayout, Ladder, Route, RouteKind, Rung
from molt.engine.real import RealEngine, end_tokens
from molt.errors import LadderError
from molt.formats.weights_file import file_sha256, weights_sha256
from molt.kv import map_file
from molt.kv.features import columns_per_layer
from molt.kv.map_file import MapCard
from molt.kv.project import KVMap, LayerMap
from molt.models.ladder_file import LadderSpec, RungSpec
from molt.models.model_config import read_shape
from tests.engine.test_real_detokenise import SPACES, byte_tokenizer, spaced

POSITIONS = 256
CHUNK = 16
HIDDEN = 32
END = 256
PROMPT = tuple(range(40, 70))
LARGE, SMALL = KVLayout(3, 2, 8, 4), KVLayout(2, 1, 6, 4)


def save_random_model(folder: Path, layout: KVLayout, seed: int) -> int:
    """Returns the bytes of its weights."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=264,  # padded: the tokenizer has 257
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=layout.layers,
        num_attention_heads=4,
        num_key_value_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,
        tie_word_embeddings=True,
        eos_token_id=END,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.nbytes for parameter in model.parameters())


def save_map(path: Path, folders: tuple[Path, Path], tokenizer: Path, kv_map: KVMap) -> None:
    card = MapCard(
        source="",
        dest="",
        source_sha256=weights_sha256(folders[0]),
        dest_sha256=weights_sha256(folders[1]),
        tokenizer_sha256=file_sha256(tokenizer),
        hidden=HIDDEN,
        native_layers=0,
        sources=tuple(layer.sources for layer in kv_map.layers),
        ridge=0.0,
        rows=1,
        features_per_row=1.0,
        residual_k=(),
        residual_v=(),
        heldout_rows=0,
        calibration=(),
    )
    map_file.save(path, kv_map, card)


def affine(source: KVLayout, dest: KVLayout, weight: Callable[[int, int], torch.Tensor]) -> KVMap:
    """Each destination layer from the source layer of the same number (the last one where there is none)."""
    shape = columns_per_layer(source), columns_per_layer(dest)
    nothing = torch.zeros(HIDDEN, shape[1])
    layers = (
        LayerMap(
            (min(layer, source.layers - 1),), torch.cat((weight(*shape), nothing)), torch.zeros(shape[1])
        )
        for layer in range(dest.layers)
    )
    return KVMap(source, dest, HIDDEN, 0, tuple(layers))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> LadderSpec:
    """large -> twin (same numbers, other name) -> copy (same weights as twin) -> small."""
    root = tmp_path_factory.mktemp("ladder")
    tokenizer = root / "tokenizer.json"
    byte_tokenizer().save(str(tokenizer))
    weight_bytes = {"large": save_random_model(root / "large", LARGE, seed=0)}
    shutil.copytree(root / "large", root / "twin")
    weight_bytes["twin"] = weight_bytes["large"]
    weight_bytes["small"] = save_random_model(root / "small", SMALL, seed=1)
    maps = {}
    for source, dest, kv_map in [
        ("large", "twin", affine(LARGE, LARGE, torch.eye)),
        ("twin", "large", affine(LARGE, LARGE, torch.eye)),
        ("large", "small", affine(LARGE, SMALL, lambda n, m: torch.randn(n, m) / n)),
        ("small", "large", affine(SMALL, LARGE, lambda n, m: torch.randn(n, m) / n)),
    ]:
        maps[source, dest] = root / map_file.file_name(source, dest)
        save_map(maps[source, dest], (root / source, root / dest), tokenizer, kv_map)
    names = [("large", "large"), ("twin", "twin"), ("copy", "twin"), ("small", "small")]
    ladder = Ladder(
        name="random",
        rungs=tuple(
            Rung(
                name,
                weights,
                "fp32",
                weight_bytes[weights],
                0,
                SMALL if weights == "small" else LARGE,
                POSITIONS,
            )
            for name, weights in names
        ),
        routes=(Route("large", "small", RouteKind.PROJECT), Route("twin", "copy", RouteKind.CARRY)),
    )
    rungs = tuple(
        RungSpec(name, weights, root / weights, "fp32", read_shape(root / weights)) for name, weights in names
    )
    return LadderSpec(root / "ladder.yaml", ladder, rungs, tokenizer, 257, maps)


@pytest.fixture(scope="module")
def shared(spec: LadderSpec) -> RealEngine:
    """One engine for tests that leave it as they found it."""
    return with_every_rung(spec)


@pytest.fixture
def engine(spec: LadderSpec) -> Engine:
    """A fresh engine with every rung resident."""
    return with_every_rung(spec)


def with_every_rung(spec: LadderSpec, **options: Any) -> RealEngine:
    engine = RealEngine(spec, **options)
    for rung in spec.rungs:
        engine.load(rung.name)
    return engine


def request(max_tokens: int = 24, temperature: float = 0.0, *, stop: bool = False, seed: int = 3) -> Request:
    return Request(PROMPT, max_tokens, stop, temperature, 0.95, seed)


def start(engine: Engine, wanted: Request, rung: str = "large", capacity: int = POSITIONS) -> None:
    engine.admit("tenant", wanted, rung, capacity)
    engine.prefill("tenant", len(wanted.prompt_ids) - 1, CHUNK)


class Answer(NamedTuple):
    ids: tuple[int, ...]
    text: str
    finish: str | None


def undisturbed(engine: Engine, wanted: Request) -> Answer:
    start(engine, wanted)
    decoded = engine.decode("tenant", wanted.max_tokens)
    engine.finish("tenant")
    return Answer(decoded.ids, "".join(decoded.pieces), decoded.finish)


# ------------------------------------------------------------------------------------------------- left alone


def test_greedy_generation_is_that_of_transformers(engine: Engine, spec: LadderSpec) -> None:
    model = Qwen2ForCausalLM.from_pretrained(spec.rungs[0].folder).eval()
    model.lm_head.weight.data[257:] = 0.0  # the padding of the vocabulary must never be chosen
    expected = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert undisturbed(engine, request()).ids == tuple(expected[0, len(PROMPT) :].tolist())


def test_a_token_that_the_tokenizer_lacks_is_never_produced(engine: Engine) -> None:
    assert max(undisturbed(engine, request(60, temperature=9.0)).ids) <= END


def test_sampling_repeats_with_the_seed_and_differs_without(engine: Engine) -> None:
    one, again = (undisturbed(engine, request(temperature=1.0)) for _ in range(2))
    assert one == again
    assert undisturbed(engine, request(temperature=1.0, seed=4)).ids != one.ids


def test_how_many_tokens_a_call_asks_for_does_not_matter(engine: Engine) -> None:
    whole = undisturbed(engine, request(temperature=1.0))
    start(engine, request(temperature=1.0))
    parts = [engine.decode("tenant", count) for count in (1, 5, 2, 99)]
    assert sum((part.ids for part in parts), ()) == whole.ids
    assert [part.finish for part in parts] == [None, None, None, "length"]


def test_end_of_text_stops_only_those_who_want_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [5, END, 6, 7]
    monkeypatch.setattr("molt.engine.real.sample", lambda *_: tokens[len(produced)])
    for stop, count, finish in ((True, 2, "stop"), (False, 4, "length")):
        produced: list[int] = []
        start(engine, request(4, stop=stop))
        while (decoded := engine.decode("tenant", 1)).ids:
            produced.extend(decoded.ids)
        assert produced == tokens[:count]
        assert decoded.finish == finish
        engine.finish("tenant")


# ------------------------------------------------------------------------------------------ changing the rung


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_between_equal_rungs_no_token_is_lost_or_repeated(engine: Engine, temperature: float) -> None:
    whole = undisturbed(engine, request(temperature=temperature))
    start(engine, request(temperature=temperature))
    ids: tuple[int, ...] = ()
    text = ""
    routes = [
        ("twin", RouteKind.PROJECT),
        ("copy", RouteKind.CARRY),
        ("twin", RouteKind.CARRY),
        ("large", RouteKind.PROJECT),
    ]
    for dest, route in [*routes, *routes]:
        decoded = engine.decode("tenant", 3)
        ids, text = ids + decoded.ids, text + "".join(decoded.pieces)
        engine.switch("tenant", Destination(dest, route, POSITIONS))
    assert (ids, text) == (whole.ids, whole.text)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("decode"), st.integers(1, 4)),
        st.tuples(st.just("read"), st.integers(1, 12)),
        st.tuples(st.just("switch"), st.sampled_from(["large", "twin", "copy", "small"])),
        st.tuples(st.just("park"), st.just(0)),
        st.tuples(st.just("shed"), st.sampled_from([0, 3, 9])),
    ),
    max_size=12,
)


@given(steps=STEPS)
@settings(max_examples=12, deadline=None)
def test_whatever_happens_the_cache_is_the_text_that_was_read(
    steps: list[tuple[str, int | str]], shared: RealEngine, spec: LadderSpec
) -> None:
    engine = shared
    engine.admit("tenant", request(16, temperature=1.0), "large", POSITIONS)
    generation = engine._generations["tenant"]
    ids: list[int] = []
    text = ""
    try:
        for step in [*steps, ("decode", 99)]:
            unread = len(generation.known) - 1 - generation.read
            match step:
                case ("decode", int(count)):
                    engine.prefill("tenant", unread, CHUNK)
                    decoded = engine.decode("tenant", count)
                    ids.extend(decoded.ids)
                    text += "".join(decoded.pieces)
                case ("read", int(tokens)):
                    engine.prefill("tenant", min(tokens, unread), CHUNK)
                case ("switch", str(dest)):
                    switch_by_best_route(engine, spec, dest)
                case ("park", _):
                    engine.park("tenant")
                case ("shed", int(keep)):
                    engine.shed("tenant", keep, generation.rung)
            cells = generation.cache.cells
            assert generation.known == [*PROMPT, *ids]
            assert cells <= generation.read < len(generation.known)
            assert generation.cache.positions[-1:] == ([generation.read - 1] if cells else [])
            engine.grow("tenant", POSITIONS)
            assert engine.cache_bytes("tenant") == spec.ladder.rung(generation.rung).kv_bytes(POSITIONS)
    finally:
        engine.finish("tenant")
    assert len(ids) == 16
    assert text == byte_tokenizer().decode(ids)


def switch_by_best_route(engine: RealEngine, spec: LadderSpec, dest: str) -> None:
    source = engine._generations["tenant"].rung
    weights = [spec.ladder.rung(name).weights for name in (source, dest)]
    if source == dest:
        return
    if weights[0] == weights[1]:
        engine.switch("tenant", Destination(dest, RouteKind.CARRY, POSITIONS))
    elif tuple(weights) in spec.maps:
        engine.switch("tenant", Destination(dest, RouteKind.PROJECT, POSITIONS))
    else:
        engine.shed("tenant", 0, dest)


def test_a_character_stays_whole_across_a_switch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: Iterator[int] = iter(byte_tokenizer().encode("é🦎").ids)
    monkeypatch.setattr("molt.engine.real.sample", lambda *_: next(tokens))
    start(engine, request(6))
    pieces = list(engine.decode("tenant", 1).pieces)
    for dest in ("small", "large", "twin", "copy", "twin"):
        route = RouteKind.CARRY if dest == "copy" or len(pieces) == 5 else RouteKind.PROJECT
        engine.switch("tenant", Destination(dest, route, POSITIONS))
        pieces += engine.decode("tenant", 1).pieces
    assert pieces == ["", "é", "", "", "", "🦎"]


# ---------------------------------------------------------------------------------------- memory and refusals


def test_an_answer_goes_on_from_the_text_of_its_prompt_across_a_switch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a decoder that drops the space at the start of a text: no answer is one, on whatever rung."""
    prompt = spaced("▁hello")
    tokens: Iterator[int] = iter(spaced("▁the", "▁branch", "▁the", "!"))
    monkeypatch.setattr(engine, "_tokenizer", SPACES)
    monkeypatch.setattr("molt.engine.real.sample", lambda *_: next(tokens))
    wanted = replace(request(max_tokens=4), prompt_ids=tuple(prompt))
    start(engine, wanted)
    first = engine.decode("tenant", 1)
    engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
    rest = engine.decode("tenant", 3)
    assert SPACES.decode(prompt) + "".join(first.pieces + rest.pieces) == "hello the branch the!"
    assert first.pieces == (" the",)


def test_bytes_are_those_of_the_ladder(engine: Engine, spec: LadderSpec) -> None:
    per_token = LARGE.bytes_per_token
    start(engine, request(), capacity=100)
    assert engine.cache_bytes("tenant") == 100 * per_token
    assert engine.park("tenant") == (100 - 29) * per_token
    engine.grow("tenant", 50)
    assert engine.cache_bytes("tenant") == 50 * per_token
    engine.switch("tenant", Destination("small", RouteKind.PROJECT, 60))
    assert engine.cache_bytes("tenant") == 60 * SMALL.bytes_per_token
    assert engine.shed("tenant", 10, "small") == 50 * SMALL.bytes_per_token
    assert engine.shed("tenant", 0, "large") == 10 * SMALL.bytes_per_token
    assert engine.cache_bytes("tenant") == 0
    for rung in spec.ladder.rungs:
        assert engine.weight_bytes(rung.name) == rung.weight_bytes


def test_after_a_shed_to_nothing_reading_again_restores_the_text(engine: Engine) -> None:
    whole = undisturbed(engine, request())
    start(engine, request())
    first = engine.decode("tenant", 10).ids
    engine.shed("tenant", 0, "twin")
    engine.grow("tenant", POSITIONS)
    engine.prefill("tenant", len(PROMPT) + 10 - 1, CHUNK)
    assert first + engine.decode("tenant", 99).ids == whole.ids


def test_loading_is_idempotent_and_releasing_gives_back(engine: Engine, spec: LadderSpec) -> None:
    engine.load("small")
    expected = spec.ladder.rung("small").weight_bytes
    assert engine.release("small") == expected
    assert engine.weight_bytes("small") == 0
    engine.load("small")
    assert engine.weight_bytes("small") == expected


def test_a_kill_loses_everything_and_the_engine_lives_on(engine: Engine, spec: LadderSpec) -> None:
    start(engine, request())
    engine.kill()
    assert all(engine.weight_bytes(rung.name) == 0 for rung in spec.rungs)
    engine.load("large")
    start(engine, request())
    assert len(engine.decode("tenant", 99).ids) == 24


def test_a_source_need_not_be_resident(engine: Engine) -> None:
    start(engine, request())
    engine.decode("tenant", 2)
    engine.release("large")
    engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
    assert len(engine.decode("tenant", 99).ids) == 22


@pytest.mark.parametrize("damage", ["missing", "stale", "truncated", "poisoned"])
def test_a_switch_that_cannot_be_made_changes_nothing(spec: LadderSpec, tmp_path: Path, damage: str) -> None:
    maps = dict(spec.maps)
    path = tmp_path / "map.safetensors"
    match damage:
        case "missing":
            del maps["large", "small"]
        case "stale":
            maps["large", "small"] = maps["small", "large"]
        case "truncated":
            path.write_bytes(maps["large", "small"].read_bytes()[:-1])
            maps["large", "small"] = path
    engine = with_every_rung(replace(spec, maps=maps))
    whole = undisturbed(engine, request())
    start(engine, request())
    if damage == "poisoned":
        cache = engine._generations["tenant"].cache
        with torch.inference_mode():
            spoiled = cache._values[0][0, 20].clone()
            cache._values[0][0, 20] = float("nan")
    with pytest.raises(SwitchError):
        engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
    if damage == "poisoned":
        with torch.inference_mode():
            cache._values[0][0, 20] = spoiled
    assert engine.decode("tenant", 99).ids == whole.ids


def test_an_answer_goes_on_from_a_cache_that_was_on_disk(engine: RealEngine) -> None:
    whole = undisturbed(engine, request())
    start(engine, request())
    first = engine.decode("tenant", 10).ids
    engine.park("tenant")
    size = engine.cache_bytes("tenant")
    assert engine.spill("tenant") == size
    assert engine.cache_bytes("tenant") == 0
    engine.grow("tenant", POSITIONS)
    engine.restore("tenant")
    assert first + engine.decode("tenant", 99).ids == whole.ids


@pytest.mark.parametrize("end", ["shed", "finish", "kill"])
def test_a_spilled_cache_that_is_dropped_leaves_no_file(spec: LadderSpec, tmp_path: Path, end: str) -> None:
    """It never had a name, and its bytes go with the cache."""
    engine = with_every_rung(spec, spill_folder=tmp_path)
    start(engine, request())
    engine.park("tenant")
    engine.spill("tenant")
    spilled = engine._generations["tenant"].spilled
    assert spilled is not None
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(spilled.file.fileno()).st_size > 0
    if end == "shed":
        engine.shed("tenant", 0, "small")
    elif end == "finish":
        engine.finish("tenant")
    else:
        engine.kill()
    assert spilled.file.closed


# ------------------------------------------------------------------------------------------------------ healing


def healed_engine(spec: LadderSpec, heal: int, *, dest: str = "small") -> tuple[RealEngine, int]:
    """An engine whose tenant came over from the large rung, and how many tokens it produced until all was exact."""
    engine = with_every_rung(spec)
    start(engine, request())
    engine.switch("tenant", Destination(dest, RouteKind.PROJECT, POSITIONS))
    produced = 0
    while engine.settled_cells("tenant") < engine._generations["tenant"].cache.cells:
        assert engine.decode("tenant", 1, heal).count == 1
        produced += 1
    return engine, produced


@pytest.mark.parametrize("heal", [3, 8, 40])
def test_a_healed_cache_is_the_one_of_a_reread(spec: LadderSpec, heal: int) -> None:
    engine, produced = healed_engine(spec, heal)
    generation = engine._generations["tenant"]
    assert produced < len(PROMPT)
    own = engine._loaded["small"].resident.prefill_afresh(generation.known[:-1]).export()
    healed = generation.cache.export()
    torch.testing.assert_close(healed.keys, own.keys, rtol=0, atol=2e-5)
    torch.testing.assert_close(healed.values, own.values, rtol=0, atol=2e-5)


def test_a_second_switch_and_a_park_keep_what_is_exact(spec: LadderSpec) -> None:
    engine = with_every_rung(spec)
    start(engine, request())
    engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
    assert engine.settled_cells("tenant") == SINKS
    engine.decode("tenant", 1, 10)
    assert engine.settled_cells("tenant") == SINKS + 10
    engine.park("tenant")
    engine.grow("tenant", POSITIONS)
    assert engine.settled_cells("tenant") == SINKS + 10
    engine.switch("tenant", Destination("large", RouteKind.PROJECT, POSITIONS))
    own = (
        engine._loaded["large"].resident.prefill_afresh(engine._generations["tenant"].known[:SINKS]).export()
    )
    cache = engine._generations["tenant"].cache.export(0, SINKS)
    torch.testing.assert_close(cache.keys, own.keys, rtol=0, atol=2e-5)
    assert engine.settled_cells("tenant") == SINKS


def test_a_shed_ends_healing(spec: LadderSpec) -> None:
    engine = with_every_rung(spec)
    start(engine, request())
    engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
    engine.shed("tenant", 12, "small")
    engine.grow("tenant", POSITIONS)
    assert engine.settled_cells("tenant") == 12
    assert engine.decode("tenant", 2, 8).count == 2
    assert engine.settled_cells("tenant") == 14


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.layers.1.mlp.down_proj.weight", "layer 1 gives values that are not finite"),
        ("model.norm.weight", "the head gives values that are not finite"),
    ],
)
def test_weights_that_are_not_numbers_stop_the_answer_and_the_layer_is_named(
    tmp_path: Path, spec: LadderSpec, name: str, words: str
) -> None:
    folder = tmp_path / "poisoned"
    shutil.copytree(spec.rungs[0].folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    engine = RealEngine(replace(spec, rungs=(replace(spec.rungs[0], folder=folder), *spec.rungs[1:])))
    engine.load("large")
    start(engine, request())
    with pytest.raises(LadderError, match=rf"^[^\n]*poisoned: large: {words}$"):
        engine.decode("tenant", 1)


# ----------------------------------------------------------------------------------------------- measurements


def test_a_switch_is_measured_even_after_its_source_was_released(spec: LadderSpec) -> None:
    engine = RealEngine(spec, measure_handoff=True)
    for rung in ("large", "twin", "small"):
        engine.load(rung)
    start(engine, request())
    engine.release("large")
    identical = engine.switch("tenant", Destination("twin", RouteKind.PROJECT, POSITIONS))
    assert identical is not None
    assert identical.kl == pytest.approx(0.0, abs=1e-6)
    assert identical.recovered_context == pytest.approx(1.0, abs=1e-3)
    engine.load("large")
    engine.switch("tenant", Destination("large", RouteKind.PROJECT, POSITIONS))
    made_up = engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
    assert made_up is not None
    assert made_up.kl > 0.01


def test_measuring_does_not_change_the_answer(spec: LadderSpec) -> None:
    answers = []
    for measure in (False, True):
        engine = RealEngine(spec, measure_handoff=measure)
        engine.load("large")
        engine.load("small")
        start(engine, request(temperature=1.0))
        first = engine.decode("tenant", 5).ids
        engine.switch("tenant", Destination("small", RouteKind.PROJECT, POSITIONS))
        answers.append(first + engine.decode("tenant", 99).ids)
    assert answers[0] == answers[1]


# ----------------------------------------------------------------------------------------- giving memory back


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_released_rung_is_gone_at_once_without_a_garbage_collection(
    spec: LadderSpec, precision: str
) -> None:
    rungs = tuple(replace(rung, precision=precision) for rung in spec.rungs)
    engine = RealEngine(replace(spec, rungs=rungs))
    gc.collect()
    gc.disable()
    try:
        engine.load("small")
        memory = engine._loaded["small"].memory
        start(engine, request(), rung="small")
        engine.decode("tenant", 3)
        engine.release("small")
        assert memory() is None
    finally:
        gc.enable()


def test_end_tokens_come_from_the_generation_settings_first(tmp_path: Path) -> None:
    assert end_tokens(tmp_path) == frozenset()
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    assert end_tokens(tmp_path) == {3}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert end_tokens(tmp_path) == {3, 5}
