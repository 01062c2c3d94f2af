"""Markup to plain text: HTML pages (Sphinx, DocBook, AsciiDoc and hand-written ones) and Perl POD.

Words are kept and markup is dropped, with what is not prose: navigation, scripts, forms, tables of
contents. Each block becomes a paragraph; preformatted blocks keep their lines.
"""

import re
import unicodedata
from html.parser import HTMLParser


def html_to_text(html: str) -> str:
    """The visible words of a page, one block a paragraph, without navigation, scripts and comments."""
    extractor = _TextExtractor()
    extractor.feed(html)
    extractor.close()
    return normalise("\n\n".join(extractor.blocks))


def normalise(text: str) -> str:
    """NFC, no control characters, no trailing blanks, at most one empty line in a row."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\u00a0", " ").replace("¶", ""))
    text = re.sub(r"[^\n\t\x20-\x7e\u00a1-\U0010ffff]|[\u200b-\u200f\ufeff]", "", text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


# fmt: off
_VOID = frozenset((
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
))
_BLOCKS = frozenset((
    "p", "div", "section", "article", "table", "tr", "ul", "ol", "dl", "dt", "dd", "li", "h1", "h2", "h3",
    "h4", "h5", "h6", "pre", "blockquote", "hr", "figure", "figcaption", "header", "main", "address", "body",
))
_DROPPED_TAGS = frozenset((
    "head", "script", "style", "nav", "svg", "math", "form", "button", "footer", "template", "noscript",
))
_DROPPED_CLASSES = frozenset((
    "sphinxsidebar", "related", "headerlink", "footer", "clearer", "toctree-wrapper", "indextable",
    "navheader", "navfooter", "toc", "docnav", "navigation", "breadcrumb",
    "top", "toplang", "bottomlang", "path", "sidebar-nav", "skip", "docs-navigation-links",
))
_DROPPED_IDS = frozenset((
    "footer", "toc", "page-header", "path", "quickview", "banner", "hd", "ft", "sidebar", "fixed-sidebar",
    "narrow-index-nav", "docs-top-navigation-container", "docs-bottom-navigation",
))
# fmt: on


class _TextExtractor(HTMLParser):
    """Collects the words of a page as blocks; `self.blocks` is the result."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._open: list[str] = []
        self._dropped_below: int | None = None
        self._words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS or (tag == "br" and "pre" not in self._open):
            self._end_block()
        elif tag in ("td", "th"):
            self._words.append(" ")
        elif tag == "br":
            self._words.append("\n")
        if tag in _VOID:
            return
        self._open.append(tag)
        if self._dropped_below is None and _is_dropped(tag, dict(attrs)):
            self._dropped_below = len(self._open)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._open:
            return
        if tag in _BLOCKS:
            self._end_block()
        while self._open.pop() != tag:
            pass
        if self._dropped_below is not None and len(self._open) < self._dropped_below:
            self._dropped_below = None

    def handle_data(self, data: str) -> None:
        if self._dropped_below is None:
            self._words.append(data)

    def close(self) -> None:
        super().close()
        self._end_block()

    def _end_block(self) -> None:
        raw = "".join(self._words)
        self._words.clear()
        if "pre" in self._open:
            block = "\n".join(line.rstrip() for line in raw.strip("\n").split("\n"))
        else:
            block = " ".join(raw.split())
        if block.strip():
            self.blocks.append(block)


def _is_dropped(tag: str, attributes: dict[str, str | None]) -> bool:
    classes = (attributes.get("class") or "").split()
    return (
        tag in _DROPPED_TAGS
        or attributes.get("role") == "navigation"
        or attributes.get("id") in _DROPPED_IDS
        or not _DROPPED_CLASSES.isdisjoint(classes)
    )


_POD_ESCAPES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/", "nbsp": " "}
_POD_CODE = re.compile(r"([A-Z])<(?:<+\s(.+?)\s>+>|([^<>]*)>)", re.DOTALL)
_POD_BLOCK = re.compile(r"^=begin\b.*?^=end\b[^\n]*$", re.DOTALL | re.MULTILINE)
_POD_SILENT = re.compile(r"^=(?:over|back|cut|pod|encoding|for|begin|end)\b[^\n]*$", re.MULTILINE)
_POD_HEADING = re.compile(r"^=(?:head[1-6]|item)[ \t]*", re.MULTILINE)


def _pod_code(match: re.Match[str]) -> str:
    letter, inner = match[1], match[2] if match[2] is not None else match[3]
    match letter:
        case "E":
            return _POD_ESCAPES.get(inner, "")
        case "X" | "Z":
            return ""
        case "L":
            return inner.split("|")[0].strip('/"')
        case _:
            return inner


def pod_to_text(pod: str) -> str:
    """The words of a Perl POD page, without its commands and formatting codes."""
    text = _POD_SILENT.sub("", _POD_BLOCK.sub("", pod))
    text = _POD_HEADING.sub("", text)
    for _ in range(4):  # codes nest; four levels are more than any page has
        text = _POD_CODE.sub(_pod_code, text)
    return normalise(text)
