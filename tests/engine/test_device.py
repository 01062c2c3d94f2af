"""The device that is asked for is usable, or refused in one line."""

from __future__ import annotations

import pytest
import torch

from molt.engine.device import usable_device
from molt.errors import InputError


def test_the_processor_is_always_there() -> None:
    assert usable_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cpuu", "--device: 'cpuu' is no device; did you mean 'cpu'"),
        ("cuda:x", "--device: 'cuda:x' is no device; did you mean 'cuda'"),
        ("cuda:99", "--device: 'cuda:99': torch sees 0 CUDA devices here"),
    ],
)
def test_others_are_refused(name: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError) as refusal:
        usable_device(name)
    assert str(refusal.value).startswith(line)
