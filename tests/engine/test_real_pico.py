"""One answer of the shipped ladder, down through every rung and up again."""

from __future__ import annotations

from tokenizers import Tokenizer

from molt.core.engine_protocol import Destination, Request
from molt.core.ladder import RouteKind
from molt.engine.real import RealEngine
from molt.models.ladder_file import resolve
from molt.models.pico.corpus import shipped_documents

JOURNEY = [
    ("tier1", RouteKind.PROJECT),
    ("tier2", RouteKind.CARRY),
    ("tier0", RouteKind.PROJECT),
    ("tier2", RouteKind.PROJECT),
    ("tier1", RouteKind.CARRY),
    ("tier0", RouteKind.PROJECT),
]


def test_an_answer_travels_the_whole_ladder() -> None:
    spec = resolve("pico")
    tokenizer = Tokenizer.from_file(str(spec.tokenizer))
    prompt = tuple(tokenizer.encode(next(iter(shipped_documents()))[1]).ids[:120])
    engine = RealEngine(spec, measure_handoff=True)
    for rung in spec.ladder.rungs:
        engine.load(rung.name)
        assert engine.weight_bytes(rung.name) == rung.weight_bytes
    engine.admit("tenant", Request(prompt, 7 * 4, False, 0.7, 0.9, 11), "tier0", 160)
    engine.prefill("tenant", len(prompt) - 1, 128)
    ids, text = [], ""
    for dest, route in [*JOURNEY, (None, None)]:
        decoded = engine.decode("tenant", 4)
        ids.extend(decoded.ids)
        text += "".join(decoded.pieces)
        if dest is not None and route is not None:
            handoff = engine.switch("tenant", Destination(dest, route, 160))
            assert engine.cache_bytes("tenant") == spec.ladder.rung(dest).kv_bytes(160)
            assert handoff is not None
            assert handoff.kl < 0.5, "also a carried cache keeps what an earlier map missed"
    assert decoded.finish == "length"
    assert len(ids) == 28
    assert text == tokenizer.decode(ids)
