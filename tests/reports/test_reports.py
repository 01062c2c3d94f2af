"""Summary, table, page, Markdown, texts: of a whole run folder."""

from __future__ import annotations

import json
import shutil
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from molt.formats.log import LogError
from reports import formatting
from reports.from_run import write_reports
from reports.page import contents, html_page, markdown_page, markdown_text
from reports.run_log import RunLog
from reports.schema import RunSummary, read_summary
from reports.summary import summarise, summarise_runs, summary_json
from reports.table import rows, text_table
from reports.texts import SwitchMark, file_names, fragments, tenant_text
from reports.verdict import Tone, verdict
from tests.reports.conftest import HOSTILE
from tests.reports.story import Story, survivor, victim
from tests.reports.strategies import stories

POLICIES = ["hold", "molt", "idle"]
VOID = {"meta", "br", "path", "link"}


# --- summary ---


def test_summary_has_the_shape_it_promises(run_dir: Path) -> None:
    summary = write_reports(run_dir, wall_s=1.5, policies=POLICIES)
    read = read_summary(run_dir / "summary.json")
    assert read.model_dump(exclude_unset=True) == json.loads(summary_json(summary))
    assert read.wall_s == 1.5
    assert list(read.policies) == POLICIES
    assert read.policies["hold"].killed == 1
    assert (read.scenario, read.seed, read.ladder, read.engine) == ("story", 7, "small", "modelled")


def test_summary_names_the_log_by_the_hash_the_writer_kept(tmp_path: Path) -> None:
    story = survivor()
    summary = summarise({"molt": story.write(tmp_path)}, wall_s=None)
    assert summary["policies"]["molt"]["log_sha256"] == story.log.sha256()


def test_summary_lists_every_violation_with_its_policy() -> None:
    broken = Story().record("violation", 3, invariant="floor", detail="too much").run()
    summary = summarise_runs({"hold": Story().run(), "molt": broken}, wall_s=None)
    assert [(v["policy"], v["invariant"]) for v in summary["violations"]] == [("molt", "floor")]


@given(stories())
def test_summary_of_any_story_is_valid(story: Story) -> None:
    summary = summarise_runs({"molt": story.run()}, wall_s=0.0)
    RunSummary.model_validate_json(summary_json(summary))


# --- the folder ---


def test_reports_are_written_again_byte_for_byte(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_reports(run_dir, wall_s=1.0, policies=POLICIES)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    write_reports(run_dir)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before

    logs_alone = tmp_path_factory.mktemp("logs")
    for policy in POLICIES:
        shutil.copytree(run_dir / policy, logs_alone / policy, ignore=shutil.ignore_patterns("*.txt"))
    write_reports(logs_alone, wall_s=1.0, policies=POLICIES)
    after = {
        path.relative_to(logs_alone): path.read_bytes() for path in logs_alone.rglob("*") if path.is_file()
    }
    assert after == {path.relative_to(run_dir): content for path, content in before.items()}


def test_the_order_of_policies_is_kept(run_dir: Path) -> None:
    write_reports(run_dir, policies=POLICIES)
    assert list(write_reports(run_dir)["policies"]) == POLICIES


def test_without_a_summary_policies_come_by_name(run_dir: Path) -> None:
    assert list(write_reports(run_dir)["policies"]) == ["hold", "idle", "molt"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"policies": 3, "wall_s": "x"}'])
def test_a_broken_summary_is_replaced(run_dir: Path, text: str) -> None:
    (run_dir / "summary.json").write_text(text)
    write_reports(run_dir)
    assert read_summary(run_dir / "summary.json").wall_s is None


def test_a_folder_without_logs_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=f"{tmp_path}: no log here"):
        write_reports(tmp_path)


def test_a_log_with_a_broken_line_is_refused_with_its_place(run_dir: Path) -> None:
    path = run_dir / "molt" / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], "{broken\n", *lines[3:]]))
    with pytest.raises(LogError, match=r"events\.jsonl: line 4"):
        write_reports(run_dir)


def test_a_torn_log_is_reported_as_such(run_dir: Path) -> None:
    path = run_dir / "molt" / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    summary = write_reports(run_dir)
    assert not summary["policies"]["molt"]["log_complete"]
    assert "breaks off" in (run_dir / "report.html").read_text()


# --- page ---


class Page(HTMLParser):
    """Checks nesting as it reads; keeps tags with their attributes, and text by the tag around it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append((self.open[-1] if self.open else "", data))

    def having(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def page(run_dir: Path) -> Page:
    write_reports(run_dir, policies=POLICIES)
    return Page((run_dir / "report.html").read_text("utf-8"))


def test_page_escapes_what_models_write(page: Page) -> None:
    assert page.having("script") == []
    assert any(HOSTILE in text for _, text in page.words)


def test_page_needs_nothing_from_elsewhere(page: Page) -> None:
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for _, attrs in page.tags:
        assert not any(name.startswith("on") for name in attrs)
        assert all(
            value.startswith("#") for name, value in attrs.items() if name in ("href", "src") and value
        )
    policy = next(a for a in page.having("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_picture_has_an_alternative_in_words(page: Page) -> None:
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    pictures = page.having("svg")
    assert len(pictures) >= len(POLICIES)
    for picture in pictures:
        assert picture["role"] == "img"
        named = (picture.get("aria-labelledby") or "").split()
        assert picture.get("aria-label") or (named and set(named) <= ids)


def test_page_says_what_each_number_means_and_where_it_comes_from(page: Page, run_dir: Path) -> None:
    summary = read_summary(run_dir / "summary.json")
    text = " ".join(word for _, word in page.words)
    for policy in summary.policies.values():
        assert policy.log_sha256 in text
    for key in ("tokens_out", "overshoot_bytes_max", "rung_token_share", "stall_ms_max"):
        assert key in text
    assert "c0ffee" in text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(stories(), stories())
def test_any_story_makes_a_page(one: Story, other: Story) -> None:
    runs = {"<b>one</b>": one.run(), "other": other.run()}
    shown = contents(summarise_runs(runs, wall_s=None), runs)
    page = Page(html_page(shown))
    assert not page.having("script")
    assert not page.having("b") or all(not attrs for attrs in page.having("b"))
    assert "<script" not in markdown_page(shown)


def test_no_policies_at_all_make_a_page() -> None:
    shown = contents(summarise_runs({}, wall_s=None), {})
    Page(html_page(shown))
    assert "## Comparison" in markdown_page(shown)


# --- Markdown ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("*a* _b_ `c`", r"\*a\* \_b\_ \`c\`"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("[x](javascript:1)", r"\[x\](javascript:1)"),
        ("two\nlines", "two lines"),
        ("# head", r"\# head"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("9.5 s, -3", "9.5 s, -3"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert markdown_text(text) == shown


def test_markdown_tables_have_one_width(run_dir: Path) -> None:
    write_reports(run_dir)
    widths = set()
    for line in (run_dir / "report.md").read_text().splitlines():
        if line.startswith("|"):
            widths.add(line.replace(r"\|", "").count("|"))
        elif widths:
            assert len(widths) == 1
            widths = set()


# --- table ---


def test_table_names_policies_and_marks_harm() -> None:
    summary = summarise_runs({"hold": victim().run(), "molt": survivor().run()}, wall_s=None)
    lines = {row.label: row.cells for row in rows(summary)}
    assert [(c.text, c.alarm) for c in lines["killed by the OS"]] == [("1", True), ("0", False)]
    assert [(c.text, c.alarm) for c in lines["answers finished"]] == [("1 of 2", True), ("1 of 1", False)]
    assert [(c.text, c.alarm) for c in lines["over budget after reaction"]] == [
        ("+300B", True),
        ("-140B", False),
    ]
    assert [c.text for c in lines["tokens on tier0"]] == ["100 %", "60 %"]
    assert [c.text for c in lines["longest pause at a switch"]] == ["–", "150ms"]
    assert [c.text for c in lines["handoff KL, nats"]] == ["– (n=0)", "0.25 (n=1)"]
    printed = text_table(summary)
    assert "hold" in printed.splitlines()[0]
    assert "molt" in printed.splitlines()[0]


# --- verdicts ---


def _verdict(run: RunLog) -> tuple[Tone, str, str]:
    summary = summarise_runs({"p": run}, wall_s=None)
    made = verdict(summary["policies"]["p"], run, len(summary["violations"]))
    return made.tone, made.headline, " ".join(made.sentences)


def test_verdict_on_a_survivor() -> None:
    tone, headline, text = _verdict(survivor().run())
    assert (tone, headline) == (Tone.GOOD, "Never killed, 1 of 1 answer finished")
    assert "Longest pause 150ms (chat, from 0.3 s)." in text
    assert "within the budget; the least room was 140B" in text
    assert "60 % from tier0, 40 % from tier1" in text


def test_verdict_on_a_victim() -> None:
    tone, headline, text = _verdict(victim().run())
    assert (tone, headline) == (Tone.BAD, "Killed once, 2 answers lost")
    assert "The kill came at 0.3 s. Lost: 2 tokens. In the end, 1 of 2 answers finished." in text
    assert "up to 300B over the budget" in text
    assert "Slowest first token 800ms" in text


def test_verdict_when_nothing_could_run() -> None:
    story = Story().budget(0, 90).memory(0, 90, 0, enforced=True).arrive(0).defer(0).end(500)
    tone, headline, text = _verdict(story.run())
    assert (tone, headline) == (Tone.MIXED, "Nothing ran, nothing died")
    assert text == (
        "1 request waited until the end without a token. "
        "The budget was never above 90B; the smallest rung takes 120B before any context."
    )


def test_verdict_is_bad_when_an_invariant_broke() -> None:
    story = Story().arrive(0).tokens(1).finish(1).record("violation", 1, invariant="floor", detail="x").end(5)
    tone, _, text = _verdict(story.run())
    assert tone is Tone.BAD
    assert "1 invariant did not hold." in text


# --- texts ---


def test_texts_mark_rungs_and_pauses(run_dir: Path) -> None:
    write_reports(run_dir)
    text = (run_dir / "molt" / "chat.txt").read_text()
    assert text == f"[tier0] {HOSTILE} [tier0 -> tier1, 150ms]  | `*x*` [finished: length]\n"


def test_texts_have_every_attempt() -> None:
    run = victim().run()
    assert tenant_text(run.answers["chat"]) == (
        "[tier0] ▪▪ [attempt 1, lost at 0.3 s with 2 tokens]\n\n[tier0] ▪▪▪ [attempt 2, finished: length]\n"
    )
    assert tenant_text(run.answers["digest"]).endswith("[attempt 2, open when the run ended]\n")


def test_a_switch_before_the_first_token_has_no_pause() -> None:
    run = Story().arrive(0).read(5, 3).switched(10, "tier0", "tier1").tokens(20, rung="tier1").run()
    switch, _ = fragments(run.attempts[0])
    assert isinstance(switch, SwitchMark)
    assert switch.pause_ms is None
    assert tenant_text(run.attempts).startswith("[tier0 -> tier1] ▪")


@given(stories())
def test_fragments_hold_every_token_and_switch_once(story: Story) -> None:
    for attempt in story.run().attempts:
        pieces = list(fragments(attempt))
        marks = [piece.switch for piece in pieces if isinstance(piece, SwitchMark)]
        spans = [piece for piece in pieces if not isinstance(piece, SwitchMark)]
        assert marks == attempt.switches
        assert sum(span.tokens for span in spans) == len(attempt.tokens)


@given(st.lists(st.text(max_size=100), unique=True, max_size=6))
def test_file_names_stay_in_their_folder_and_apart(tenants: list[str]) -> None:
    story = Story()
    for tenant in tenants:
        story.arrive(0, tenant)
    names = file_names(story.run())
    assert set(names) == set(tenants)
    assert len({name.lower() for name in names.values()}) == len(tenants)
    for name in names.values():
        assert Path(name).name == name
        assert name.endswith(".txt")
        assert not name.startswith(".")


def test_file_names_cannot_lead_away() -> None:
    names = file_names(Story().arrive(0, "../../evil").arrive(0, "a/b").arrive(0, "a_b").run())
    assert list(names.values()) == ["_.._evil.txt", "a_b.txt", "a_b~2.txt"]


# --- show ---


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0, "0 %"), (0.001, "<1 %"), (0.5, "50 %"), (0.999, ">99 %"), (1, "100 %")],
)
def test_percent_never_rounds_to_none_or_all(share: float | None, text: str) -> None:
    assert formatting.percent(share) == text


@given(st.text(st.characters()))
def test_printable_text_has_no_power(text: str) -> None:
    shown = formatting.printable(text)
    shown.encode("utf-8")
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in shown if char not in "\n\t")
    assert not any(char in shown for char in "\u202a\u202e\u2066\u2069")
