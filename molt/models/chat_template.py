"""The chat template that comes with a model: its source, and the tokens it may name. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molt.errors import LadderError
from molt.formats.json_file import read_json
from molt.models.tokenizer_file import read_tokens

TEMPLATE, TOKENIZER_CONFIG, TOKENS_MAP = (
    "chat_template.jinja",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
TEMPLATE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A program in jinja's language; ``tokens`` are spellings of special tokens by the name it knows them by."""

    source: str
    tokens: Mapping[str, str]


def find_chat_template(folder: Path, tokenizer: Path) -> ChatTemplate | None:
    """The chat template of a model's folder, or of that of its tokenizer; ``None`` if it has none.

    As in transformers, a file of its own comes before ``tokenizer_config.json``, and of several templates there the
    one named ``default`` is meant. Raises ``LadderError`` if a file cannot be read.
    """
    for place in dict.fromkeys((folder, tokenizer.parent)):
        if (source := _source(place)) is not None:
            return ChatTemplate(source, _tokens(place, tokenizer))
    return None


def _source(folder: Path) -> str | None:
    path = folder / TEMPLATE
    if path.is_file():
        try:
            raw = path.read_bytes()
            if len(raw) > TEMPLATE_BYTES_MAX:
                raise LadderError(
                    f"{path}: {len(raw)} bytes, more than the {TEMPLATE_BYTES_MAX} of a chat template"
                )
            return raw.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise LadderError(f"{path}: {error}") from None
    template = _table(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(template, list):
        named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) and template else None


def _tokens(folder: Path, tokenizer: Path) -> dict[str, str]:
    """Special tokens as the model's tokenizer settings have them; without such, as its configuration does."""
    if (folder / TOKENIZER_CONFIG).is_file():
        settings = _table(folder / TOKENIZER_CONFIG)
        if "added_tokens_decoder" not in settings:
            settings = _table(folder / TOKENS_MAP) | settings
        spelled = {name: _spelling(value) for name, value in settings.items() if name.endswith("_token")}
        return {name: text for name, text in spelled.items() if text is not None}
    spellings = read_tokens(tokenizer).spellings
    config = _table(folder / "config.json")
    ids = {name: config.get(f"{name}_id") for name in ("bos_token", "eos_token", "pad_token")}
    return {
        name: spellings[token] for name, token in ids.items() if type(token) is int and token in spellings
    }


def _spelling(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise LadderError(f"{path}: no table of settings")
    return content
