"""The picture of a published run, for pages that cannot have a report in them: memory over time under each policy.

``drawn`` takes the charts of a report (``reports/published/NAME.html``) and puts them below each other in one SVG;
``renew`` draws those in ``docs/images`` again, as ``python -m reports.publish`` does. Nothing is typed: every shape is
one of the page's own (a test draws again and compares).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reports.chart import CHART_WIDTH, LANE_HEIGHT, MEMORY_HEIGHT

MARGIN_LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 30
DRAWN_WIDTH, DRAWN_MEMORY, DRAWN_LANE, TITLE, GAP = 800, 90, 12, 22, 16
LEGEND = (
    ("r0", "tier0"),
    ("r1", "tier1"),
    ("r2", "tier2"),
    ("kv", "KV caches"),
    ("scratch", "scratch"),
    ("transient", "loads and switches"),
    ("over", "over budget"),
)
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #646a73 } .name { font-weight: 600; fill: #1b1d21 }
path { vector-effect: non-scaling-stroke; stroke: none }
.r0 { fill: #2f6fd6 } .r1 { fill: #12936b } .r2 { fill: #d99a00 } .r3 { fill: #cf5a22 } .r4 { fill: #9a4bb0 }
.r5 { fill: #5f7488 } .kv { fill: #a9a0de } .scratch { fill: #c3c0b8 } .transient { fill: #d8408a }
.over { fill: #d1242f } .reading { opacity: .35 } .prefilling { opacity: .35 }
.switching { fill: #1b1d21 } .waiting, .parked { fill: #d9d6cf }
.budget { fill: none; stroke: #1b1d21; stroke-width: 2 } .rule { stroke: #dfdcd4 }
.kill { stroke: #c5221f; stroke-width: 1.5; stroke-dasharray: 4 3 } .killed { fill: #c5221f; font-weight: 600 }
"""
_FIGURE = re.compile(r"<figure>.*?</figure>", re.DOTALL)
_SVG = re.compile(r'<svg viewBox="0 0 \d+ (\d+)"[^>]*>(.*?)</svg>', re.DOTALL)
_PATH = re.compile(r'<path class="([^"]+)" d="([^"]+)"/>')
_TITLE = re.compile(r"<title[^>]*>Memory of (.*?) over time</title>")
_MARK = re.compile(r'<span(?: class="\w*")? style="(?:bottom|left):([\d.]+)%">([^<]+)</span>')
_KILL = re.compile(r'<i style="left:([\d.]+)%"></i>')
_OMITTED = {"usage", "token"}  # too fine for a small picture


@dataclass(frozen=True, slots=True)
class Panel:
    """One policy: shapes of its memory and of the lanes of its tenants, as (class, path); marks in percent."""

    name: str
    memory: tuple[tuple[str, str], ...]
    lanes: tuple[tuple[tuple[str, str], ...], ...]
    sizes: tuple[tuple[float, str], ...]
    times: tuple[tuple[float, str], ...]
    kills: tuple[float, ...]


def panels(page: str) -> list[Panel]:
    """The charts of a report, in its order."""
    return [_panel(figure) for figure in _FIGURE.findall(page)]


def drawn(page: str, title: str) -> str:
    """The charts of a report as one SVG, below each other, on axes that are the same for all."""
    found = panels(page)
    body: list[str] = []
    top = TOP
    for panel in found:
        body += _drawn_panel(panel, top)
        top += _height(panel)
    height = top + BOTTOM
    width = MARGIN_LEFT + DRAWN_WIDTH + RIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
            *_legend(),
            *body,
            *_axis(found[-1], top),
            "</svg>\n",
        ]
    )


def renew(published: Path, images: Path) -> None:
    """Draw every picture in ``images`` again from the page of the same name in ``published``."""
    for image in sorted(images.glob("*.svg")):
        page = published / f"{image.stem}.html"
        image.write_text(drawn(page.read_text(encoding="utf-8"), image.stem), encoding="utf-8", newline="\n")


def _panel(figure: str) -> Panel:
    (_, memory), *lanes = _SVG.findall(figure)
    name = _TITLE.search(figure)
    assert name is not None, "a chart says whose memory it shows"
    sizes, times = figure.split('class="strip times"')
    shapes = [tuple(_shapes(lane)) for _, lane in lanes]
    return Panel(
        name=name[1],
        memory=tuple(_shapes(memory)),
        lanes=tuple(lane for lane in shapes if any("loading" not in style for style, _ in lane)),
        sizes=_marks(sizes),
        times=_marks(times),
        kills=tuple(float(at) for at in _KILL.findall(times)),
    )


def _shapes(svg: str) -> Iterator[tuple[str, str]]:
    return ((style, path) for style, path in _PATH.findall(svg) if not _OMITTED & set(style.split()))


def _marks(part: str) -> tuple[tuple[float, str], ...]:
    return tuple((float(at), label) for at, label in _MARK.findall(part))


def _height(panel: Panel) -> int:
    return TITLE + DRAWN_MEMORY + (2 + DRAWN_LANE) * len(panel.lanes) + GAP


def _drawn_panel(panel: Panel, top: int) -> Iterator[str]:
    """The name, the memory with its axis, and a lane for each tenant."""
    yield f'<text class="name" x="{MARGIN_LEFT}" y="{top + TITLE - 7}">{html.escape(panel.name)}</text>'
    floor = top + TITLE + DRAWN_MEMORY
    for at, label in panel.sizes:
        y = floor - DRAWN_MEMORY * at / 100
        yield f'<path class="rule" d="M{MARGIN_LEFT} {y:.1f}h{DRAWN_WIDTH}"/>'
        yield f'<text x="{MARGIN_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{html.escape(label)}</text>'
    yield from _group(panel.memory, top + TITLE, DRAWN_MEMORY / MEMORY_HEIGHT)
    for number, lane in enumerate(panel.lanes):
        yield from _group(lane, floor + 2 + number * (2 + DRAWN_LANE), DRAWN_LANE / LANE_HEIGHT)
    for at in panel.kills:
        x, height = MARGIN_LEFT + DRAWN_WIDTH * at / 100, _height(panel) - TITLE - GAP
        yield f'<path class="kill" d="M{x:.1f} {top + TITLE}v{height}"/>'
        yield f'<text class="killed" x="{x + 5:.1f}" y="{top + TITLE + 12}">killed by the OS</text>'


def _group(shapes: tuple[tuple[str, str], ...], top: float, scale: float) -> Iterator[str]:
    yield f'<g transform="translate({MARGIN_LEFT} {top}) scale({DRAWN_WIDTH / CHART_WIDTH} {scale:.4g})">'
    yield from (f'<path class="{style}" d="{path}"/>' for style, path in shapes)
    yield "</g>"


def _legend() -> Iterator[str]:
    x = MARGIN_LEFT
    for style, label in LEGEND:
        yield f'<rect class="{style}" x="{x}" y="13" width="10" height="10"/>'
        yield f'<text x="{x + 15}" y="22">{label}</text>'
        x += 33 + 7 * len(label)
    yield f'<path class="budget" d="M{x} 18h14"/><text x="{x + 19}" y="22">budget</text>'


def _axis(panel: Panel, top: int) -> Iterator[str]:
    for at, label in panel.times:
        anchor = "start" if at == 0 else "end" if at == 100 else "middle"
        x = MARGIN_LEFT + DRAWN_WIDTH * at / 100
        yield f'<text x="{x:.1f}" y="{top + 4}" text-anchor="{anchor}">{html.escape(label)}</text>'
