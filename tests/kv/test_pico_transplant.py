"""The shipped maps on the shipped rungs, on held-out documents, beside the controls they must beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tokenizers import Tokenizer

import molt.kv  # noqa: F401
from molt.fitting.fit import load_for_fit
from molt.kv import map_file
from molt.kv import transplant as transplant_module
from molt.kv.cache import PreallocatedCache
from molt.kv.handoff_quality import (
    Comparison,
    SwitchReference,
    judge,
    own_cache,
    switch_reference,
    zero_cache,
)
from molt.kv.kv_state import KVState
from molt.kv.loaded_rung import LoadedRung
from molt.kv.map_file import binding
from molt.kv.project import KVMap, project
from molt.kv.transplant import Islands, carry, transplant
from molt.models.ladder_file import LadderSpec, resolve
from molt.models.pico.corpus import shipped_documents
from molt.models.rope import Rope

CONTEXT_TOKENS = 256
DOCUMENTS = 4
PAIRS = [("tier0", "tier1"), ("tier1", "tier0"), ("tier0", "tier2")]


@cache
def ladder() -> LadderSpec:
    return resolve("pico")


@cache
def rung(name: str) -> LoadedRung:
    return load_for_fit(ladder(), ladder().rung(name))


@cache
def texts() -> list[list[int]]:
    """The first tokens of the first long enough held-out documents, and one more for the control."""
    tokenizer = Tokenizer.from_file(str(ladder().tokenizer))
    encoded = (tokenizer.encode(text).ids[: CONTEXT_TOKENS + 1] for _, text in shipped_documents())
    return [ids for ids in encoded if len(ids) == CONTEXT_TOKENS + 1][: DOCUMENTS + 1]


@cache
def kv_map(source: str, dest: str) -> KVMap:
    spec, pair = ladder(), (ladder().rung(source), ladder().rung(dest))
    path = spec.maps[pair[0].weights, pair[1].weights]
    return map_file.load(path, binding(spec, source, dest))


@dataclass(frozen=True)
class Case:
    """One document at the point of the switch."""

    known: list[int]
    other: list[int]
    cache: PreallocatedCache
    by: SwitchReference


@cache
def cases(source: str, dest: str) -> list[Case]:
    made = []
    for known, other in zip(texts(), texts()[1:], strict=False):
        source_cache = rung(source).prefill_afresh(known[:-1])
        made.append(
            Case(known, other, source_cache, switch_reference(rung(source), rung(dest), source_cache, known))
        )
    return made


def judged(source: str, dest: str, make: Callable[[Case], PreallocatedCache]) -> list[Comparison]:
    return [judge(rung(dest), make(case), case.by) for case in cases(source, dest)]


def islands_alone(rung_: LoadedRung, known: list[int]) -> PreallocatedCache:
    """The most recent tokens that a transplant reads natively, and no history before them."""
    first = len(known) - 1 - Islands().last
    made = PreallocatedCache(rung_.layout, Islands().last)
    rung_.prefill(made, known[first:-1], first)
    return made


def without_the_sandwich(*switch: Any) -> PreallocatedCache:
    """A transplant whose map sees and gives keys as if they had no position."""

    def flat(rope: Rope) -> Rope:
        return Rope(torch.zeros_like(rope.inv_freq))  # turns nothing

    def project_flat(
        kv_map: KVMap, state: KVState, inputs: torch.Tensor, source: Rope, dest: Rope
    ) -> KVState:
        return project(kv_map, state, inputs, flat(source), flat(dest))

    with patch.object(transplant_module, "project", project_flat):
        return transplant(*switch)


def makers(source: str, dest: str) -> dict[str, Callable[[Case], PreallocatedCache]]:
    """The map, and what it must beat."""
    start, end = rung(source), rung(dest)
    return {
        "map": lambda case: transplant(
            case.cache, start.rope, kv_map(source, dest), end, case.known, CONTEXT_TOKENS
        ),
        "no rope sandwich": lambda case: without_the_sandwich(
            case.cache, start.rope, kv_map(source, dest), end, case.known, CONTEXT_TOKENS
        ),
        "no history": lambda case: PreallocatedCache(end.layout, 0),
        "zero cache": lambda case: zero_cache(end, case.cache.positions),
        "another document": lambda case: own_cache(end, case.other[:-1], case.cache.positions),
        "its islands alone": lambda case: islands_alone(end, case.known),
        "carry": lambda case: carry(case.cache.fork(spare=0), end, case.known, CONTEXT_TOKENS),
    }


@cache
def kl(source: str, dest: str, which: str) -> float:
    """Mean KL to the destination's own cache, nats."""
    return mean(comparison.carried.kl for comparison in judged(source, dest, makers(source, dest)[which]))


@pytest.mark.parametrize(("source", "dest"), PAIRS)
@pytest.mark.parametrize(
    "control", ["no history", "zero cache", "another document", "no rope sandwich", "its islands alone"]
)
def test_the_map_is_far_nearer_to_the_own_cache_than_any_control(
    source: str, dest: str, control: str
) -> None:
    assert kl(source, dest, "map") < 0.5 * kl(source, dest, control)


@pytest.mark.parametrize(("source", "dest"), PAIRS)
def test_most_of_what_history_is_worth_survives(source: str, dest: str) -> None:
    """Over all documents together; one document alone may be worth too little to divide by."""
    comparisons = judged(source, dest, makers(source, dest)["map"])
    carried, native, nothing = (
        mean(getattr(comparison, which).nll for comparison in comparisons)
        for which in ("carried", "native", "nothing")
    )
    assert nothing - native > 0.1
    assert (nothing - carried) / (nothing - native) > 0.6


@pytest.mark.parametrize(("source", "dest"), PAIRS)
def test_controls_differ_so_the_metric_measures_something(source: str, dest: str) -> None:
    for control in ("no history", "zero cache", "another document"):
        assert kl(source, dest, control) > 0.05


@pytest.mark.parametrize(("source", "dest"), [("tier1", "tier2"), ("tier2", "tier1")])
def test_a_cache_carried_to_another_precision_is_almost_its_own(source: str, dest: str) -> None:
    assert kl(source, dest, "carry") < 0.01
