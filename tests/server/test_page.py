"""The page, in a headless browser: against a fake server with made-up facts, and the real one."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from molt.client.demo import server
from tests.client.fake_server import ADMIN, MIB, WORDS, FakeServer, serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=20_000)

PAGE = Path(__file__).resolve().parent.parent.parent / "molt" / "server" / "page"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
VIOLATIONS = """
    window.violations = [];
    addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective));
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving(FakeServer(pace=0.03), str(PAGE)) as server:
        yield server


@pytest.fixture
def visit(browser: object) -> Iterator[Callable[..., object]]:
    """Opens pages; in the end none of them has had an error, or tried what the security policy forbids."""
    opened = []
    errors: list[str] = []

    def visit(url: str, viewport: dict[str, int] = DESK, **options: object) -> object:
        page = browser.new_context(viewport=viewport, **options).new_page()  # type: ignore[attr-defined]
        page.set_default_timeout(20_000)
        page.add_init_script(VIOLATIONS)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        expect(page.locator("#connection")).to_have_text("live")
        opened.append(page)
        return page

    yield visit
    violations = [page.evaluate("violations") for page in opened]
    for page in opened:
        page.context.close()
    assert errors == []
    assert not any(violations), violations


def unlocked(server: FakeServer) -> str:
    """The address that the server prints."""
    return f"{server.url}/#admin={ADMIN}"


def until(condition: Callable[[], object], within_s: float = 20) -> None:
    """Wait for something that happens at the server."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


# --- an answer and its switches ---


def test_a_cut_in_the_middle_of_an_answer_is_a_switch(fake: FakeServer, visit: Callable[..., object]) -> None:
    """Words are marked by the rung that wrote them, the switch has its cost, and not a word is lost."""
    page = visit(unlocked(fake))
    page.get_by_label("Tokens").fill("40")
    page.get_by_role("button", name="Ask", exact=True).click()
    answer = page.get_by_role("article", name="1 · foreground")
    expect(answer.locator(".words.r0")).to_contain_text("operating system")
    page.get_by_role("button", name="Room for tier1").click()
    switch = answer.locator(".lever.switch")
    expect(switch).to_have_text("⇆ tier0 → tier1 project · 260 ms · 79 % FLOPs saved")
    expect(answer.locator(".words.r1")).not_to_be_empty()
    expect(answer.locator(".badge")).to_have_text("done")
    expect(answer.locator(".closing")).to_contain_text("40 tokens")
    expect(answer.locator(".closing")).to_contain_text("1 switch, 260 ms")
    expect(answer.locator(".closing")).to_contain_text("not killed")
    words = "".join(answer.locator(".words").all_text_contents())
    assert words == "".join((WORDS * 2)[:40])
    styles = {
        page.evaluate("e => getComputedStyle(e).textDecorationStyle", element)
        for element in (answer.locator(f".words.{rung}").element_handle() for rung in ("r0", "r1"))
    }
    assert styles == {"solid", "dashed"}, "rungs differ in more than their colour"


def test_the_table_of_switches_compares_prediction_and_measurement(
    fake: FakeServer, visit: Callable[..., object]
) -> None:
    page = visit(unlocked(fake))
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("article .words.r0")).not_to_be_empty()
    page.get_by_role("button", name="Room for tier2").click()
    page.get_by_text("Cost of the switches").click()
    cells = page.get_by_role("row").nth(1).get_by_role("cell")
    expect(cells).to_have_text(
        ["tier0 → tier2", "project", "260.4", "250.0", "0.012", "0.010", "79 %", "0.81"]
    )


def test_text_of_a_model_is_never_markup(fake: FakeServer, visit: Callable[..., object]) -> None:
    page = visit(unlocked(fake))
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("article .words").first).to_contain_text("<b>Nobody</b>")
    assert page.locator("article .words b").count() == 0


def test_a_model_that_does_not_chat_is_given_a_beginning(
    fake: FakeServer, visit: Callable[..., object]
) -> None:
    fake.pace, fake.chats = 0.0, False
    page = visit(unlocked(fake))
    page.get_by_label("Beginning of a text").fill("Once")
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.locator(".badge")).to_have_text("done")
    assert [body["prompt"] for body in fake.requests] == ["Once"]


def test_a_refusal_is_shown_where_the_answer_would_be(browser: object) -> None:
    """Without the check for console errors: browsers log every refused request as one."""
    with serving(FakeServer(refuse=(503, {"retry-after": "2"})), str(PAGE)) as fake:
        page = browser.new_context().new_page()  # type: ignore[attr-defined]
        page.goto(unlocked(fake))
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator(".badge")).to_have_text("failed")
        expect(page.locator(".closing")).to_have_text("the queue is full; try again in 2 s")
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
        page.context.close()


def test_an_answer_that_breaks_off_is_not_called_done(fake: FakeServer, visit: Callable[..., object]) -> None:
    fake.script = ()
    page = visit(unlocked(fake))
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".badge")).to_have_text("failed")
    expect(page.locator(".closing")).to_contain_text("broke off")


# --- tenants ---


def test_three_tenants_park_and_go_on(fake: FakeServer, visit: Callable[..., object]) -> None:
    page = visit(unlocked(fake))
    page.get_by_label("Tokens").fill("4000")
    page.get_by_role("button", name="Ask as three tenants").click()
    badges = page.locator(".badge")
    expect(badges).to_have_text(["writing on tier0"] * 3)
    assert [body["molt"]["kind"] for body in fake.requests] == ["batch", "batch", "foreground"]
    fake.budget = MIB
    expect(badges).to_have_text(["parked"] * 3)
    expect(page.locator(".lever.park")).to_have_count(3)
    expect(page.locator("#room")).to_contain_text("over budget")
    fake.budget = 40 * MIB
    expect(badges).to_have_text(["writing on tier0"] * 3)
    page.get_by_role("button", name="Stop answer 2").click()
    expect(badges).to_have_text(["writing on tier0", "stopped", "writing on tier0"])
    until(lambda: len(fake.dropped) == 1)
    assert len(fake.tenants) == 2


def test_no_more_answers_at_once_than_the_browser_has_connections_for(
    fake: FakeServer, visit: Callable[..., object]
) -> None:
    """The events and the budget need one each of the six."""
    page = visit(unlocked(fake))
    page.get_by_label("Tokens").fill("4000")
    ask = page.get_by_role("button", name="Ask", exact=True)
    for _ in range(4):
        ask.click()
    expect(ask).to_be_disabled()
    expect(page.locator("article .words.r0")).to_have_count(4)
    page.get_by_role("button", name="Room for tier1").click()
    expect(page.locator("article .words.r1")).to_have_count(4)
    page.get_by_role("button", name="Stop answer 1").click()
    expect(ask).to_be_enabled()


# --- the budget ---


def test_the_slider_is_the_budget(fake: FakeServer, visit: Callable[..., object]) -> None:
    page = visit(unlocked(fake))
    slider = page.get_by_role("slider", name="Memory budget")
    expect(slider).to_have_attribute("aria-valuetext", "40.0 MiB, room for tier0")
    box = slider.bounding_box()
    x, middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, box["y"] + 0.09 * box["height"])
    page.mouse.down()
    page.mouse.move(x, middle, steps=8)
    page.mouse.up()
    until(lambda: abs(fake.budget / (44 * MIB) - 0.5) < 0.03)
    expect(page.locator("#allowed")).to_contain_text("MiB")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("room for tier1"))


def test_the_budget_line_ends_at_the_thumb(fake: FakeServer, visit: Callable[..., object]) -> None:
    page = visit(unlocked(fake))
    page.get_by_role("button", name="Room for tier1").click()
    until(lambda: fake.budget < 40 * MIB)
    budget = fake.budget
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile("room for tier1"))
    page.wait_for_timeout(300)
    y = float(page.locator("path.line").get_attribute("d").rsplit("V", 1)[-1].partition("H")[0])
    top = float(page.get_by_role("slider").get_attribute("max"))
    assert abs((1 - y / 200) - budget / top) < 0.01


def test_a_spike_is_a_trace(fake: FakeServer, visit: Callable[..., object]) -> None:
    page = visit(unlocked(fake))
    page.get_by_role("button", name="Play a spike").click()
    until(lambda: fake.traces)
    (steps,) = fake.traces
    assert [step["at"] for step in steps] == ["0s", "2s", "6s", "10s"]
    sizes = [int(step["budget"].removesuffix("B")) for step in steps]
    assert sizes[0] == sizes[3] == 40 * MIB
    assert 24 * MIB > sizes[1] > 6 * MIB > sizes[2] > 2 * MIB


def test_the_token_stays_out_of_the_address(fake: FakeServer, visit: Callable[..., object]) -> None:
    page = visit(unlocked(fake))
    assert page.url == f"{fake.url}/"
    page.reload()
    expect(page.get_by_role("button", name="Room for tier0")).to_be_enabled()


def test_without_a_token_the_budget_is_locked_and_says_why(
    fake: FakeServer, visit: Callable[..., object]
) -> None:
    page = visit(fake.url)
    for control in (
        page.get_by_role("button", name="Room for tier1"),
        page.get_by_role("slider", name="Memory budget"),
        page.get_by_role("combobox", name="Budget follows"),
    ):
        expect(control).to_be_disabled()
        expect(control).to_have_accessible_description(re.compile("Admin token required"))
    page.get_by_label("Admin token").fill(ADMIN)
    page.get_by_role("button", name="Unlock the budget").click()
    page.get_by_role("button", name="Room for tier1").click()
    until(lambda: fake.budget < 40 * MIB)


def test_a_wrong_token_locks_the_budget_again(browser: object, fake: FakeServer) -> None:
    """Without the check for console errors: browsers log every refused request as one."""
    page = browser.new_context().new_page()  # type: ignore[attr-defined]
    page.goto(f"{fake.url}/#admin=wrong")
    page.get_by_role("button", name="Room for tier1").click()
    expect(page.locator("#reason")).to_have_text("admin token required")
    expect(page.get_by_role("button", name="Room for tier1")).to_be_disabled()
    assert fake.budget == 40 * MIB
    page.context.close()


def test_the_budget_follows_what_is_chosen_until_it_is_set_by_hand(
    fake: FakeServer, visit: Callable[..., object]
) -> None:
    page = visit(unlocked(fake))
    follow = page.get_by_label("Budget follows")
    follow.select_option("the control group")
    until(lambda: fake.followed == "cgroup")
    page.get_by_role("button", name="Room for tier1").click()
    expect(follow).to_have_value("manual")


@pytest.mark.parametrize("fragment", ["admin=" + ADMIN, "token=secret"])
def test_a_server_may_want_a_token_of_everybody(
    fake: FakeServer, visit: Callable[..., object], fragment: str
) -> None:
    fake.key = "secret"
    page = visit(f"{fake.url}/#{fragment}")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("article .words").first).not_to_be_empty()
    assert page.get_by_role("button", name="Room for tier1").is_enabled() == fragment.startswith("admin")


def test_without_that_token_the_page_asks_for_one(browser: object, fake: FakeServer) -> None:
    """Without the check for console errors: browsers log every refused request as one."""
    fake.key = "secret"
    page = browser.new_context().new_page()  # type: ignore[attr-defined]
    page.goto(fake.url)
    expect(page.locator("#reason")).to_have_text("token required")
    page.get_by_label("Admin token").fill(ADMIN)
    page.get_by_role("button", name="Unlock the budget").click()
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.get_by_role("button", name="Room for tier1")).to_be_enabled()
    page.context.close()


# --- accessibility ---


def test_everything_can_be_done_with_the_keyboard(fake: FakeServer, visit: Callable[..., object]) -> None:
    """The skip link leads to the question, Enter asks, Tab leads on to Stop, and arrows move the budget."""
    page = visit(unlocked(fake))
    page.evaluate("document.querySelector('#length').value = 4000")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Enter")
    expect(page.locator("article .words.r0")).not_to_be_empty()
    page.locator("#budget").focus()
    for _ in range(4):
        page.keyboard.press("PageDown")
    until(lambda: fake.budget < 30 * MIB)
    assert page.evaluate("document.activeElement.matches('.ceiling:focus-visible')"), (
        "its thumb has a ring then"
    )
    until(lambda: _tab_to(page, "Stop answer 1"))
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator(".badge")).to_have_text("stopped")
    assert page.evaluate("document.activeElement.tagName") == "ARTICLE", (
        "the focus is not lost with the button"
    )


def _tab_to(page: object, label: str) -> bool:
    page.keyboard.press("Tab")  # type: ignore[attr-defined]
    return page.evaluate("document.activeElement.ariaLabel") == label  # type: ignore[attr-defined]


def test_events_are_announced_politely(fake: FakeServer, visit: Callable[..., object]) -> None:
    """One live region for answers, filled now and then, not at every token."""
    page = visit(unlocked(fake))
    page.evaluate("""() => {
        window.announced = [];
        new MutationObserver(() => announced.push(document.querySelector('#live').textContent))
            .observe(document.querySelector('#live'), {childList: true, characterData: true, subtree: true});
    }""")
    page.get_by_label("Tokens").fill("60")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("article .words.r0")).not_to_be_empty()
    page.get_by_role("button", name="Room for tier1").click()
    expect(page.locator("#live")).to_contain_text("60 tokens", timeout=20_000)
    announced = page.evaluate("announced")
    assert len(announced) <= 3
    assert "Answer 1: tier0 → tier1 project · 260 ms" in " ".join(announced)
    assert page.locator("#live").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_is_wide_enough(fake: FakeServer, visit: Callable[..., object], scheme: str) -> None:
    page = visit(unlocked(fake), PHONE, color_scheme=scheme)
    widths = [page.evaluate("document.documentElement.scrollWidth")]
    page.get_by_role("button", name="Ask as three tenants").click()
    expect(page.locator("article .words.r0")).to_have_count(3)
    page.get_by_role("button", name="Room for tier2").click()
    expect(page.locator(".lever.switch")).to_have_count(3)
    widths.append(page.evaluate("document.documentElement.scrollWidth"))
    page.get_by_text("Cost of the switches").first.click()
    page.get_by_text("How to read this page").click()
    widths.append(page.evaluate("document.documentElement.scrollWidth"))
    assert widths == [360, 360, 360]
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('button, select, textarea')]"
        ".filter(e => e.checkVisibility()).map(e => e.offsetHeight))"
    )
    assert smallest >= 40
    last = page.locator(".lever.switch").last
    last.scroll_into_view_if_needed()
    assert page.locator("#memory").bounding_box()["y"] == 0, "memory stays in sight"


def test_nothing_moves_for_who_wants_no_motion(fake: FakeServer, visit: Callable[..., object]) -> None:
    names = {}
    for motion in ("reduce", "no-preference"):
        page = visit(unlocked(fake), reduced_motion=motion)
        page.get_by_role("button", name="Ask", exact=True).click()
        caret = page.locator(".caret").first
        names[motion] = page.evaluate("e => getComputedStyle(e).animationName", caret.element_handle())
    assert names == {"reduce": "none", "no-preference": "blink"}


CONTRASTS = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
    const paint = colours => {
        canvas.clearRect(0, 0, 1, 1);
        for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = rgb => {
        const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = {};
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.checkVisibility() || element.closest('.sr, .skip, :disabled, svg, noscript')) continue;
        const behind = [];
        let opacity = 1;
        for (let at = element; at; at = at.parentElement) {
            behind.unshift(getComputedStyle(at).backgroundColor);
            opacity *= Number(getComputedStyle(at).opacity);
        }
        const ground = paint(['white', ...behind]);
        const ink = paint([`rgb(${ground})`, getComputedStyle(element).color]);
        const seen = ink.map((v, i) => opacity * v + (1 - opacity) * ground[i]);
        const [low, high] = [light(seen), light(ground)].sort((a, b) => a - b);
        const name = `${element.tagName}.${element.className}`;
        found[name] = Math.min(found[name] ?? 21, (high + 0.05) / (low + 0.05));
    }
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast_enough(fake: FakeServer, visit: Callable[..., object], scheme: str) -> None:
    """WCAG AA: 4.5 to 1 for each text there is, among them a parked answer, its levers, and a budget overrun."""
    page = visit(unlocked(fake), color_scheme=scheme, reduced_motion="reduce")
    page.get_by_label("Tokens").fill("4000")
    page.get_by_role("button", name="Ask as three tenants").click()
    expect(page.locator("article .words.r0")).to_have_count(3)
    for rung in ("tier1", "tier2"):
        page.get_by_role("button", name=f"Room for {rung}").click()
        expect(page.locator(f"article .words.r{rung[-1]}")).to_have_count(3)
    page.get_by_role("button", name="Stop answer 1").click()
    fake.budget = MIB
    expect(page.locator(".badge")).to_have_text(["parked", "parked", "stopped"])
    expect(page.locator("#room")).to_contain_text("over budget")
    page.get_by_text("How to read this page").click()
    contrasts = page.evaluate(CONTRASTS)
    assert {"SPAN.words r0", "SPAN.words r2", "SPAN.cost", "DD.", "SPAN.room over"} <= set(contrasts)
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
    page.evaluate("document.querySelector('.tagline').style.color = '#888'")
    assert page.evaluate(CONTRASTS)["P.tagline"] < 5.3, "the measure sees a change"


# --- what the page is made of ---


def test_the_page_is_its_own() -> None:
    """No inline script or style, nothing from elsewhere, and no text that becomes markup."""
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", html) == []
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name
        assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text) == [], (
            path.name
        )


def test_the_watch_for_violations_sees_one(fake: FakeServer, browser: object) -> None:
    page = browser.new_context().new_page()  # type: ignore[attr-defined]
    page.add_init_script(VIOLATIONS)
    page.goto(fake.url)
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))")
    assert page.evaluate("violations") == ["script-src-elem"]
    page.context.close()


# --- the real server ---


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and admin token of a real server, which outlives the pages that are opened after it."""
    with server("pico", tmp_path / "events.jsonl") as found:
        yield found


def test_the_real_server_shows_a_switch(
    real: tuple[str, str], visit: Callable[..., object], tmp_path: Path
) -> None:
    """pico writes, the budget is cut from the page in the middle of it, and the rest is written by another rung."""
    url, admin = real
    page = visit(f"{url}/#admin={admin}")
    page.get_by_label("Tokens").fill("1200")
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.locator("article .words.r0").first).not_to_be_empty()
    page.get_by_role("button", name="Room for tier1").click()
    expect(page.locator(".lever.switch").first).to_contain_text("⇆ tier0 → tier1 project")
    expect(page.locator("article .words.r1").first).not_to_be_empty()
    expect(page.locator("#usage")).not_to_have_text("–")
    page.get_by_role("button", name="Stop answer 1").click()
    expect(page.locator(".badge")).to_have_text("stopped")
    page.screenshot(path=tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
