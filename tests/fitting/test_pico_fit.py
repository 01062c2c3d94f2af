"""Shared maps of pico, fitted here on little text, and used for a switch."""

from __future__ import annotations

from statistics import mean

import pytest
from tokenizers import Tokenizer

from molt.fitting.collect import Corpus
from molt.fitting.fit import Fitted, Options, fit_ladder
from molt.kv import map_file
from molt.kv.handoff_quality import judge
from molt.kv.map_file import binding
from molt.kv.transplant import transplant
from molt.models.pico.corpus import shipped_documents
from tests.kv.test_pico_transplant import CONTEXT_TOKENS, cases, kl, ladder, rung, texts

OPTIONS = Options(rows=2000, heldout_rows=250, rank=64, ridge=0.1, window=256, windows=2)
PAIRS = [("tier0", "tier1"), ("tier1", "tier0")]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """The shipped documents but for those that ``cases`` judges by."""
    tokenizer = Tokenizer.from_file(str(ladder().tokenizer))
    judged = {tuple(ids[:32]) for ids in texts()}
    rest = [one for one in shipped_documents() if tuple(tokenizer.encode(one[1]).ids[:32]) not in judged]
    return Corpus(tuple(rest[3:]), tuple(rest[:3]), ("shipped",))


@pytest.fixture(scope="module")
def fitted(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Fitted]:
    """By direction."""
    made = fit_ladder("pico", tmp_path_factory.mktemp("maps"), corpus, OPTIONS)
    return {(one.card.source, one.card.dest): one for one in made}


@pytest.mark.parametrize("pair", PAIRS)
def test_some_of_documents_not_fitted_on_is_explained(
    fitted: dict[tuple[str, str], Fitted], pair: tuple[str, str]
) -> None:
    card = fitted[pair].card
    assert mean(card.residual_k[1:]) < 0.75
    assert mean(card.residual_v[1:]) < 0.75


@pytest.mark.parametrize(("source", "dest"), PAIRS)
def test_it_is_nearer_to_the_own_cache_than_any_control(
    fitted: dict[tuple[str, str], Fitted], source: str, dest: str
) -> None:
    kv_map = map_file.load(fitted[source, dest].path, binding(ladder(), source, dest))
    assert kv_map.code is not None
    found = mean(
        judge(
            rung(dest),
            transplant(case.cache, rung(source).rope, kv_map, rung(dest), case.known, CONTEXT_TOKENS),
            case.by,
        ).carried.kl
        for case in cases(source, dest)
    )
    for control in ("no history", "zero cache", "another document", "its islands alone"):
        assert found < kl(source, dest, control)
