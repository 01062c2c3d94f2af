"""Who may use the server: checked by the headers, before a body is read.

Rules of this module:

- A web page that a user happens to visit may reach a server on the loopback interface. So the ``Host`` must be one of
  ours (a name that was rebound to 127.0.0.1 is not), a request with the ``Origin`` of another site is refused, and no
  answer allows another site to read it (no CORS). (No form sends ``application/json``, which ``body.py`` requires.)
  Some requests of a page have no ``Origin``; then the browser says in ``Sec-Fetch-Site`` where they come from. From
  another site only a link to the page is followed.
- Tokens come in the ``Authorization`` header alone, and are compared in constant time.
- Administration has a token of its own. A UNIX socket needs none: its file says who may connect.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from molt.server.error_answers import ErrorAnswer

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
OPEN_PATHS = frozenset(("/health",))
RESPONSE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True, slots=True)
class Keys:
    """Tokens required: ``user`` for answers (``None``: none is), ``admin`` (``None``: administration is closed)."""

    user: str | None = None
    admin: str | None = None


def allowed_hosts(bound: str, port: int, also: Iterable[str] = ()) -> frozenset[str]:
    """Values of ``Host`` that mean this server: the loopback's names, the address it is bound to, and ``also``."""
    names = {*LOOPBACK, f"[{bound}]" if ":" in bound else bound}
    with_port = {f"{name}:{port}" for name in names}
    return frozenset(with_port | (names if port == 80 else set()) | {name.lower() for name in also})


def is_owners(scope: Scope) -> bool:
    """Whether a request came through the UNIX socket, whose file only its owner can open."""
    return scope["server"] is None or scope["server"][1] is None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AccessCheck:
    """Passes requests on to the application, or refuses them."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        keys: Keys,
        *,
        header_bytes: int,
        any_address: bool = False,
        open_paths: Iterable[str] = (),
    ) -> None:
        """``any_address``: a ``Host`` that is an IP address is accepted, since no name was resolved to get here.
        ``open_paths`` need no token.
        """
        self._app = app
        self._hosts = hosts
        self._keys = keys
        self._header_bytes = header_bytes
        self._any_address = any_address
        self._open = OPEN_PATHS | set(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            self._check(scope, Headers(scope=scope))
        except ErrorAnswer as failure:
            failure.close = True  # the rest of the request stays unread
            await failure.response()(scope, receive, _with_headers(send))
            return
        await self._app(scope, receive, _with_headers(send))

    def _check(self, scope: Scope, headers: Headers) -> None:
        if (
            sum(len(name) + len(value) for name, value in headers.raw) + len(scope["path"])
            > self._header_bytes
        ):
            raise ErrorAnswer(
                431, f"headers must have at most {self._header_bytes} bytes", "headers_too_long"
            )
        from_file = is_owners(scope)
        if not from_file:
            self._check_site(scope["path"], headers)
        _check_framing(headers)
        self._check_token(scope["path"], headers, from_file=from_file)

    def _check_site(self, path: str, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise ErrorAnswer(421, "Host not served here", "misdirected_request")
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.lower() != f"http://{hosts[0].lower()}"
        if headers.get("sec-fetch-site", "none").lower() not in ("same-origin", "none"):
            is_link = (
                headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            )
            is_foreign |= not (is_link and path in self._open - OPEN_PATHS)
        if is_foreign:
            raise ErrorAnswer(403, "requests from other sites are refused", "foreign_origin")

    def _is_ours(self, host: str) -> bool:
        return host.lower() in self._hosts or (self._any_address and _is_address(host))

    def _check_token(self, path: str, headers: Headers, *, from_file: bool) -> None:
        given = _bearer(headers)
        if from_file:
            return
        if path.startswith("/admin/"):
            if not _same(given, self._keys.admin):
                raise ErrorAnswer(401, "admin token required", "invalid_api_key")
            return
        known = _same(given, self._keys.user) or _same(given, self._keys.admin)
        if self._keys.user is not None and path not in self._open and not known:
            raise ErrorAnswer(401, "token required", "invalid_api_key")


def _check_framing(headers: Headers) -> None:
    if "content-length" in headers and "transfer-encoding" in headers:
        raise ErrorAnswer(400, "body must have either a length or chunks, not both", "invalid_framing")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ErrorAnswer(415, "compressed bodies are not supported", "unsupported_encoding")


def _is_address(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _same(given: str, key: str | None) -> bool:
    return bool(key) and hmac.compare_digest(given.encode(), str(key).encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in RESPONSE_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
