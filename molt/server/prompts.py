"""From the prompt of a request to token ids.

Rules of this module:

- Chats are laid out by the model's own chat template. Where it has none, in one of three formats, chosen by the tokens
  that the tokenizer has: ChatML, the headers of Llama 3, or (where it has neither) the texts one after the other.
- Special tokens of a chat come from the template or the format alone. The content of a message is text, even where it
  spells one: what spells one is marked before the layout, and tokenised as text after it.
- A text begins with the tokens that the tokenizer puts there, once. In a chat the template decides.
- A prompt that must be too long is refused before it is tokenised: no token is longer than the longest entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from molt.errors import InputError
from molt.models.chat_template import ChatTemplate
from molt.models.tokenizer_file import frame, framed, read_tokenizer
from molt.server.templates import TemplateRenderer

SYSTEM = "You are a helpful assistant."
"""The system message of a chat in ChatML that has none, where the model has no template of its own."""

CHATML = ("<|im_start|>", "<|im_end|>")
LLAMA3 = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
BEGIN_OF_TEXT = "<|begin_of_text|>"
PRIVATE_USE = range(0xF0000, 0xFFFFE)
"""Characters without a meaning of their own; two that occur nowhere in a chat mark what spells a token in it."""

Turn = tuple[str, str]
"""Role and text of a message."""


class PromptTooLong(InputError):
    """A prompt that does not fit into the context."""


class Prompter:
    """Tokenises for one ladder. Prompts hold at most ``tokens_max`` tokens."""

    def __init__(self, tokenizer: Path, tokens_max: int, template: ChatTemplate | None = None) -> None:
        self._path = tokenizer
        self._tokenizer = read_tokenizer(tokenizer)
        self._no_specials: Tokenizer | None = None
        self._before, self._after = frame(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        ids = {token.content: number for number, token in added.items()}
        controls = {token.content for token in added.values() if token.special}
        self._unspecial = {token for token in (*CHATML, *LLAMA3, BEGIN_OF_TEXT) if token in ids} - controls
        self._controls = {text: ids[text] for text in controls | self._unspecial}
        self._spelled = _any_of(self._controls)
        self._beginnings = {text[:end] for text in self._controls for end in range(1, len(text))}
        self._endings = {text[begin:] for text in self._controls for begin in range(1, len(text))}
        self._longest_control = max(map(len, self._controls), default=0)
        self._longest = max(len(entry.encode()) for entry in self._tokenizer.get_vocab())
        self._template = None if template is None else TemplateRenderer(template)
        self.vocabulary = self._tokenizer.get_vocab_size()
        self.tokens_max = tokens_max

    @property
    def format(self) -> str:
        """How chats are laid out: ``template`` (the model's own), ``chatml``, ``llama3`` or ``plain``."""
        if self._template is not None:
            return "template"
        if self._controls.keys() >= set(CHATML):
            return "chatml"
        return "llama3" if self._controls.keys() >= set(LLAMA3) else "plain"

    def text(self, prompt: str) -> tuple[int, ...]:
        """Tokens of a text, in which special tokens may be spelled; ``InputError`` if there are none or too many."""
        return self._checked(framed(self._ids(prompt), self._before, self._after))

    def tokens(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """A prompt that is tokens already; ``InputError`` for one that the vocabulary does not have."""
        if any(not 0 <= token < self.vocabulary for token in prompt):
            raise InputError(f"token must be between 0 and {self.vocabulary - 1}")
        return self._checked(tuple(prompt))

    def chat(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        """Tokens of a chat, up to where the answer begins; ``InputError`` if they are too many."""
        marks = self._marks("".join(text for _, text in turns))
        marked = [(role, self._marked(text, *marks)) for role, text in turns]
        if self._template is not None:
            laid_out = self._template.render([{"role": role, "content": text} for role, text in marked])
            return self._checked(tuple(self._layout_ids(laid_out, *marks)))
        match self.format:
            case "chatml":
                laid_out = _chatml(marked)
            case "llama3":
                laid_out = _llama3(marked, begin=BEGIN_OF_TEXT if BEGIN_OF_TEXT in self._controls else "")
            case _:
                laid_out = "".join(f"{text}\n\n" for _, text in marked)
        return self._checked(framed(self._layout_ids(laid_out, *marks), self._before, ()))

    # --- what spells a token in the content of a message

    def _marks(self, contents: str) -> tuple[str, str]:
        """Two characters that occur neither in these contents nor in the template."""
        used = set(contents) | set(self._template.source if self._template else "")
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
        try:
            return next(free), next(free)
        except StopIteration:
            raise InputError("every character of a private use area in one chat") from None

    def _marked(self, content: str, begin: str, end: str) -> str:
        """A content whose spelled tokens stand between two marks; a lone mark parts it from what may complete one."""
        marked = self._spelled.sub(lambda spelled: f"{begin}{spelled[0]}{end}", content)
        lengths = range(1, min(self._longest_control, len(content) + 1))
        before = begin if any(content[:length] in self._endings for length in lengths) else ""
        after = end if any(content[-length:] in self._beginnings for length in lengths) else ""
        return f"{before}{marked}{after}"

    def _layout_ids(self, laid_out: str, begin: str, end: str) -> list[int]:
        """Tokens of a chat that is laid out: its own special tokens, and as text those that a content spells."""
        if begin not in laid_out and end not in laid_out:
            return self._ids(laid_out)
        self._check_length(laid_out)
        ids: list[int] = []
        for part in self._parts(laid_out, begin, end):
            ids += [part] if isinstance(part, int) else self._text_ids(part)
        return ids

    def _parts(self, laid_out: str, begin: str, end: str) -> Iterator[int | str]:
        """Special tokens of the layout, and the texts between them as long as they go."""
        text = ""
        for piece in re.split(
            f"({begin}(?:{self._spelled.pattern}){end}|[{begin}{end}]|{self._spelled.pattern})", laid_out
        ):
            if piece in self._controls:
                yield from (text, self._controls[piece])
                text = ""
            elif (bare := piece.strip(begin + end)) != piece and bare in self._unspecial:
                yield (
                    text + bare[0]
                )  # the tokenizer knows it as no special token: it would find it in any text
                text = bare[1:]
            elif piece in (begin, end) and self._unspecial:
                yield text
                text = ""
            else:
                text += bare
        yield text

    def _text_ids(self, text: str) -> list[int]:
        if self._no_specials is None:
            self._no_specials = read_tokenizer(self._path)
            self._no_specials.encode_special_tokens = True  # a spelled special token is text
        return self._no_specials.encode(text, add_special_tokens=False).ids if text else []

    # --- tokens

    def _ids(self, text: str) -> list[int]:
        self._check_length(text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids if text else []

    def _check_length(self, text: str) -> None:
        least = len(text.encode()) // self._longest
        if least > self.tokens_max:
            raise PromptTooLong(f"at least {least} tokens; a prompt may have at most {self.tokens_max}")

    def _checked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        if not ids:
            raise InputError("has no tokens")
        if len(ids) > self.tokens_max:
            raise PromptTooLong(f"{len(ids)} tokens; a prompt may have at most {self.tokens_max}")
        return ids


def _any_of(texts: Sequence[str] | dict[str, int]) -> re.Pattern[str]:
    """Finds any of the texts, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def _chatml(turns: Sequence[Turn]) -> str:
    if turns[0][0] != "system":
        turns = [("system", SYSTEM), *turns]
    return (
        "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
    )


def _llama3(turns: Sequence[Turn], begin: str) -> str:
    def header(role: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    said = "".join(f"{header(role)}{text.strip()}<|eot_id|>" for role, text in turns)
    return f"{begin}{said}{header('assistant')}"
