"""Finds policies by name and builds them from a scenario's parameters.

A policy is named by the table of entry points ``molt.policies`` (an installed package may add to it) or as
``module:Class``, looked up in the current folder too; only a command line may say the latter. Its parameters are the
fields of its dataclass; a field ``cooldown_ns`` is written ``cooldown: 2s``
and a field ``reserve_bytes`` is written ``reserve: 4MiB``.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from molt import units
from molt.core.view import PROMISES, Policy
from molt.errors import InputError
from molt.paths import IMPORT_ROOT

GROUP = "molt.policies"
TEXT_CHARS_MAX = 300
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_NOT_THE_PLUGIN = ("<frozen ", str(Path(importlib.__file__).parent), str(IMPORT_ROOT / "molt"), "<string>")
T = TypeVar("T")


def known_policies() -> tuple[str, ...]:
    """Names of the installed policies, sorted."""
    return tuple(sorted(_installed()))


def make_policy(name: str, params: Mapping[str, object]) -> Policy:
    """The policy of that name (or ``module:Class``) with these parameters; ``InputError`` in one line otherwise."""
    policy_class = _policy_class(name)
    _check_contract(name, policy_class)
    arguments = dict(_argument(name, policy_class, key, value) for key, value in params.items())
    build: Any = policy_class
    try:
        return build(**arguments)
    except (TypeError, ValueError) as error:  # parameters that it refuses
        raise InputError(f"policy {name!r}: {in_a_line(str(error))}") from error
    except Exception as error:
        raise InputError(f"policy {name!r}: {said_by(error)}") from error


def _check_contract(name: str, policy_class: Any) -> None:
    """What ``molt.core.view.Policy`` asks for, before anything is run or written."""
    if not (dataclasses.is_dataclass(policy_class) and callable(getattr(policy_class, "decide", None))):
        raise InputError(f"policy {name!r}: not a dataclass with a decide method")
    called = getattr(policy_class, "name", None)
    if not (isinstance(called, str) and _NAME.fullmatch(called)):
        raise InputError(
            f"policy {name!r}: name: {called!r} is not a lower-case word of letters, digits, _ and -"
        )
    promises = getattr(policy_class, "promises", None)
    if not isinstance(promises, frozenset):
        raise InputError(f"policy {name!r}: promises: {promises!r} is not a frozenset (it may be empty)")
    for promise in sorted(map(str, promises - PROMISES)):
        raise InputError(
            f"policy {name!r}: promises: {promise!r}: unknown, {_nearest(promise, sorted(PROMISES))}"
        )
    cells = getattr(policy_class, "floor_cells", None)
    if not isinstance(cells, int) or isinstance(cells, bool) or cells < 0:
        raise InputError(f"policy {name!r}: floor_cells: {cells!r} is not a whole number of cells")


def _policy_class(name: str) -> Any:
    if ":" in name:
        module, _, attribute = name.partition(":")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return loaded(f"policy {name!r}", lambda: getattr(importlib.import_module(module), attribute))
    installed = _installed()
    if name not in installed:
        raise InputError(f"policy {name!r}: unknown, {_nearest(name, list(installed))}")
    return loaded(f"policy {name!r}", installed[name].load)


def loaded(what: str, load: Callable[[], T]) -> T:
    """What a plug-in's module gives; ``InputError`` in one line for whatever it raises: the module is the user's."""
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: {said_by(error)}") from error


def said_by(error: BaseException) -> str:
    """An exception of a plug-in in one line, with the file and line of the plug-in's that it came from, if any."""
    place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) and error.filename else None
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(_NOT_THE_PLUGIN) and not isinstance(error, SyntaxError):
            place = f"{frame.filename}:{frame.lineno}"
    reason = error.msg if isinstance(error, SyntaxError) else error
    said = in_a_line(f"{type(error).__name__}: {reason}")
    return said if place is None else f"{said} ({place})"


def in_a_line(text: str) -> str:
    """A text of others as one printable line of moderate length."""
    return "".join(char if char.isprintable() else " " for char in text[:TEXT_CHARS_MAX])


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _argument(policy: str, policy_class: Any, key: str, value: object) -> tuple[str, object]:
    fields = {
        field.name.removesuffix("_ns").removesuffix("_bytes"): field
        for field in dataclasses.fields(policy_class)
    }
    if key not in fields:
        raise InputError(f"policy {policy!r}: {key!r}: unknown parameter, {_nearest(key, list(fields))}")
    field = fields[key]
    try:
        if field.name.endswith("_ns"):
            return field.name, units.parse_duration(_text(value))
        if field.name.endswith("_bytes"):
            return field.name, units.parse_size(_text(value))
    except ValueError as error:
        raise InputError(f"policy {policy!r}: {key}: {value!r}: {error}") from error
    wanted = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}.get(str(field.type))
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
        raise InputError(f"policy {policy!r}: {key}: {value!r} is not {_article(str(field.type))}")
    return field.name, value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} needs a unit")
    return value


def _nearest(word: str, words: list[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.0)
    return f"nearest: {close[0]!r}" if close else "there are none"


def _article(kind: str) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}[kind]
