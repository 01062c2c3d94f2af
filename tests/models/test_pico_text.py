"""Pico's corpus and tokenizer: what the cleaner keeps, what the splits promise, and that any text round-trips."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from molt.models.pico import END_OF_TEXT, END_OF_TEXT_ID, WEIGHTS
from molt.models.pico.corpus import (
    SHIPPED_PACKAGES,
    deduplicate,
    documents,
    in_split,
    is_prose,
    select_shipped,
    shipped_documents,
)
from molt.models.pico.markup import html_to_text, normalise, pod_to_text
from molt.models.pico.sources import SOURCES
from molt.models.pico.tokenizer import VOCABULARY, load_tokenizer, train_tokenizer

TOKENIZER = load_tokenizer()
NAMES = st.from_regex(r"[a-z-]{1,12}/[a-z/.-]{1,30}", fullmatch=True)


# --- markup ---


def test_html_keeps_words_and_drops_navigation_scripts_and_comments() -> None:
    page = """<html><head><title>T</title></head><body><div class="sphinxsidebar"><p>menu</p></div>
    <h1>Files<a class="headerlink" href="#x">¶</a></h1><!-- hidden --><script>var x = "<p>";</script>
    <p>One   <b>two</b>
    three.</p><nav><p>next</p></nav></body></html>"""
    assert html_to_text(page) == "Files\n\nOne two three.\n"


def test_html_keeps_the_lines_of_preformatted_text() -> None:
    page = "<p>Run:</p><pre>$ git  add <i>file</i>\n\n\n  $ git commit</pre><p>Done.</p>"
    assert html_to_text(page) == "Run:\n\n$ git  add file\n\n  $ git commit\n\nDone.\n"


def test_html_resolves_entities_and_survives_tags_that_are_never_closed() -> None:
    assert html_to_text("<ul><li>a &lt; b<li>c&nbsp;&amp; d</ul><p>e<br>f") == "a < b\n\nc & d\n\ne\n\nf\n"


def test_html_drops_a_nested_block_to_its_end_and_no_further() -> None:
    page = '<div class="toc"><div><p>1</p></div><p>2</p></div><p>text</p>'
    assert html_to_text(page) == "text\n"


def test_pod_loses_commands_and_formatting_codes() -> None:
    pod = (
        "=head1 NAME\n\nB<open> I<file>, see L<the page|perlfunc/open> and C<< $a->{b} >>\n\n"
        "=over 4\n\n=item E<lt>\n\nless\n\n=back\n\n=begin html\n\n<p>\n\n=end html\n\n=cut\n"
    )
    assert pod_to_text(pod) == "NAME\n\nopen file, see the page and $a->{b}\n\n<\n\nless\n"


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(alphabet="<>/ab\"'&;= \n!-", max_size=80))
def test_no_html_is_refused(page: str) -> None:
    assert html_to_text(page).endswith("\n")


# --- documents and splits ---


def test_a_long_paragraph_stays_only_where_it_is_first() -> None:
    long = "word " * 30
    found = list(deduplicate([("a", f"{long}\n\nshort\n"), ("b", f"short\n\n{long}\n\nown\n")]))
    assert found == [("a", f"{long}\n\nshort\n"), ("b", "short\n\nown\n")]


def test_prose_is_long_english_and_mostly_words() -> None:
    assert is_prose("It is a long way to the sea, said the whale. " * 20)
    assert not is_prose("too short")
    assert not is_prose("Это длинный русский текст. " * 50)
    assert not is_prose("0x1f 0x20 | 17 | 19.3 " * 50)


@given(NAMES)
def test_every_document_is_in_train_or_held_out_and_fit_is_a_part_of_train(name: str) -> None:
    assert in_split(name, "train") != in_split(name, "heldout")
    assert in_split(name, "train") or not in_split(name, "fit")


def test_the_split_of_a_name_never_changes() -> None:
    names = [f"git-doc/page-{i}.html" for i in range(200)]
    assert [i for i, name in enumerate(names) if in_split(name, "heldout")] == [11, 15, 18, 49, 52, 68, 156]
    assert [i for i, name in enumerate(names) if in_split(name, "fit")][:6] == [19, 35, 36, 38, 43, 69]


def test_documents_come_from_the_corpus_file_by_split(tmp_path: Path) -> None:
    records = [{"name": f"p/{i}", "text": f"text {i}\n"} for i in range(300)]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    train, heldout = list(documents("train", tmp_path)), list(documents("heldout", tmp_path))
    assert heldout
    assert sorted(train + heldout) == sorted((r["name"], r["text"]) for r in records)


def test_a_missing_corpus_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"python -m molt\.models\.pico\.corpus --cache"):
        list(documents("train", tmp_path))


def test_shipped_excerpts_are_held_out_and_from_the_named_packages() -> None:
    found = list(shipped_documents())
    assert select_shipped(found) == found
    assert all(in_split(name, "heldout") for name, _ in found)
    assert {name.split("/")[0] for name, _ in found} == set(SHIPPED_PACKAGES)
    assert sum(len(text.encode()) for _, text in found) < 200_000


def test_the_manifest_names_the_version_and_licence_of_every_source() -> None:
    manifest = json.loads((WEIGHTS / "corpus.json").read_text())
    assert [(entry["package"], entry["licence"]) for entry in manifest] == [
        (s.package, s.licence) for s in SOURCES
    ]
    assert all(entry["version"] and entry["documents"] > 0 for entry in manifest)


# --- tokenizer ---


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_the_tokenizer_has_the_promised_size_and_end_of_text() -> None:
    assert TOKENIZER.get_vocab_size() == VOCABULARY
    assert TOKENIZER.token_to_id(END_OF_TEXT) == END_OF_TEXT_ID
    assert TOKENIZER.encode(f"a{END_OF_TEXT}b").ids.count(END_OF_TEXT_ID) == 1


def test_transformers_loads_the_same_tokenizer() -> None:
    fast = PreTrainedTokenizerFast(tokenizer_file=str(WEIGHTS / "tokenizer.json"))
    text = "git commit --amend replaces the tip of the current branch."
    assert fast(text)["input_ids"] == TOKENIZER.encode(text).ids


def test_training_a_tokenizer_twice_gives_the_same() -> None:
    texts = [text for _, text in shipped_documents()][:4]
    assert train_tokenizer(texts, 400).to_str() == train_tokenizer(texts, 400).to_str()
