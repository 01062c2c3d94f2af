"""Renders the chat template of a model, which is a program of strangers, in a process of its own.

The process is started with the first chat and kept. What it does wrong is one line for the client: a template that
raises, takes too long, needs too much memory or asks for what the sandbox keeps from it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from molt.errors import InputError
from molt.models.chat_template import ChatTemplate

TEMPLATE_WORKER = Path(__file__).with_name("template_worker.py")
TEMPLATE_START_S, RENDER_S = 20.0, 5.0
"""How long the process may take to start and compile the template, and to render one chat."""
LINE_READ_BYTES = 1 << 16


class TemplateRenderer:
    """Renders one template; calls from several threads take turns."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._cannot_start: str | None = None

    @property
    def source(self) -> str:
        """The template's text."""
        return self._template.source

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a chat, up to where the answer begins; ``InputError`` if the template does not give one."""
        variables = {
            **self._template.tokens,
            "messages": list(messages),
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        with self._lock:
            answer = self._ask(variables)
        if "refused" in answer:
            raise InputError(f"the model's chat template refuses them: {answer['refused']}")
        if "error" in answer:
            raise InputError(f"the model's chat template cannot be used: {answer['error']}")
        return answer["text"]

    def _ask(self, variables: dict[str, Any]) -> dict[str, str]:
        if self._worker is not None and self._worker.poll() is not None:
            self._worker = None  # it was ended from outside since the last chat
        if self._worker is None and (reason := self._start()) is not None:
            return {"error": reason}
        return self._exchange(variables, RENDER_S)

    def _start(self) -> str | None:
        """Start the process and give it the template; the reason if that fails, which it then always does."""
        if self._cannot_start is None:
            self._worker = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", str(TEMPLATE_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is the server's to handle
            )
            weakref.finalize(self, _end, self._worker, os.getpid())
            self._cannot_start = self._exchange(self._template.source, TEMPLATE_START_S).get("error")
            if self._cannot_start is not None and self._worker is not None:
                self._give_up(self._worker)
        return self._cannot_start

    def _exchange(self, message: object, seconds: float) -> dict[str, str]:
        """Send a line and wait for the answer; a process that does not answer is ended."""
        worker = self._worker
        assert worker is not None
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps(message).encode() + b"\n")
            worker.stdin.flush()
            answer: dict[str, str] = json.loads(_line(worker, time.monotonic() + seconds))
            return answer
        except TimeoutError:
            reason = f"takes longer than {seconds:g} s"
        except (OSError, EOFError):
            reason = "ends the process it runs in"
        self._give_up(worker)
        return {"error": reason}

    def _give_up(self, worker: subprocess.Popen[bytes]) -> None:
        _end(worker, os.getpid())
        self._worker = None


def _line(worker: subprocess.Popen[bytes], deadline_s: float) -> bytes:
    """What the process writes up to the end of a line; ``TimeoutError``, or ``EOFError`` if it ends before that."""
    assert worker.stdout is not None
    raw = bytearray()
    while not raw.endswith(b"\n"):
        ready, _, _ = select.select([worker.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise TimeoutError
        if not (part := os.read(worker.stdout.fileno(), LINE_READ_BYTES)):
            raise EOFError
        raw += part
    return bytes(raw)


def _end(worker: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a copy of this process, forked for something else
        return
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
