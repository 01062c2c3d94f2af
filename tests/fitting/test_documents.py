"""Documents for a ladder whose models chat: two of their kinds are made of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.errors import InputError
from molt.fitting import documents
from molt.fitting.collect import Corpus
from molt.fitting.documents import code_chat, prose_chat
from molt.models.pico.corpus import shipped_documents

BODY = "y = x\n    " * 30
MODULE = f'''
def one(x):
    """Return something that takes a sentence to describe."""
    {BODY}
    return x


def two(x):
    """Return something else that takes a sentence to describe."""
    {BODY}
    return x


def short():
    """No."""
'''


def test_a_text_becomes_questions_and_answers_with_its_own_paragraphs() -> None:
    paragraphs = [f"Paragraph {number} of this text, " + "long enough to count " * 4 for number in range(12)]
    chat = prose_chat("name", "\n\n".join(paragraphs))
    assert chat is not None
    assert chat == prose_chat("name", "\n\n".join(paragraphs))
    assert chat.startswith("<|im_start|>system\n")
    assert chat.count("<|im_start|>user\n") == chat.count("<|im_start|>assistant\n") >= 2
    positions = [chat.index(paragraph) for paragraph in paragraphs if paragraph in chat]
    assert positions == sorted(positions)


def test_a_module_becomes_requests_for_its_documented_functions() -> None:
    chat = code_chat("name", MODULE)
    assert chat is not None
    assert chat.count("<|im_start|>assistant\nHere is `") == 2
    assert "def short" not in chat


def test_what_gives_no_two_turns_is_no_chat() -> None:
    assert prose_chat("name", "One paragraph.") is None
    assert code_chat("name", "x = 1") is None
    assert code_chat("name", "this is not Python") is None


def test_held_out_documents_are_written_a_file_each_and_never_over_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heldout = (("package/a.html", "prose é\n"), ("python/b.py", "code\n"))
    monkeypatch.setattr(documents, "mixed_corpus", lambda: Corpus((("package/c", "fitted"),), heldout, ()))
    folder = tmp_path / "new" / "texts"
    assert documents.write_heldout(folder) == 2
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert written == {"package__a.html.txt": "prose é\n", "python__b.py.txt": "code\n"}
    with pytest.raises(InputError, match="texts: is there already, and not an empty folder"):
        documents.write_heldout(folder)


def test_without_the_packages_python_itself_is_read_and_what_judges_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No apt, no network; and no excerpt by which ``molt eval`` judges is fitted on."""
    monkeypatch.setenv("MOLT_CACHE", str(tmp_path))
    shipped = dict(shipped_documents())
    for make, chats in ((documents.pico_corpus, False), (documents.mixed_corpus, True)):
        corpus = make()
        said = capsys.readouterr().err
        assert "is not here: taking the library of Python" in said
        assert "--documents FOLDER" in said
        assert said.count("\n") == 1
        fitted, heldout = dict(corpus.fit), dict(corpus.heldout)
        assert sum(map(len, fitted.values())) > 2_000_000
        assert not fitted.keys() & (heldout.keys() | shipped.keys())
        assert len(heldout.keys() & shipped.keys()) > len(shipped) // 2
        assert any("<|im_start|>" in text for text in fitted.values() if text.startswith("<|im")) == chats
        names = {name.partition(" ")[0] for name in fitted}
        assert not names & {name.partition(" ")[0] for name in heldout}, "docstrings go with their module"


def test_docstrings_are_the_prose_of_a_module() -> None:
    assert documents.docstrings(MODULE).count("that takes a sentence to describe.") == 2
    assert documents.docstrings("this is not Python") == ""
    assert documents.docstrings("nul \0") == ""
