"""``molt serve --follow cgroup`` in a control group that another process fills, and leaves again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from realproc.follow import FREE_SHARE
from realproc.kernel import limited_group
from realproc.kernel.control_groups import read_groups, try_limit
from realproc.kernel.limited_group import GroupV1, GroupV2
from tests.server.local import chat, events, of_event, wait_until
from tests.server.process import started

MIB = 1 << 20
LIMIT = 1024 * MIB
FILL = """
import sys
taken = bytearray(int(sys.argv[1]))
taken[::4096] = b"x" * len(taken[::4096])
print("full", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def group() -> Iterator[GroupV1 | GroupV2]:
    """A limited group of this machine's."""
    groups = read_groups()
    if not (trial := try_limit(groups)).settable:
        pytest.skip(f"no memory control group can be made and limited here: {trial.detail}")
    made = limited_group.make(groups, f"molt-serve-{os.getpid()}", LIMIT)
    try:
        yield made
    finally:
        limited_group.remove(made.folder)


@contextmanager
def filled(group: GroupV1 | GroupV2, size: int) -> Iterator[None]:
    """Another process in the group, with this much memory."""
    with subprocess.Popen(
        [sys.executable, "-c", FILL, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: limited_group.join(group.folder),
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"full\n"
        try:
            yield
        finally:
            other.kill()


def test_a_server_shrinks_when_its_group_is_filled_and_grows_again(
    group: GroupV1 | GroupV2, tmp_path: Path
) -> None:
    """The kernel's count decides; the answer under way switches, and no process is killed."""
    join: Callable[[], None] = lambda: limited_group.join(group.folder)  # noqa: E731
    with started(tmp_path, "--follow", "cgroup", preexec=join) as server, server.client() as client:

        def state() -> Any:
            return client.get("/molt/state").json()

        wait_until(lambda: state()["source"] == "cgroup" and state()["budget_bytes"] > 100 * MIB)
        client.post("/v1/chat/completions", json=chat(max_tokens=4))  # what is loaded at first use is loaded
        largest, next_one = (rung["resident_bytes"] for rung in state()["rungs"][:2])
        assert state()["usage_bytes"] == largest
        wanted = (largest + 2 * next_one) // 2  # room for the second rung, not for the first
        leave = wanted + LIMIT // FREE_SHARE - state()["usage_bytes"]
        free = LIMIT - group.read().usage_bytes + group.read().droppable_bytes
        seen: list[Any] = []
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=1900)
        ) as response:
            source = events(response.iter_lines())
            while not of_event(seen, "token"):
                seen.append(next(source))
            with filled(group, free - leave - 12 * MIB):
                while not of_event(seen, "switch"):
                    seen.append(next(source))
            while len(of_event(seen, "switch")) < 2 or not of_event(seen[-1:], "token"):
                seen.append(next(source))
        first, second = of_event(seen, "switch")[:2]
        assert (first["from"], second["to"]) == ("tier0", "tier0")
        assert of_event(seen, "token")[-1]["rung"] == "tier0"
        assert group.read().kills == 0
        assert state()["kills"] == 0


def test_without_a_limit_there_is_nothing_to_follow(tmp_path: Path) -> None:
    if read_groups().limit_bytes is not None:
        pytest.skip("the tests run in a limited control group")
    with started(tmp_path, "--follow", "cgroup", healthy=False) as server:
        assert server.process.wait(60) == 2
    assert "no memory limit is set" in "".join(server.said)
