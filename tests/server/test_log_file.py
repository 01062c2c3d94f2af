"""The log of a server: given up where the disk is full, rotated by size, or none; and what a start leaves behind."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from molt.errors import InputError
from molt.formats.log import LogError, read
from molt.server.command import command as serve
from molt.server.listen import admin_listener, listen_at
from molt.server.log_file import LogFile
from tests.server.local import ADMIN, chat, is_healthy, streamed, wait_until
from tests.server.process import command, started

KIB = 1 << 10
HEADER = {"kind": "header", "schema": 1}


def logging(path: Path, *, size_bytes: int | None = None, files: int = 3) -> tuple[LogFile, list[str]]:
    """A log with its header, and what is said and counted of it."""
    noted: list[str] = []
    log = LogFile(path, size_bytes, files, noted.append, lambda: noted.append("lost"))
    log.write('{"kind":"header","schema":1}\n')
    return log, noted


def record(seq: int) -> str:
    return f'{{"at_ns":{seq},"kind":"engine","seq":{seq},"what":"started"}}\n'


# --- a full disk ---


def no_more_than(size: int) -> Any:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_full_disk_ends_no_answer(tmp_path: Path) -> None:
    """The log ends with a whole record, one line says so, a metric counts on, and the server ends well."""
    with started(tmp_path, "--engine", "modelled", preexec=no_more_than(40 * KIB)) as server:
        with server.client() as client:
            for _ in range(4):
                assert streamed(client, chat(max_tokens=40))[-1] == "[DONE]"
            (lost,) = [
                line
                for line in client.get("/metrics").text.splitlines()
                if line.startswith("molt_log_records_lost_total ")
            ]
            assert float(lost.split()[1]) > 0
        given_up = [line for line in server.said if "given up" in line]
        assert len(given_up) == 1
        assert given_up[0].startswith(f"molt: log given up: {server.log}: ")
        assert server.end(15) == 0
        assert not [line for line in server.said if "Traceback" in line]
    assert server.log.read_bytes().endswith(b"}\n")
    header, records = read(server.log)
    assert [one["seq"] for one in records] == list(range(1, len(records) + 1))
    assert header["server"] == {"ladder": "pico"}


def test_a_disk_that_is_full_from_the_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molt.server.log_file.os.write", _half_then_full())
    with pytest.raises(InputError, match=r"--log: .*/log: No space left"):
        logging(tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_after_a_gap_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when there is room again: a log with a gap would be decided again in another way."""
    log, noted = logging(tmp_path / "log")
    log.write(record(1))
    with monkeypatch.context() as full:
        full.setattr("molt.server.log_file.os.write", _half_then_full())
        log.write(record(2))
    log.write(record(3))
    log.close()
    assert noted[0] == "lost"
    assert "No space left" in noted[1]
    assert noted[2:] == ["lost"]
    assert (tmp_path / "log").read_text().splitlines()[1:] == [record(1).rstrip()]


def _half_then_full() -> Any:
    write, calls = os.write, list[int]()

    def half(file: int, data: bytes) -> int:
        calls.append(file)
        if len(calls) == 1:
            return write(file, bytes(data)[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return half


# --- rotation ---


def test_a_log_is_rotated_by_size_and_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log, noted = logging(path, size_bytes=300, files=4)
    for seq in range(1, 15):
        log.write(record(seq))
    log.close()
    assert noted == []
    parts = sorted(tmp_path.iterdir())
    assert [one.name for one in parts] == [path.name, *(f"{path.name}.{age}" for age in (1, 2, 3))]
    assert all(one.stat().st_size <= 300 for one in parts)
    header, records = read(path)
    assert header == HEADER
    assert [one["seq"] for one in records] == list(range(1, 15))
    header, records = read(tmp_path / "events.jsonl.3")
    assert (header, records[0]["seq"]) == (HEADER, 1)
    _, two = read(tmp_path / "events.jsonl.2")
    assert [one["seq"] for one in two] == list(range(1, len(two) + 1))
    assert len(two) > len(records)


def test_a_part_without_those_before_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log, noted = logging(path, size_bytes=300, files=2)
    for seq in range(1, 30):
        log.write(record(seq))
    log.close()
    assert noted == []
    assert sorted(one.name for one in tmp_path.iterdir()) == [path.name, f"{path.name}.1"]
    for one in tmp_path.iterdir():
        with pytest.raises(LogError, match=r"part \d+ of a rotated log"):
            read(one)


@pytest.mark.parametrize("part", ['"x"', "0", "-1", "1.5", "[]", "1000000000000", "null"])
def test_a_part_that_is_no_number_is_one_line(tmp_path: Path, part: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f'{{"kind":"header","schema":1,"part":{part}}}\n')
    with pytest.raises(LogError):
        read(path)


def test_a_part_of_another_log_is_not_taken_for_its_own(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind":"header","schema":1,"part":2}\n')
    (tmp_path / "events.jsonl.1").write_text('{"kind":"header","schema":1,"clock":"live"}\n')
    with pytest.raises(LogError, match="not part 1"):
        read(path)


def test_one_file_is_possible_and_a_long_record_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log, noted = logging(path, size_bytes=10, files=1)
    for seq in range(1, 4):
        log.write(record(seq))
    log.close()
    assert noted == []
    assert [one.name for one in tmp_path.iterdir()] == ["log"]
    assert len(path.read_text().splitlines()) == 2


def test_older_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text("mine")
    with pytest.raises(InputError, match=r"log\.1: exists already"):
        LogFile(tmp_path / "log", 100, 3, print, lambda: None)
    assert not (tmp_path / "log").exists()


def test_a_server_rotates_its_log(tmp_path: Path) -> None:
    options = ("--engine", "modelled", "--log-size", "16KiB", "--log-files", "50")
    with started(tmp_path, *options) as server:
        with server.client() as client:
            for _ in range(3):
                streamed(client, chat(max_tokens=60))
        assert server.end(15) == 0
    assert (tmp_path / "events.jsonl.1").exists()
    _, records = read(server.log)
    assert records[0]["seq"] == 1
    assert records[-1]["kind"] == "end"


def test_a_server_may_have_no_log(tmp_path: Path) -> None:
    with started(tmp_path, "--engine", "modelled", "--log", "none") as server:
        with server.client() as client:
            assert streamed(client, chat(max_tokens=4))[-1] == "[DONE]"
        assert server.said[1].endswith("; no log")
        assert server.end(15) == 0
    assert not server.log.exists()
    assert {one.name for one in tmp_path.iterdir()} == {"tmp"}


# --- the socket of the owner ---


def test_a_second_server_at_a_live_socket_is_refused(tmp_path: Path) -> None:
    """In one line; the first goes on, and its socket too."""
    path = tmp_path / "admin.sock"
    with started(tmp_path, "--engine", "modelled", "--admin-socket", str(path)):
        second = subprocess.run(
            command("--engine", "modelled", "--port", "0", "--log", "none", "--admin-socket", str(path)),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2
        assert second.stderr == f"molt: --admin-socket: {path}: another server listens there\n"
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://localhost") as owner:
            assert owner.post("/admin/budget", json={"budget": "20MiB"}).status_code == 200


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with admin_listener(path), socket.socket(socket.AF_UNIX) as owner:
        owner.connect(str(path))
    assert not path.exists()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(InputError, match="--admin-socket: "):
        listen_at(path)
    assert path.read_text() == "mine"


def test_the_socket_of_another_server_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with admin_listener(path):
        path.unlink()
        other = listen_at(path)
    assert path.exists()
    other.close()


@pytest.mark.parametrize(
    "wrong", [{"log": "{folder}/blocked/log"}, {"log": "{folder}/there"}, {"log_size": "x"}]
)
def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, wrong: dict[str, str]) -> None:
    (tmp_path / "blocked").write_text("")
    (tmp_path / "there").write_text("")
    given = {name: text.format(folder=tmp_path) for name, text in wrong.items()}
    with pytest.raises(InputError, match="--log"):
        serve(**{"port": 0, "admin_socket": tmp_path / "s", "log": str(tmp_path / "log"), **given})  # type: ignore[arg-type]
    assert {one.name for one in tmp_path.iterdir()} == {"blocked", "there"}


# --- what is said at the start ---


def test_a_token_that_was_given_is_not_printed(tmp_path: Path) -> None:
    with started(tmp_path, "--engine", "modelled", "--token", "the-clients", healthy=False) as server:
        wait_until(lambda: len(server.said) > 1, 60)
        wait_until(lambda: is_healthy(server.url), 60)
        assert server.budget("30MiB").status_code == 200
        assert server.end(15) == 0
    assert ADMIN not in "".join(server.said)
    assert "the-clients" not in "".join(server.said)


def test_the_start_names_the_budget_in_force(tmp_path: Path) -> None:
    """Not the one with which it would have begun, had it not followed the machine."""
    options = ("--engine", "modelled", "--budget", "30MiB", "--follow", "memavailable")
    with started(tmp_path, *options) as server:
        assert " with 30MiB" not in server.said[1]
        assert " by memavailable; log in " in server.said[1]


def test_what_administration_answers_is_the_budget_in_force(tmp_path: Path) -> None:
    with (
        started(tmp_path, "--engine", "modelled", "--budget", "30MiB") as server,
        server.client(headers={"authorization": f"Bearer {ADMIN}"}) as client,
    ):
        steps = [{"at": "0s", "budget": "20MiB"}, {"at": "30s", "budget": "30MiB"}]
        answer = client.post("/admin/trace", json={"steps": steps}).json()
        assert answer == {"source": "trace", "budget_bytes": 20 << 20}
        answer = client.post("/admin/follow", json={"source": "memavailable"}).json()
        assert answer["budget_bytes"] > 30 << 20
