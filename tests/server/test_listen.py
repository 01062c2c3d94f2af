"""Places to listen at that cannot be: one line that names the option, whatever the system or Python says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from molt.errors import InputError
from molt.server.listen import listen_at, listen_on


@pytest.mark.parametrize("name", ["a" * 300, "long/" * 30 + "x", "file/below", "absent/x", "nul\0", "file"])
def test_a_socket_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        listen_at(tmp_path / name)
    message = str(caught.value)
    assert message.startswith("--admin-socket: ")
    assert not message.endswith("None")
    assert "\n" not in message


@pytest.mark.parametrize("host", ["a" * 64 + ".invalid", "300.1.1.1", "ü" * 70])
def test_an_address_that_cannot_be(host: str) -> None:
    with pytest.raises(InputError) as caught:
        listen_on(host, 0)
    assert str(caught.value).startswith(f"--host {host}")
    assert not str(caught.value).endswith("None")
