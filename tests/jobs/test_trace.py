"""Budget traces: what a budget comes to on a ladder, and what is refused, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molt.core.ladder import KVLayout, Ladder, Rung
from molt.errors import InputError
from molt.jobs import trace
from molt.jobs.trace import Budget, BudgetStep, Trace
from tests import strategies

MIB = 2**20


def _rung(name: str, weight_bytes: int, scratch_bytes: int) -> Rung:
    return Rung(name, name, "fp32", weight_bytes, scratch_bytes, KVLayout(2, 2, 8, 4), 256)


LADDER = Ladder(
    "toy", (_rung("tier0", 7 * MIB, MIB), _rung("tier1", 2 * MIB, 3), _rung("tier2", 1, 2)), routes=()
)


def _utf8(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "budget_bytes"),
    [
        ("40MiB", 40 * MIB),
        ("1B", 1),
        ("100% of tier0", 8 * MIB),
        ("150% of tier0", 12 * MIB),
        ("12.5%  of  tier0", MIB),
        ("0.0001% of tier0", 8),  # 8.388608, without the fraction
        ("100% of tier1 + 2MiB", 4 * MIB + 3),
        ("100% of tier1 - 3B", 2 * MIB),
        ("0% of tier1 + 1B", 1),
    ],
)
def test_a_budget_counts_weights_and_scratch(text: str, budget_bytes: int) -> None:
    assert trace.parse_budget(text).on(LADDER) == budget_bytes


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (40, "a size needs a unit, write for example 40MiB"),
        ("2G", "no unit 'G', write 2GiB or 2GB"),
        ("0B", "a budget is more than nothing"),
        ("150%", "not a budget, write for example 150% of tier0 or 150% of tier0 - 8MiB"),
        ("150% tier0", "not a budget, write for example 150% of tier0 or 150% of tier0 - 8MiB"),
        ("150% of tier0 + 10%", "no unit '%', use one of B, KiB, MB, MiB, GB, GiB, TB, TiB"),
        ("150 of tier0", "a percentage needs a unit, write for example 150%"),
        ("1.5x of tier0", "no unit 'x', use one of %"),
        ("-5% of tier0", "a percentage has no sign"),
        ("0.00001% of tier0", "not a whole number of millionths"),
    ],
)
def test_what_is_no_budget_is_refused(value: object, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        trace.parse_budget(value)
    assert str(caught.value) == reason


@given(strategies.budgets())
def test_a_printed_budget_is_read_back(budget: Budget) -> None:
    assert trace.parse_budget(trace.format_budget(budget)) == budget


@given(strategies.traces())
def test_a_trace_on_a_ladder_has_its_times_and_positive_budgets(drawn: Trace) -> None:
    try:
        budgets = drawn.on(LADDER)
    except InputError as error:
        assert "more than nothing" in str(error)  # noqa: PT017
        assert min(step.budget.on(LADDER) for step in drawn.steps) <= 0
    else:
        assert [at_ns for at_ns, _ in budgets] == [step.at_ns for step in drawn.steps]
        assert all(size_bytes > 0 for _, size_bytes in budgets)


@given(strategies.traces())
def test_a_trace_written_as_csv_is_read_back(tmp_path_factory: pytest.TempPathFactory, drawn: Trace) -> None:
    rows = [
        f"{trace.units.format_duration(step.at_ns)},{trace.format_budget(step.budget)}"
        for step in drawn.steps
    ]
    path = _csv(tmp_path_factory.getbasetemp(), "\n".join(["at,budget", *rows, ""]))
    assert trace.read_csv(path) == drawn


def test_csv_may_come_from_a_spreadsheet(tmp_path: Path) -> None:
    path = _csv(tmp_path, '\ufeffat, budget\r\n0s,"40MiB"\r\n\r\n 1.5s , 50% of tier0 \r\n')
    assert trace.read_csv(path).on(LADDER) == ((0, 40 * MIB), (1_500_000_000, 4 * MIB))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '': the header is at,budget"),
        ("at,budget\n", "no steps; a trace begins with a step at 0s"),
        ("time,budget\n0s,1MiB\n", "line 1: 'time,budget': the header is at,budget"),
        ("0s,1MiB\n", "line 1: '0s,1MiB': the header is at,budget"),
        ("at,budget\n0s,1MiB\n2s\n", "line 3: 1 cells instead of at,budget"),
        ("at,budget\n0s,1,024MiB\n", "line 2: 3 cells instead of at,budget"),
        ("at,budget\n0s,1MiB\n2,1MiB\n", "line 3: at: '2': a duration needs a unit, write for example 2s"),
        ("at,budget\n0s,1MiB\n\n2s,2G\n", "line 4: budget: '2G': no unit 'G', write 2GiB or 2GB"),
        ("at,budget\n1s,1MiB\n", "line 2: at: absent budget before 1s; the first step is at 0s"),
        ("at,budget\n0s,1MiB\n2s,2MiB\n2s,3MiB\n", "line 4: at: 2s does not come after the step at 2s"),
        ("at,budget\n0s,1MiB\n2s,2MiB\n1s,3MiB\n", "line 4: at: 1s does not come after the step at 2s"),
        ('at,budget\n0s,"1MiB\n', "line 2: unexpected end of data"),
    ],
)
def test_a_broken_csv_is_refused_with_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = _csv(tmp_path, text)
    with pytest.raises(InputError) as caught:
        trace.read_csv(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("90% of teir1", "budget: ladder toy has no rung 'teir1'; did you mean 'tier1'?"),
        ("100% of tier2 - 8MiB", "budget: '100% of tier2 - 8MiB' is -8MiB; a budget is more than nothing"),
        ("10% of tier2", "budget: '10% of tier2' is 0B; a budget is more than nothing"),
    ],
)
def test_a_budget_that_does_not_suit_the_ladder_is_refused_with_its_place(text: str, message: str) -> None:
    step = BudgetStep(0, trace.parse_budget(text), "trace.csv: line 2: ")
    with pytest.raises(InputError) as caught:
        Trace((step,)).on(LADDER)
    assert str(caught.value) == f"trace.csv: line 2: {message}"


@given(st.binary(max_size=60) | strategies.damaged("at,budget\n0s,40MiB\n2s,150% of tier0\n").map(_utf8))
def test_any_csv_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(content)
    try:
        trace.read_csv(path).on(LADDER)
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
