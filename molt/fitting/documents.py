"""Documents to fit maps on where none are named: prose, Python sources, and both as chats.

Prose is that of Debian packages (``molt.models.pico.corpus``), code is Python's own library as installed; where the
packages are not here, its docstrings are the prose. Where
the ladder's tokenizer knows ChatML, its models expect chats: a quarter of the documents then come as questions
and answers made from their own paragraphs or functions. Documents are held out by name, and so for good.

    python -m molt.kv.corpus FOLDER    # write the held-out ones of prose, code and chats, for molt eval --text FOLDER
"""

from __future__ import annotations

import ast
import hashlib
import platform
import random
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from tokenizers import Tokenizer

from molt.errors import InputError
from molt.fitting.collect import Corpus, Document
from molt.formats.new_file import check_folder
from molt.models.pico.corpus import corpus_is_here
from molt.program import run_command

CHAT_TOKEN = "<|im_start|>"  # noqa: S105
SYSTEM = "You are a helpful assistant."
MODULES_HELDOUT = 0.10  # of Python's modules; prose brings its own split
CHAT_FRACTION = 0.25
CHARS_MIN = 1200
TURNS_MAX = 12
PARAGRAPH_CHARS_MIN = 60
DOCSTRING_CHARS_MIN = 30
FUNCTION_CHARS = range(200, 3000)
LEFT_OUT = (
    "site-packages/",
    "test/",
    "idlelib/",
    "lib2to3/",
    "ensurepip/",
    "encodings/",
    "turtledemo/",
    "pydoc_data/",
)
PROSE_QUESTIONS = (
    "Summarise the following text.\n\n{text}",
    "Here is a text:\n\n{text}\n\nWhat comes next?",
    "Explain this to me:\n\n{text}",
    "{text}\n\nCan you continue?",
)
CODE_QUESTIONS = (
    "Write a Python function `{name}`. {text}",
    "I need `{name}` in Python: {text}",
    "Implement `{name}`.\n\n{text}",
)


def default_corpus(tokenizer: Tokenizer) -> Corpus:
    """Documents for a ladder with that tokenizer: with ChatML prose, code and chats, without it prose alone."""
    return pico_corpus() if tokenizer.token_to_id(CHAT_TOKEN) is None else mixed_corpus()


def pico_corpus() -> Corpus:
    """Documents of Debian packages, shuffled by a fixed seed; see ``molt.models.pico.corpus``. Those at hand, if these
    are not here."""
    if not corpus_is_here():
        return _said(at_hand_corpus(chats=False))
    fit, heldout = (_prose(split) for split in ("fit", "heldout"))
    for part in (fit, heldout):
        random.Random(0).shuffle(part)  # noqa: S311
    return Corpus(tuple(fit), tuple(heldout), _packages(fit))


def mixed_corpus() -> Corpus:
    """Prose, code and chats, in turn, in a fixed order. Those at hand, if the prose is not here."""
    if not corpus_is_here():
        return _said(at_hand_corpus(chats=True))
    prose, code = {split: _prose(split) for split in ("train", "heldout")}, list(_modules())
    parts = []
    for split in ("train", "heldout"):
        modules = [
            one for one in code if (_share("heldout", one[0]) < MODULES_HELDOUT) == (split == "heldout")
        ]
        parts.append(_in_turn(prose[split], modules))
    fit, heldout = parts
    library = f"the library of Python {platform.python_version()}"
    return Corpus(fit, heldout, (*_packages(prose["train"]), library, "chats made of these"))


def at_hand_corpus(*, chats: bool) -> Corpus:
    """Python's own sources and their docstrings, in turn; with ``chats``, a quarter of them as chats.

    The excerpts that ship with Molt are held out, as from every fit: they are what ``molt eval`` judges by.
    """
    from molt.models.pico.corpus import shipped_documents

    modules = list(_modules())
    if not modules:
        raise InputError("no texts are at hand to fit on: name a folder of them with --documents")
    parts: dict[bool, tuple[list[Document], list[Document]]] = {
        False: ([], []),
        True: (list(shipped_documents()), []),
    }
    for name, text in modules:
        prose, code = parts[_share("heldout", name) < MODULES_HELDOUT]
        code.append((name, text))
        prose.append((f"{name} docstrings", docstrings(text)))
    fraction = CHAT_FRACTION if chats else 0.0
    library = f"the library of Python {platform.python_version()}"
    sources = (library, "its docstrings", *(["chats made of these"] if chats else []))
    return Corpus(_in_turn(*parts[False], fraction), _in_turn(*parts[True], fraction), sources)


def docstrings(text: str) -> str:
    """The docstrings of a module, its own first; nothing of what is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return "\n\n".join(filter(None, found))


def _said(corpus: Corpus) -> Corpus:
    print(
        f"molt: the corpus of Debian packages is not here: taking {', '.join(corpus.sources)} "
        "(--documents FOLDER names other texts; python -m molt.models.pico.corpus builds the corpus)",
        file=sys.stderr,
    )
    return corpus


def _prose(split: str) -> list[Document]:
    from molt.models.pico.corpus import documents

    try:
        return list(documents(split))  # type: ignore[arg-type]
    except FileNotFoundError as error:
        raise InputError(f"{error} (or name a folder of texts with --documents)") from error


def _packages(prose: Iterable[Document]) -> tuple[str, ...]:
    return tuple(sorted({name.partition("/")[0] for name, _ in prose}))


def _modules() -> Iterator[Document]:
    """Python's own modules, without tests and tables."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(LEFT_OUT) or "/test" in name or "_sysconfigdata" in name:
            continue
        try:
            yield f"python/{name}", path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _in_turn(
    prose: Iterable[Document], modules: Iterable[Document], chat_fraction: float = CHAT_FRACTION
) -> tuple[Document, ...]:
    """The kinds one after the other, each in an order of its own; what is left of the longest at the end."""
    kinds: dict[str, list[Document]] = {"prose": [], "code": [], "chat": []}
    for kind, documents, chat in (("prose", prose, prose_chat), ("code", modules, code_chat)):
        for name, text in documents:
            is_chat = _share("chat", name) < chat_fraction
            made = chat(name, text) if is_chat else text
            if made is not None and len(made) >= CHARS_MIN:
                kinds["chat" if is_chat else kind].append((name, made))
    for documents in kinds.values():
        documents.sort(key=lambda one: _share("order", one[0]))
    longest = max(len(documents) for documents in kinds.values())
    ordered = (
        documents[turn] for turn in range(longest) for documents in kinds.values() if turn < len(documents)
    )
    return tuple(ordered)


def prose_chat(name: str, text: str) -> str | None:
    """A text as questions with a few paragraphs and answers with the next; ``None`` if it has too few."""
    chooser = random.Random(name)  # noqa: S311
    paragraphs = [part for part in text.split("\n\n") if len(part) > PARAGRAPH_CHARS_MIN]
    turns: list[tuple[str, str]] = []
    at = 0
    while at + 1 < len(paragraphs) and len(turns) < TURNS_MAX:
        asked, answered = chooser.randint(1, 4), chooser.randint(1, 3)
        question = chooser.choice(PROSE_QUESTIONS).format(text="\n\n".join(paragraphs[at : at + asked]))
        at += asked
        turns.append((question, "\n\n".join(paragraphs[at : at + answered])))
        at += answered
    return _chat(turns)


def code_chat(name: str, text: str) -> str | None:
    """A module as requests for its functions, by their docstrings; ``None`` if it has too few."""
    chooser = random.Random(name)  # noqa: S311
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    turns: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        docstring = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        source = ast.get_source_segment(text, node) if docstring else None
        if docstring and source and len(docstring) > DOCSTRING_CHARS_MIN and len(source) in FUNCTION_CHARS:
            assert isinstance(node, ast.FunctionDef)
            question = chooser.choice(CODE_QUESTIONS).format(name=node.name, text=docstring)
            turns.append((question, f"Here is `{node.name}`:\n\n```python\n{source}\n```\n"))
    chooser.shuffle(turns)
    return _chat(turns[:TURNS_MAX])


def _chat(turns: Iterable[tuple[str, str]]) -> str | None:
    answered = [(question, answer) for question, answer in turns if answer]
    if len(answered) < 2:
        return None
    said = [("system", SYSTEM)]
    for question, answer in answered:
        said += [("user", question), ("assistant", answer)]
    return "".join(f"{CHAT_TOKEN}{role}\n{text}<|im_end|>\n" for role, text in said)


def _share(salt: str, name: str) -> float:
    """A number in [0, 1) that depends on ``salt`` and ``name`` alone."""
    return int.from_bytes(hashlib.sha256(f"{salt}:{name}".encode()).digest()[:6], "big") / 2**48


def write_heldout(folder: Path) -> int:
    """Write the held-out documents of ``mixed_corpus`` into a new or empty folder, a file each; returns how many."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already, and not an empty folder")
    check_folder(folder, "FOLDER")
    heldout = mixed_corpus().heldout
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in heldout:
        (folder / f"{name.replace('/', '__')}.txt").write_text(text, encoding="utf-8", newline="\n")
    return len(heldout)


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New or empty folder for the texts.")],
) -> None:
    """Write documents that no shipped map was fitted on: prose, Python sources, and both as chats.

    Example: python -m molt.fitting.documents runs/heldout
    """
    print(f"{write_heldout(folder)} documents in {folder}", file=sys.stderr)


if __name__ == "__main__":
    run_command(command)
