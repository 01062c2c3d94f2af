"""Connections that are held: with any method, any body and at any pace, they end, and leave room for others."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import psutil
import pytest

from molt.server.limits import Limits
from tests.server.local import ADMIN, Local, chat, running, streamed, wait_until

HURRIED = Limits(header_s=0.5, body_s=0.5, idle_s=60, stalled_reader_s=0.5, send_buffer_bytes=4096)
CROWDED = replace(Limits(), connections=24)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
BODIES = {
    "length": ("Content-Length: 1000000", b"x"),
    "chunks": ("Transfer-Encoding: chunked", b"1\r\nx\r\n"),
}


@pytest.fixture(scope="module")
def hurried() -> Iterator[Local]:
    with running(limits=HURRIED) as local:
        yield local


def port_of(local: Local) -> int:
    return int(local.url.rpartition(":")[2])


def connected(local: Local, stack: ExitStack, within_s: float = 20.0) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port_of(local)), timeout=within_s))


def ends(connection: socket.socket, drip: bytes) -> bool:
    """Whether the server ends a connection that goes on to send ``drip``."""
    connection.settimeout(0.05)
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        with suppress(TimeoutError):
            try:
                connection.sendall(drip)
                if connection.recv(65536) == b"":
                    return True
            except ConnectionError:
                return True
    return False


def open_at(local: Local) -> int:
    """Connections of the server in this process."""
    own = psutil.Process().net_connections("tcp")
    return sum(one.laddr.port == port_of(local) and one.status not in ("LISTEN", "TIME_WAIT") for one in own)


# --- any method, any body, any pace ---


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("path", ["/health", "/molt/events", "/v1/completions", "/nothing"])
@pytest.mark.parametrize("method", METHODS)
def test_a_body_that_never_comes_whole_ends_the_connection(
    hurried: Local, method: str, path: str, body: str
) -> None:
    header, drip = BODIES[body]
    with ExitStack() as stack:
        connection = connected(hurried, stack)
        connection.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port_of(hurried)}\r\n"
            f"Content-Type: application/json\r\n{header}\r\n\r\n".encode()
        )
        assert ends(connection, drip)


def test_a_body_that_never_begins_ends_the_connection(hurried: Local) -> None:
    with ExitStack() as stack:
        connection = connected(hurried, stack)
        connection.sendall(
            f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port_of(hurried)}\r\nContent-Length: 1000000\r\n\r\n".encode()
        )
        assert ends(connection, b"")


def test_a_get_with_a_whole_body_is_answered(hurried: Local) -> None:
    with hurried.client() as client:
        for _ in range(3):
            assert client.request("GET", "/health", content=b"{}").status_code == 200


@pytest.mark.parametrize("method", METHODS)
def test_two_framings_are_none_with_any_method(hurried: Local, method: str) -> None:
    with ExitStack() as stack:
        connection = connected(hurried, stack)
        connection.sendall(
            f"{method} /health HTTP/1.1\r\nHost: 127.0.0.1:{port_of(hurried)}\r\n"
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode()
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("count", [4, 8, 12])
def test_answers_that_are_left_unread_end_the_connection(count: int) -> None:
    """Also where so little is unread that nothing ever has to wait: then the end would."""
    limits = replace(HURRIED, idle_s=1, send_buffer_bytes=64 << 10)
    with running(limits=limits) as local, ExitStack() as stack, local.client() as client:
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", port_of(local)))
        one = f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1:{port_of(local)}\r\n\r\n".encode()
        connection.sendall(one * count)
        assert client.get("/health").status_code == 200
        assert open_at(local) == 2
        wait_until(lambda: client.get("/health").status_code == 200 and open_at(local) == 1)


# --- room ---


def test_the_owners_socket_has_room_of_its_own(tmp_path: Path) -> None:
    """However many connections are held on the port."""
    path = tmp_path / "admin.sock"
    with running(limits=CROWDED, admin_socket=path) as local, ExitStack() as stack:
        for _ in range(2 * CROWDED.connections):
            connected(local, stack).sendall(b"GET /health HT")
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://localhost") as owner:
            for budget in ("30MiB", "20MiB"):
                assert owner.post("/admin/budget", json={"budget": budget}).status_code == 200
            assert owner.get("/molt/state").status_code == 200
            with owner.stream("GET", "/molt/events") as events:
                assert events.status_code == 200


def test_the_owner_has_observers_of_his_own(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with running(admin_socket=path) as local, ExitStack() as stack, local.client() as client:
        for _ in range(Limits().observers):
            assert stack.enter_context(client.stream("GET", "/molt/events")).status_code == 200
        assert client.get("/molt/events").status_code == 503
        transport = httpx2.HTTPTransport(uds=str(path))
        with (
            httpx2.Client(transport=transport, base_url="http://localhost") as owner,
            owner.stream("GET", "/molt/events") as events,
        ):
            assert events.status_code == 200


def test_connections_beyond_the_room_take_nothing_from_those_within() -> None:
    """Who was connected before is served; who comes later is refused until there is room again."""
    with running(limits=CROWDED) as local, local.client() as client:
        assert client.get("/health").status_code == 200
        with ExitStack() as stack:
            for _ in range(3 * CROWDED.connections):
                connected(local, stack)
            time.sleep(0.2)
            assert client.get("/health").status_code == 200
            assert len(streamed(client, chat(max_tokens=4))) > 4
        assert len(streamed(client, chat(max_tokens=4))) > 4
        with local.client(headers={"authorization": f"Bearer {ADMIN}"}) as admin:
            assert admin.post("/admin/budget", json={"budget": "60MiB"}).status_code == 200


def test_a_third_of_the_connections_held_takes_nothing_from_others() -> None:
    """Some idle, some slow with headers, some with bodies, some that do not read: every honest request is answered."""
    with running(limits=replace(Limits(), connections=60)) as local, ExitStack() as stack:
        begin = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port_of(local)}\r\n".encode()
        for number in range(20):
            held = connected(local, stack)
            held.sendall((b"", begin, begin + b"Content-Length: 9\r\n\r\nx", begin + b"\r\n")[number % 4])
        with local.client() as client:
            for n in range(60):
                assert client.get("/health").status_code == 200
                if n % 10 == 0:
                    assert streamed(client, chat(max_tokens=4))[-1] == "[DONE]"


# --- pages of other sites ---


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_no_page_of_another_site_holds_an_observer(local: Local, site: str) -> None:
    """A page sends no Origin with some of its requests, but the browser says from where they come."""
    given = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}
    with local.client() as client:
        for path in ("/molt/events", "/molt/state", "/v1/models", "/metrics", "/"):
            refused = client.get(path, headers=given)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")
        opened = {**given, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert client.get("/molt/events", headers=opened).status_code == 403
        assert client.get("/", headers=opened).status_code == 200, "a link to the page"
        assert client.get("/", headers={**opened, "sec-fetch-dest": "iframe"}).status_code == 403


@pytest.mark.parametrize("origin", ["http://localhost:3000", "null", "https://evil.example"])
def test_no_event_source_of_another_site_holds_an_observer(local: Local, origin: str) -> None:
    with local.client() as client:
        assert client.get("/molt/events", headers={"origin": origin}).status_code == 403
        assert client.get("/molt/state", headers={"origin": local.url}).status_code == 200


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_own_page_observes(local: Local, site: str) -> None:
    with (
        local.client() as client,
        client.stream("GET", "/molt/events", headers={"sec-fetch-site": site}) as s,
    ):
        assert s.status_code == 200
