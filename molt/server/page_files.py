"""The files of the web page, read once and looked up by name, so that no path of a request is ever opened."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from starlette.responses import Response
from starlette.routing import Route

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
INDEX_PAGE = "index.html"


def page_files() -> Mapping[str, tuple[bytes, str]]:
    """Content and media type of every file of the page, by the path that serves it."""
    folder = files("molt.server") / "page"
    found = {}
    for file in folder.iterdir():
        media_type = MEDIA_TYPES.get(f".{file.name.rpartition('.')[2]}")
        if media_type is not None:
            found["/" if file.name == INDEX_PAGE else f"/{file.name}"] = (file.read_bytes(), media_type)
    return found


def page_routes(found: Mapping[str, tuple[bytes, str]]) -> list[Route]:
    """A route for each file."""
    return [Route(path, _serving(content, media_type)) for path, (content, media_type) in found.items()]


def _serving(content: bytes, media_type: str):  # type: ignore[no-untyped-def]
    async def serve(request: object) -> Response:
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    return serve
