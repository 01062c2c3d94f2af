"""A process that renders one chat template, over and over: a line of JSON in, a line of JSON out.

Run as a script by ``molt.server.templates``. A template is a program that came with a model: it runs in jinja's sandbox
with the settings of transformers, in bounded memory, in a process that is ended when it takes too long.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_MEMORY_BYTES_MAX = 512 * 1024 * 1024
RENDERED_CHARS_MAX = 16 * 1024 * 1024
TEMPLATE_ERROR_CHARS_MAX = 300


class GenerationBlock(Extension):
    """``{% generation %}`` marks what the model itself writes, for training; here it only stands for its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The content of the block, with variables of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Refused(Exception):
    """What a template raises by itself, with its message."""


def _raise_exception(message: object) -> None:
    raise Refused(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _template(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _bound_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # not every system can
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (RENDER_MEMORY_BYTES_MAX, RENDER_MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(template: jinja2.Template, request: dict[str, Any]) -> dict[str, str]:
    try:
        text = template.render(request)
    except Refused as error:
        return {"refused": _short(error)}
    except Exception as error:  # whatever a program raises
        return {"error": _short(f"{type(error).__name__}: {error}")}
    if len(text) > RENDERED_CHARS_MAX:
        return {"error": f"makes a text of more than {RENDERED_CHARS_MAX} characters"}
    return {"text": text}


def _short(reason: object) -> str:
    line = " ".join(str(reason).split())
    return line if len(line) <= TEMPLATE_ERROR_CHARS_MAX else f"{line[:TEMPLATE_ERROR_CHARS_MAX]}..."


def _say(message: dict[str, str]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    """Read the template, say whether it compiles, and then render it for every line of variables."""
    _bound_memory()
    try:
        template = _template(json.loads(sys.stdin.readline()))
    except Exception as error:
        _say({"error": _short(f"{type(error).__name__}: {error}")})
        return
    _say({"text": ""})
    for line in sys.stdin:
        _say(_answer(template, json.loads(line)))


if __name__ == "__main__":
    main()
