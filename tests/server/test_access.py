"""Which values of ``Host`` mean a server, and what opens it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from molt.server.access import AccessCheck, Keys, allowed_hosts, is_loopback


def asked(
    keys: Keys, path: str, *, any_address: bool = False, server: Any = ("127.0.0.1", 80), **headers: str
) -> int:
    """The status of a POST; 200 where the access check lets it through."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "server": server}
    hosts = allowed_hosts("127.0.0.1", 8080)
    access = AccessCheck(app, hosts, keys, header_bytes=1000, any_address=any_address, open_paths=["/"])
    asyncio.run(access(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"]


def test_our_names() -> None:
    assert allowed_hosts("127.0.0.1", 8080) == {"127.0.0.1:8080", "localhost:8080", "[::1]:8080"}
    assert "molt.example:9" in allowed_hosts("127.0.0.1", 8080, ["Molt.example:9"])
    assert {"localhost", "localhost:80"} <= allowed_hosts("127.0.0.1", 80)
    assert "[2001:db8::1]:80" in allowed_hosts("2001:db8::1", 80)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("molt", False),
    ],
)
def test_the_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.168.1.7:8080", 200),
        ("[2001:db8::1]:8080", 200),
        ("evil.example:8080", 421),
        ("1.2.3.evil.example", 421),
    ],
)
def test_beyond_the_loopback_an_address_is_no_name_that_was_rebound(host: str, status: int) -> None:
    assert asked(Keys(), "/v1/completions", any_address=True, host=host) == status
    assert asked(Keys(), "/v1/completions", host=host) == 421


@pytest.mark.parametrize("key", [None, ""])
def test_a_key_that_is_none_opens_nothing(key: str | None) -> None:
    """Neither the absence of a token, nor an empty one, is as good as a key that was not set."""
    for given in (
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer None"},
    ):
        assert asked(Keys(None, key), "/admin/budget", host="localhost:8080", **given) == 401


def test_each_key_opens_its_own() -> None:
    keys = Keys("user", "admin")
    on = {"host": "localhost:8080"}
    assert asked(keys, "/admin/budget", **on, authorization="Bearer user") == 401
    assert asked(keys, "/admin/budget", **on, authorization="bearer admin") == 200
    assert asked(keys, "/v1/completions", **on, authorization="Bearer user") == 200
    assert asked(keys, "/v1/completions", **on, authorization="Bearer admin") == 200
    assert asked(keys, "/v1/completions", **on, authorization="Bearer usér") == 401
    assert asked(keys, "/v1/completions", **on) == 401
    assert asked(keys, "/", **on) == 200
    assert asked(keys, "/health", **on) == 200


def test_a_client_of_the_unix_socket_may_administer() -> None:
    assert asked(Keys("user", None), "/admin/budget", server=("/run/molt.sock", None)) == 200
    assert asked(Keys("user", None), "/admin/budget", server=None) == 200
