"""What is broken in the house fails here; ``make tidy`` prints that, and what is a matter of taste."""

from __future__ import annotations

import ast

import pytest

from tests import tidy


@pytest.mark.parametrize("what", tidy.BROKEN)
def test_nothing_is_broken(what: str) -> None:
    assert not tidy.BROKEN[what]()


def test_a_name_in_prose_is_looked_up() -> None:
    """The search finds what is there, and misses what is not: a module, an attribute of one, a path."""
    assert tidy._is_there("molt.core.plan")
    assert tidy._is_there("molt.core.plan.Run")
    assert not tidy._is_there("molt.core.plans")
    assert not tidy._is_there("molt.core.plan.Walk")
    assert tidy._PATH.findall("see `molt/core/plan.py`, docs/guides/ and molt/nowhere.py") == [
        "molt/core/plan.py",
        "docs/guides/",
        "molt/nowhere.py",
    ]


def test_the_examples_of_good_style_are_there() -> None:
    assert all((tidy.ROOT / path).is_file() for path in tidy.EXAMPLES)


def test_lengths_and_constants_are_read_off_the_code() -> None:
    """The readers see a function's lines, and a constant's value in a plain and in a tuple assignment."""
    lengths = tidy.function_lengths()
    assert lengths == sorted(lengths, key=lambda one: -one.lines)
    assert all(one.lines > 0 for one in lengths)
    (plain, pair) = ast.parse("A_NS = 5\nB_NS, C_NS = 6, 7\n").body
    assert [name for name, _ in tidy._assigned(plain)] == ["A_NS"]
    assert [(name, ast.unparse(value)) for name, value in tidy._assigned(pair)] == [
        ("B_NS", "6"),
        ("C_NS", "7"),
    ]
