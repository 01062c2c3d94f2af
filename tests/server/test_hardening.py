"""What a server on a user's machine has to withstand. The numbers are those of ``docs/reference/server-checks.md``."""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from molt.core.engine_protocol import SwitchError
from molt.errors import InputError
from molt.server.access import Keys
from molt.server.answering import TOKENISING_THREADS
from molt.server.command import command as serve
from molt.server.limits import Limits
from tests.server.local import (
    ADMIN,
    Local,
    chat,
    events,
    night,
    of_event,
    running,
    streamed,
    text_of,
    wait_until,
)
from tests.server.process import Process, command, started

MIB = 1 << 20
JSON = {"content-type": "application/json"}
SECRET = "an-uncommon-secret"
HURRIED = Limits(header_s=0.5, body_s=0.5, idle_s=1, stalled_reader_s=0.5, send_buffer_bytes=4096)


@pytest.fixture(scope="module")
def client(local: Local) -> Iterator[httpx2.Client]:
    with local.client() as client:
        yield client


def admin(token: str | None = ADMIN, **more: str) -> dict[str, str]:
    """Headers of a request for administration."""
    return ({} if token is None else {"authorization": f"Bearer {token}"}) | more


def raw(port: int, data: bytes, *, within_s: float = 10.0) -> bytes:
    """What a server says to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=within_s) as connection:
        with suppress(ConnectionError):
            connection.sendall(data)
        return _rest(connection)


def _rest(connection: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            said += part
    return said


def port_of(local: Local) -> int:
    return int(local.url.rpartition(":")[2])


def written(local: Local) -> str:
    """The log so far."""
    assert isinstance(local.log, io.StringIO)
    return local.log.getvalue()


def budget_of(client: httpx2.Client) -> int:
    return client.get("/molt/state").json()["budget_bytes"]


def rss() -> int:
    """Memory of this process, without what is free but not given back."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc keeps it, and has the word for it
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return psutil.Process().memory_info().rss


# --- 1 to 5: who is let in ---


def test_1_only_this_machine_can_connect(pico: Process) -> None:
    """``ss`` sees the loopback address alone."""
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=True).stdout.split("\n")
    ours = [line.split()[3] for line in listening if line and line.split()[3].endswith(f":{pico.port}")]
    assert ours == [f"127.0.0.1:{pico.port}"]


def test_2_another_address_needs_a_token(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--host", "0.0.0.0", "--port", "0", "--log", str(tmp_path / "log")),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("molt: --host 0.0.0.0: ")
    assert "--token" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    for host, token in (("::", None), ("192.0.2.1", ""), ("example.org", "")):
        with pytest.raises(InputError, match="--token"):
            serve(host=host, port=0, token=token)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "10.0.0.1:{port}"]
)
@pytest.mark.parametrize("origin", [None, "http://evil.example", "same"])
def test_3_a_name_that_was_rebound_is_not_served(
    local: Local, client: httpx2.Client, host: str, origin: str | None
) -> None:
    """Whatever the Origin is, matching too: nothing is answered, and nothing changes."""
    before = budget_of(client)
    host = host.format(port=port_of(local))
    given = {"host": host} | (
        {} if origin is None else {"origin": f"http://{host}" if origin == "same" else origin}
    )
    for method, path in (("GET", "/molt/state"), ("GET", "/"), ("POST", "/admin/budget")):
        refused = client.request(
            method, path, headers=admin(**given), **({"json": {"budget": 1}} if method == "POST" else {})
        )
        assert refused.status_code == 421, (method, path)
        assert refused.json()["error"]["code"] == "misdirected_request"
    assert budget_of(client) == before


def test_3_two_hosts_are_none(local: Local) -> None:
    port = port_of(local)
    said = raw(
        port,
        f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil\r\nConnection: close\r\n\r\n".encode(),
    )
    assert said.split(b" ")[1] in (b"400", b"421")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
def test_3_our_own_names_are_served(local: Local, client: httpx2.Client, name: str) -> None:
    assert client.get("/health", headers={"host": f"{name}:{port_of(local)}"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1", "https://127.0.0.1:{port}"]
)
def test_4_other_sites_can_neither_read_nor_change_anything(
    local: Local, client: httpx2.Client, origin: str
) -> None:
    before = budget_of(client)
    given = {"origin": origin.format(port=port_of(local))}
    preflight = {
        **given,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    answers = [
        client.options("/admin/budget", headers=preflight),
        client.options("/v1/chat/completions", headers=preflight),
        client.get("/v1/models", headers=given),
        client.post("/admin/budget", json={"budget": 1}, headers=admin(**given)),
        client.post("/v1/chat/completions", json=chat(), headers=given),
    ]
    assert [answer.status_code for answer in answers[-2:]] == [403, 403]
    assert not any(name.startswith("access-control-") for answer in answers for name in answer.headers)
    assert budget_of(client) == before


def test_4_no_form_can_post(client: httpx2.Client) -> None:
    """What a page may send without being asked first is never read."""
    before = budget_of(client)
    for media_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        None,
    ):
        given = admin() if media_type is None else admin(**{"content-type": media_type})
        assert client.post("/admin/budget", content=b'{"budget": 1}', headers=given).status_code == 415
    assert budget_of(client) == before


def test_4_the_page_itself_may_post(local: Local, client: httpx2.Client) -> None:
    given = admin(origin=local.url)
    assert client.post("/admin/budget", json={"budget": "90MiB"}, headers=given).status_code == 200


def test_5_administration_has_a_token_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with running(keys=Keys("users-token", ADMIN)) as local:
        user = {"authorization": "Bearer users-token"}
        with local.client() as client:
            assert client.get("/molt/state").status_code == 401
            assert client.get("/molt/state", headers={"authorization": "Bearer wrong"}).status_code == 401
            assert client.get("/molt/state?token=users-token").status_code == 401
            assert client.get("/health").status_code == 200
            assert client.get("/").status_code == 200
            before = client.get("/molt/state", headers=user).json()["budget_bytes"]
            for given in (
                admin(None), admin("wrong"), admin("users-token"), admin(ADMIN[:-1]), admin(ADMIN + "x"),
                admin(None, authorization=f"Basic {ADMIN}"), admin(None, cookie=f"token={ADMIN}"),
            ):  # fmt: skip
                refused = client.post(f"/admin/budget?token={ADMIN}", json={"budget": 1}, headers=given)
                assert refused.status_code == 401, given
                assert refused.headers["www-authenticate"] == "Bearer"
            assert client.get("/molt/state", headers=user).json()["budget_bytes"] == before
            assert client.post("/admin/budget", json={"budget": "30MiB"}, headers=admin()).status_code == 200
            assert client.post("/v1/chat/completions", json=chat(), headers=user).status_code == 200
        log = written(local)
    said = "".join(capfd.readouterr())
    assert ADMIN not in log + said
    assert "users-token" not in log + said


def test_5_a_socket_is_for_its_owner_and_needs_no_token(tmp_path: Path) -> None:
    """Only users who may open the socket's file can administer; no client can over TCP."""
    path = tmp_path / "admin.sock"
    options = ("--engine", "modelled", "--admin-socket", str(path), "--admin-token", "")
    with started(tmp_path, *options) as server:
        assert path.stat().st_mode & 0o777 == 0o600
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://localhost") as client:
            done = client.post("/admin/budget", json={"budget": "20MiB"})
            assert (done.status_code, done.json()["budget_bytes"]) == (200, 20 * MIB)
        assert server.budget("30MiB").status_code == 401
        with server.client() as client:
            assert client.post("/admin/budget", json={"budget": 5}).status_code == 401
        server.end(15)
    assert not path.exists()


# --- 6 and 7: the budget ---


@pytest.mark.parametrize(
    "budget",
    [
        "-1",
        "0",
        "NaN",
        "1e308",
        '"1gb"',
        "true",
        str(2**63),
        None,
        '{"budget": 1}',
        '"200% of tier9"',
        '"-5MiB"',
    ],
)
def test_6_a_budget_is_a_size(client: httpx2.Client, budget: str | None) -> None:
    before, killed = budget_of(client), client.get("/molt/state").json()["kills"]
    body = "{}" if budget is None else f'{{"budget": {budget}}}'
    refused = client.post(
        "/admin/budget", content=body, headers=admin(**{"content-type": "application/json"})
    )
    assert refused.status_code == 422
    assert refused.json()["error"]["param"] == "budget"
    assert (budget_of(client), client.get("/molt/state").json()["kills"]) == (before, killed)


@pytest.mark.parametrize("budget", [1, "100% of tier2 - 1MiB", 2**63 - 1])
def test_6_any_other_budget_is_kept_to_without_a_kill(
    local: Local, client: httpx2.Client, budget: Any
) -> None:
    """Down to a byte: then everything is given back, and the answer goes on when there is memory again."""
    chunks: list[Any] = []
    try:
        with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=60)) as response:
            for chunk in events(response.iter_lines()):
                chunks.append(chunk)
                if len(chunks) == 6:
                    assert local.budget(budget).status_code == 200
                    time.sleep(0.2)
                    state = client.get("/molt/state").json()
                    assert state["usage_bytes"] <= state["budget_bytes"]
                    local.budget("90MiB")
    finally:
        local.budget("90MiB")
    assert text_of(chunks) == "".join(f" w{n}" for n in range(60))
    assert client.get("/molt/state").json()["kills"] == 0


def test_7_a_budget_that_never_rests(pico: Process) -> None:
    """A hundred changes a second on real models while three answers come: all are whole, and the bound is kept.

    The full number of changes is that of ``python -m benchmarks.serve``.
    """
    try:
        with ThreadPoolExecutor(3) as pool, pico.client(headers=admin()) as client:
            answers = [pool.submit(_stream, pico, chat(max_tokens=80, seed=n)) for n in range(3)]
            for n in range(200):
                client.post("/admin/budget", json={"budget": ("90MiB", "100% of tier1 + 4MiB")[n % 2]})
                time.sleep(0.01)
            client.post("/admin/budget", json={"budget": "90MiB"})
            chunks = [answer.result(60) for answer in answers]
            state = client.get("/molt/state").json()
    finally:
        pico.budget("90MiB")
    for answer in chunks:
        assert answer[-1] == "[DONE]"
        assert of_event(answer, "summary")[0]["tokens"] == 80
        assert of_event(answer, "summary")[0]["killed"] is False
    assert state["kills"] == 0
    assert state["overshoot_bytes_max"] == 0, "what is left over when everything asked for was carried out"


def _stream(server: Process, body: dict[str, Any]) -> list[Any]:
    with server.client() as client:
        return streamed(client, body)


# --- 8 to 11: requests that cost ---


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"max_tokens": 10**9}, 400), ({"max_tokens": -1}, 400), ({"max_tokens": 0}, 400), ({"n": 10**6}, 400),
        ({"messages": [{"role": "user", "content": "x" * 10_000_000}]}, 413),
        ({"messages": [{"role": "user", "content": "tree " * 50_000}]}, 400),
        ({"messages": [{"role": "user", "content": "🌱" * 50_000}]}, 400),
        ({"stop": ["x" * 1000]}, 400), ({"seed": 10**30}, 400),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
)  # fmt: skip
def test_8_numbers_have_bounds(client: httpx2.Client, more: dict[str, Any], status: int) -> None:
    """Refused before anything is made of them: memory stays where it is."""
    body = json.dumps({**chat(), **more}).encode()
    before = rss()
    with suppress(httpx2.WriteError):  # a body that is too long is not read to its end
        refused = client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert refused.status_code == status
    assert rss() - before < 10 * MIB


def test_9_a_body_has_a_length_that_is_true(local: Local) -> None:
    """Chunks without end are cut off at the limit; a claim beyond it is refused unread; two framings are none."""
    port = port_of(local)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    )
    before = rss()
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    said = raw(port, (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + chunk * 200)
    assert b" 413 " in said.split(b"\r\n")[0] or said == b""  # reset before it could be read
    assert b" 413 " in raw(port, (head + "Content-Length: 104857600\r\n\r\n").encode()).split(b"\r\n")[0]
    both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert b" 400 " in raw(port, (head + both).encode()).split(b"\r\n")[0]
    for length in ("-1", "1e3", "5, 6", "0x10"):
        assert b" 400 " in raw(port, (head + f"Content-Length: {length}\r\n\r\n").encode()).split(b"\r\n")[0]
    packed = head + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"
    assert b" 415 " in raw(port, packed.encode("latin-1")).split(b"\r\n")[0]
    assert rss() - before < 10 * MIB


def test_9_headers_have_a_length(local: Local) -> None:
    port = port_of(local)
    said = raw(port, f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX: {'x' * 100_000}\r\n\r\n".encode())
    assert b" 431 " in said.split(b"\r\n")[0]


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=night)])
def test_10_slow_requests_hold_up_no_other(count: int) -> None:
    """Headers a byte at a time, and bodies that never come: cut off; meanwhile others are served."""
    with running(limits=HURRIED) as local, ExitStack() as stack, local.client() as client:
        port = port_of(local)
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(count)
        ]
        for number, connection in enumerate(slow):
            connection.sendall(b"GET /health HT" if number % 2 else b"")
        late = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        late.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            "Content-Length: 100\r\n\r\n{".encode()
        )
        assert client.post("/v1/chat/completions", json=chat(max_tokens=2)).status_code == 200
        drip = threading.Thread(target=_drip, args=(slow,))
        drip.start()
        assert [_rest(connection) for connection in slow] == [b""] * count
        assert b" 408 " in _rest(late).split(b"\r\n")[0]
        drip.join()


def _drip(connections: list[socket.socket]) -> None:
    for _ in range(10):
        for connection in connections:
            with suppress(OSError):
                connection.sendall(b"x")
        time.sleep(0.1)


def test_11_a_client_that_does_not_read_harms_no_other() -> None:
    """It is dropped, what its answer held is freed, and an answer beside it comes to its end through a switch."""
    with (
        running(says=lambda n: "x" * 400, limits=HURRIED) as local,
        local.client() as client,
        socket.socket() as stalled,
    ):
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stalled.connect(("127.0.0.1", port_of(local)))
        body = json.dumps(chat(stream=True, max_tokens=1900)).encode()
        stalled.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port_of(local)}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        wait_until(lambda: len(client.get("/molt/state").json()["tenants"]) == 1)
        before = rss()
        seen: list[Any] = []
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=150)
        ) as response:
            for chunk in events(response.iter_lines()):
                seen.append(chunk)
                if len(seen) == 20:
                    local.budget("30MiB")
        assert of_event(seen, "summary")[0]["tokens"] == 150
        wait_until(lambda: client.get("/molt/state").json()["tenants"] == [])
        wait_until(lambda: not local.engine.holds())
        assert local.engine.decoded < 1900
        assert rss() - before < 20 * MIB


# --- 12 and 13: those who go away ---


def test_12_who_goes_away_frees_what_they_held() -> None:
    """In the middle of an answer, within a token; in the middle of a prompt, within a chunk of it."""
    with running(pace=3.0) as local, local.client() as client:
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=1000)
        ) as response:
            source = events(response.iter_lines())
            while not of_event([next(source)], "token"):
                pass
        wait_until(lambda: not local.engine.holds())
        assert local.engine.decoded < 100
        local.engine.calls.clear()
        long = chat("a b c d " * 180, stream=True, max_tokens=5)
        with client.stream("POST", "/v1/chat/completions", json=long) as response:
            source = events(response.iter_lines())
            next(source)
            wait_until(lambda: bool(local.engine.calls))
        wait_until(lambda: not local.engine.holds())
        read = sum(int(call.partition(" ")[2]) for call in local.engine.calls)
        assert read < 1000, "the prompt was prefilled to its end after the client had left"
        assert client.get("/molt/state").json()["tenants"] == []
        assert len(streamed(client, chat())) > 16


def test_12_who_goes_away_unstreamed_too() -> None:
    with running(pace=3.0) as local:
        with pytest.raises(httpx2.ReadTimeout), httpx2.Client(base_url=local.url, timeout=1.0) as client:
            client.post("/v1/chat/completions", json=chat(max_tokens=1500))
        wait_until(lambda: not local.engine.holds())
        assert local.engine.decoded < 1000


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=night)])
def test_13_connections_that_are_dropped_leave_nothing(count: int) -> None:
    """Some say nothing, some half a request, some ask and leave: descriptors, threads and memory are what they were."""
    with open(os.devnull, "w") as nowhere, running(journal=nowhere) as local, local.client() as client:
        body = json.dumps(chat(stream=True, max_tokens=50)).encode()
        port = port_of(local)
        whole = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

        def drop(times: int) -> None:
            for n in range(times):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                    connection.sendall((b"", whole[:40], whole)[n % 3])

        def settled() -> bool:
            return client.get("/molt/state").json()["tenants"] == [] and not local.engine.holds()

        drop(30)  # what is made once is made
        wait_until(settled)
        own = psutil.Process()
        before = own.num_fds(), own.num_threads(), rss()
        drop(count)
        wait_until(settled)
        wait_until(lambda: own.num_fds() <= before[0])
        assert own.num_threads() <= before[1] + TOKENISING_THREADS
        assert rss() - before[2] < 5 * MIB
        assert len(streamed(client, chat())) > 16


# --- 14 to 16: names and files ---

_opened: list[str] = []
_watching = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "open":
        _opened.append(str(arguments[0]))


def test_14_a_name_is_no_path(client: httpx2.Client) -> None:
    """Models and pages are looked up by name: nothing that a request says is ever opened."""
    global _watching
    sys.addaudithook(_audit)
    names = [
        "../../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "a\\b",
        "pico/../pico",
        "пико",
        "pico ",
        "..",
        "%2e%2e/x",
        "~root",
    ]
    _opened.clear()
    _watching = True
    try:
        for name in names:
            assert client.post("/v1/chat/completions", json={**chat(), "model": name}).status_code == 404
            for path in ("/v1/models/", "/"):
                encoded = path + "".join(f"%{byte:02x}" for byte in name.encode())
                assert client.get(encoded).status_code == 404
        assert client.get("/../../etc/passwd").status_code == 404
        assert client.post("/admin/trace", json={"name": "../x"}, headers=admin()).status_code == 422
    finally:
        _watching = False
    assert [path for path in _opened if "passwd" in path or "pico" in path] == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "model.pkl", "model.safetensors"])
def test_15_weights_that_could_run_code_or_are_torn_are_refused(name: str, tmp_path: Path) -> None:
    """In a line, before anything listens (``tests/models`` has the ways in which a file can be torn)."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / name).write_bytes((2**62).to_bytes(8, "little") + b"\x80\x04cos\nsystem\n")
    ladder = tmp_path / "ladder.yaml"
    ladder.write_text("name: evil\nrungs:\n  - {name: tier0, source: {folder: model}, precision: fp32}\n")
    _refused_ladder(ladder)


def test_16_no_code_of_a_model_is_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    model = tmp_path / "model"
    model.mkdir()
    config = {"model_type": "qwen2", "auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "modeling_x.py").write_text(f"open({str(canary)!r}, 'w')")
    ladder = tmp_path / "ladder.yaml"
    ladder.write_text("name: evil\nrungs:\n  - {name: tier0, source: {folder: model}, precision: fp32}\n")
    _refused_ladder(ladder)
    assert not canary.exists()


def _refused_ladder(ladder: Path) -> None:
    log = ladder.with_name("log")
    with pytest.raises(InputError) as refused:
        serve(ladder=str(ladder), port=0, log=log)
    assert "\n" not in str(refused.value)
    assert str(ladder) in str(refused.value)
    assert not log.exists()


# --- 17 and 18: which client receives what ---


def test_17_no_client_receives_anything_of_another(client: httpx2.Client, local: Local) -> None:
    """Through parks, sheds and switches; ``tests/engine`` has the caches. Views have no text at all."""
    received: dict[str, list[Any]] = {}

    def ask(name: str) -> None:
        received[name] = streamed(client, chat(f"{SECRET}-{name}", max_tokens=120))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    try:
        for budget in ("20MiB", 1, "8MiB", 1, "90MiB"):
            time.sleep(0.1)
            local.budget(budget)
            assert SECRET not in client.get("/molt/state").text
    finally:
        local.budget("90MiB")
        for thread in threads:
            thread.join(30)
    ids = {name: {chunk["id"] for chunk in chunks[:-1]} for name, chunks in received.items()}
    assert len(set.union(*ids.values())) == 3
    assert all(text_of(chunks) == "".join(f" w{n}" for n in range(120)) for chunks in received.values())
    assert not local.engine.holds()


PIECES = [
    "a\n",
    "\r",
    "b\r\n\r\n",
    "\u2028",
    "data: x\n\n",
    "",
    "🌱",
    "",
    "\x00",
    ": c\n",
    "[DONE]",
    "\ufeff",
    "é\u0301",
]


def test_18_whatever_the_text_is_it_arrives_as_it_is(tmp_path: Path) -> None:
    """Line ends of every kind, what looks like an event, characters that took two tokens: also across a switch."""
    with running(says=lambda n: PIECES[n % len(PIECES)], pace=0.5) as local, local.client() as client:
        seen: list[Any] = []
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=520)
        ) as response:
            wire = b""
            for part in response.iter_raw():
                wire += part
                if wire.count(b"\n\n") > 8 and local.bridge.budget_bytes > 30 * MIB:
                    local.budget("20MiB")
    lines = wire.split(b"\n")
    assert all(line == b"" or line.startswith(b"data: ") for line in lines)
    seen = [json.loads(line[6:]) for line in lines if line and line != b"data: [DONE]"]
    assert text_of(seen) == "".join(PIECES[n % len(PIECES)] for n in range(520))
    assert wire.count(b"data: [DONE]\n\n") == 1
    assert wire.endswith(b"data: [DONE]\n\n")
    assert of_event(seen, "switch")


# --- 22 to 24 ---


def test_22_nothing_that_runs_code_from_data() -> None:
    """Ruff's security rules over the server (``make check`` has the rest)."""
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "S", "--ignore", "S101", "molt/server"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_23_a_switch_for_which_there_is_no_memory_is_not_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer goes on, by reading again (``tests/engine`` fails every allocation of a switch in turn)."""

    def fail(*arguments: Any) -> None:
        raise SwitchError("no memory for the switch: /secret/path")

    with running() as local, local.client() as client:
        monkeypatch.setattr(local.engine, "switch", fail)
        seen: list[Any] = []
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=500)
        ) as response:
            for chunk in events(response.iter_lines()):
                seen.append(chunk)
                if len(seen) == 8:
                    local.budget("20MiB")
    assert text_of(seen) == "".join(f" w{n}" for n in range(500))
    (switch,) = of_event(seen, "switch")
    assert (switch["kind"], switch["to"], switch["flops_saved"]) == ("reread", "tier1", 0)
    assert "path" not in str(seen)


def test_24_errors_tell_nothing_of_the_machine_or_the_prompt(
    local: Local, client: httpx2.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong: list[httpx2.Response] = [
        client.post("/v1/chat/completions", json=chat(SECRET, n=5)),
        client.post("/v1/chat/completions", json=chat(SECRET, **{SECRET: 1})),
        client.post("/v1/chat/completions", json=chat(SECRET * 5000)),
        client.post(
            "/v1/chat/completions",
            content=b'{"x": "' + SECRET.encode(),
            headers={"content-type": "application/json"},
        ),
        client.post("/v1/completions", json={"model": SECRET, "prompt": "x"}),
        client.post("/v1/completions", json={"model": "pico", "prompt": [SECRET, SECRET]}),
        client.post("/v1/completions", json={"model": "pico", "prompt": ""}),
        client.post("/v1/embeddings", json={"input": SECRET}),
        client.get(f"/{SECRET}"),
        client.delete("/v1/models"),
        client.get("/v1/chat/completions"),
        client.post("/admin/budget", json={"budget": SECRET}, headers=admin()),
        client.post("/admin/budget", json={"budget": SECRET}),
    ]
    for answer in wrong:
        assert 400 <= answer.status_code < 500
        assert set(answer.json()["error"]) == {"message", "type", "code", "param"}
        assert "\n" not in answer.json()["error"]["message"]
        assert not re.search(r"Traceback|File \"|/(root|home|usr|work|tmp)/|\.py\b", answer.text)
        assert SECRET not in answer.text
    client.post("/v1/chat/completions", json=chat(SECRET))
    assert SECRET not in written(local) + "".join(capfd.readouterr())


def test_24_faults_of_our_own_are_not_explained(
    monkeypatch: pytest.MonkeyPatch, local: Local, client: httpx2.Client
) -> None:
    monkeypatch.setattr(local.bridge, "view", lambda: 1 / 0)
    answer = client.get("/molt/state")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error"
