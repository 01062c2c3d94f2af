"""The parts of an answer that the records of a world become."""

from __future__ import annotations

from typing import Any

from molt.core import decisions as d
from molt.core import events as e
from molt.core.ladder import RouteKind
from molt.server.answer import Answer, AnswerEvent, AnswerRecord, AnswerText, Broken, End, Part

MS = 1_000_000


def answer(*stops: str, may_begin_anew: bool = False) -> Answer:
    return Answer(5, stops, lambda source, dest, cells, native: 1000 * cells, may_begin_anew=may_begin_anew)


def record(
    payload: Any, at_ms: int = 0, seq: int | None = None, budget: int = 100, usage: int = 90
) -> AnswerRecord:
    return AnswerRecord(payload, at_ms * MS, seq, budget, usage)


def token(piece: str, rung: str = "tier0", at_ms: int = 0, heal: int = 0, healed: int = 0) -> AnswerRecord:
    produced = e.TokensProduced(
        at_ns=at_ms * MS, tenant="a", rung=rung, count=1, stamps_ns=(at_ms * MS,), pieces=(piece,),
        heal=heal, healed=healed,
    )  # fmt: skip
    return record(produced, at_ms)


def demote(route: RouteKind, seq: int, at_ms: int = 0) -> AnswerRecord:
    prediction = d.Prediction(duration_ns=7 * MS, kl=0.25)
    decision = d.Demote(
        tenant="a", source="tier0", dest="tier1", route=route, capacity=50, prediction=prediction
    )
    return record(decision, at_ms, seq, budget=60, usage=95)


def switched(seq: int, cells: int = 20, settled: int | None = 4) -> AnswerRecord:
    event = e.Switched(
        at_ns=30 * MS, tenant="a", source="tier0", dest="tier1", route="project", cells=cells,
        duration_ns=9 * MS, settled=settled, native=16, decision=seq,
    )  # fmt: skip
    return record(event, 30)


def events(parts: list[Part]) -> list[dict[str, Any]]:
    return [part.fields for part in parts if isinstance(part, AnswerEvent)]


def test_a_switch_has_its_prediction_and_its_measurement() -> None:
    """The pressure is that of the decision; the rest is as the world reports it."""
    one = answer()
    assert one.observe(demote(RouteKind.PROJECT, seq=8)) == []
    (switch,) = events(one.observe(switched(8)))
    assert switch == {
        "event": "switch",
        "at_ms": 30.0,
        "from": "tier0",
        "to": "tier1",
        "kind": "project",
        "ms": 9.0,
        "flops_saved": 20_000,
        "predicted": {"ms": 7.0, "kl": 0.25},
        "measured": {"ms": 9.0, "kl": None, "tokens": 20, "native_tokens": 16, "exact_tokens": 4},
        "pressure": {"budget_bytes": 60, "usage_bytes": 95},
    }
    summary = one.summary()
    assert summary["switch_ms"] == 9.0
    assert [(s["from"], s["to"], s["after_tokens"]) for s in summary["switches"]] == [("tier0", "tier1", 0)]


def test_prefilling_again_is_a_switch_that_lasts_until_the_next_token() -> None:
    one = answer()
    one.observe(token("x", at_ms=10))
    one.observe(demote(RouteKind.REREAD, seq=8, at_ms=20))
    parts = one.observe(token("y", "tier1", at_ms=320))
    (switch,) = events(parts)
    assert (switch["kind"], switch["ms"], switch["flops_saved"]) == ("reread", 300.0, 0)
    assert isinstance(parts[-1], AnswerText)
    assert events(one.observe(token("z", "tier1", at_ms=330))) == []


def test_a_switch_that_failed_becomes_one_that_prefills_again() -> None:
    one = answer()
    one.observe(demote(RouteKind.PROJECT, seq=8, at_ms=20))
    failed = e.SwitchFailed(
        at_ns=25 * MS, tenant="a", source="tier0", dest="tier1", reason="/some/path", decision=8
    )
    assert one.observe(record(failed, 25)) == []
    (switch,) = events(one.observe(token("y", "tier1", at_ms=120)))
    assert (switch["kind"], switch["ms"]) == ("reread", 100.0)


def test_a_switch_that_was_taken_back_is_not_reported() -> None:
    """Decided, and then decided otherwise: only what happened is reported."""
    one = answer()
    one.observe(demote(RouteKind.REREAD, seq=8))
    back = d.Promote(tenant="a", source="tier1", dest="tier0", route=None, capacity=50)
    one.observe(record(back, 1, 9))
    assert events(one.observe(token("y", "tier0", at_ms=120))) == []


def test_healed_is_reported_when_every_cell_is_exact() -> None:
    """16 approximate cells, 8 healed a step, and each step adds one: 16 -> 9 -> 2 -> 0."""
    one = answer()
    one.observe(switched(8, cells=20, settled=4))
    reported = [events(one.observe(token("x", "tier1", heal=8, healed=healed))) for healed in (8, 8, 2, 0)]
    assert [len(found) for found in reported] == [0, 0, 1, 0]
    assert (reported[2][0]["tokens"], reported[2][0]["steps"]) == (18, 3)


def test_tokens_are_counted_by_rung_and_the_text_is_kept_by_rung() -> None:
    one = answer()
    for piece, rung in (("a", "tier0"), ("b", "tier0"), ("", "tier1"), ("c", "tier1"), ("d", "tier0")):
        one.observe(token(piece, rung))
    assert one.rungs == {"tier0": 3, "tier1": 2}
    assert one.spans == [("tier0", "ab"), ("tier1", "c"), ("tier0", "d")]


def test_withheld_text_goes_out_late_with_the_rung_that_produced_it() -> None:
    """It is no token any more: the token was reported when it was produced."""
    one = answer("</end>")
    (first,) = one.observe(token("one <", "tier0"))
    late, own = one.observe(token("x", "tier1"))
    assert first == AnswerText("one ", "tier0", 0)
    assert late == AnswerText("<", "tier0", 0, is_token=False)
    assert own == AnswerText("x", "tier1", 0)
    assert one.tokens == 2


def test_a_stop_string_ends_the_answer_and_is_no_part_of_it() -> None:
    one = answer("ST")
    one.observe(token("abS"))
    parts = one.observe(token("Tcd"))
    assert parts[-1] == End("stop")
    assert "".join(text for _, text in one.spans) == "ab"


def test_what_was_withheld_goes_out_at_the_end() -> None:
    one = answer("STOP")
    one.observe(token("abST"))
    late, end = one.observe(record(e.TenantFinished(at_ns=0, tenant="a", reason="length")))
    assert (late, end) == (AnswerText("ST", "tier0", 0, is_token=False), End("length"))


def test_after_a_kill_an_answer_of_which_something_was_sent_is_broken() -> None:
    one = answer()
    one.observe(token("x"))
    (broken,) = one.observe(record(e.ProcessKilled(at_ns=0)))
    assert isinstance(broken, Broken)
    assert one.summary()["killed"]


def test_after_a_kill_an_answer_of_which_nothing_was_sent_begins_anew() -> None:
    one = answer(may_begin_anew=True)
    one.observe(token("x"))
    assert one.observe(record(e.ProcessKilled(at_ns=0))) == []
    arrived = e.TenantArrived(
        at_ns=0, tenant="a", tenant_kind=e.TenantKind.BATCH, prompt_tokens=5, max_tokens=9, attempt=2
    )
    (restarted,) = events(one.observe(record(arrived)))
    assert (restarted["event"], restarted["attempt"]) == ("restarted", 2)
    one.observe(token("y"))
    assert one.spans == [("tier0", "y")]
    assert (one.summary()["attempts"], one.summary()["killed"], one.tokens) == (2, True, 1)


def test_every_lever_has_its_event() -> None:
    """Each in the order of the protocol, with what it freed or took."""
    at = {"at_ns": 0, "tenant": "a"}
    records = [
        d.Defer(tenant="a"),
        d.Admit(tenant="a", rung="tier0", capacity=9),
        e.TenantParked(**at, freed_bytes=3),
        e.CacheSpilled(**at, cells=7, freed_bytes=70, duration_ns=2 * MS),
        d.Unpark(tenant="a", source="tier0", dest="tier0", route=None, capacity=9),
        e.CacheRestored(**at, cells=7, duration_ns=3 * MS),
        e.ContextShed(**at, kept_cells=4, dropped_cells=3, freed_bytes=30),
        e.SpillFailed(**at, freed_bytes=1, reason="/a/path"),
        e.RestoreFailed(**at, dest="tier0", reason="/a/path"),
    ]
    one = answer()
    reported = [fields for payload in records for fields in events(one.observe(record(payload)))]
    assert [fields["event"] for fields in reported] == [
        "defer", "admit", "park", "spill", "resume", "restore", "shed", "shed", "shed",
    ]  # fmt: skip
    assert "path" not in str(reported)
    assert one.summary()["events"]["shed"] == 3
