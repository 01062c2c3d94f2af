"""The model's own chat template behind the API: its answer, or one clear line with a 400; and a damaged tokenizer."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from molt.models.chat_template import ChatTemplate, find_chat_template
from molt.models.ladder_file import resolve
from molt.models.pico import WEIGHTS
from molt.paths import IMPORT_ROOT
from molt.server import command as server_command
from molt.server import templates
from molt.server.prompts import SYSTEM, Prompter
from tests.server.local import is_healthy, running
from tests.server.process import command
from tests.server.test_prompts import CHAT, here

ASK = {"model": "pico", "max_tokens": 1, "messages": [{"role": "user", "content": "To create a branch"}]}


@pytest.mark.parametrize(
    ("template", "status", "says"),
    [
        ("{{ messages[0].content }} and {{ bos_token }}", 200, ""),
        ("{{ raise_exception('only one\nquestion') }}", 400, "chat template refuses them: only one question"),
        ("{{ messages[1].content.x }}", 400, "chat template cannot be used: UndefinedError"),
        ("{{ messages.pop() }}", 400, "chat template cannot be used: SecurityError"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            400,
            "takes longer than",
        ),
        ("{{ messages[0].content * 3000 }}", 400, "a prompt may have at most 2047"),
        ("", 400, "has no tokens"),
    ],
)
def test_a_chat_by_the_models_template(
    template: str, status: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "RENDER_S", 0.5)
    its_own = ChatTemplate(template, {"bos_token": "<|endoftext|>"})
    monkeypatch.setattr(server_command, "find_chat_template", lambda folder, tokenizer: its_own)
    with running() as local, local.client() as client:
        assert client.get("/props").json()["chat_format"] == "template"
        answer = client.post("/v1/chat/completions", json=ASK)
        assert answer.status_code == status
        if status == 200:
            library = Tokenizer.from_file(str(resolve("pico").tokenizer))
            wanted = library.encode("To create a branch and <|endoftext|>").ids
            assert answer.json()["usage"]["prompt_tokens"] == len(wanted)
        else:
            error = answer.json()["error"]
            assert error["param"] == "messages"
            assert error["message"].startswith("messages: ")
            assert says in error["message"]
            assert "\n" not in error["message"]
        assert is_healthy(local.url)


@pytest.mark.parametrize("name", ["qwen2.5-coder", "smollm2-135m"])
@pytest.mark.parametrize("system", [[("system", "Answer in verse.")], []])
def test_a_system_turn_is_the_templates_own(name: str, system: list[tuple[str, str]]) -> None:
    """Where the chat has none, the model's template decides whether there is one, and what it says."""
    spec = here(name)
    folder = spec.rungs[0].folder
    template = find_chat_template(folder, spec.tokenizer)
    if template is None:
        pytest.skip(f"{folder} has no chat template")
    ours = Prompter(spec.tokenizer, 4096, template)
    text = Tokenizer.from_file(str(spec.tokenizer)).decode(
        list(ours.chat([*system, *CHAT])), skip_special_tokens=False
    )
    assert f"system\n{SYSTEM}" not in text
    assert ("Answer in verse." in text) == bool(system)
    begin, *_ = text.split("<|im_end|>")
    assert begin.startswith("<|im_start|>system\n")
    assert begin.removeprefix("<|im_start|>system\n") in template.source + "Answer in verse."


def test_a_damaged_tokenizer_ends_a_server_in_one_line(tmp_path: Path) -> None:
    """An entry renamed: merges then name what is not there."""
    for name in ("tier0", "tier1"):
        shutil.copytree(WEIGHTS / name, tmp_path / "weights" / name)
    content = json.loads((WEIGHTS / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    vocab["renamed"] = vocab.pop("".join(content["model"]["merges"][0]))
    (tmp_path / "weights/tokenizer.json").write_text(json.dumps(content))
    shipped = (IMPORT_ROOT / "scenarios/ladders/pico.yaml").read_text()
    ladder = tmp_path / "mine.yaml"
    own = shipped.replace("package: molt.models.pico, path: weights", "folder: weights").split("maps:")[0]
    ladder.write_text(own)
    options = ("--ladder", str(ladder), "--profile", "pico", "--port", "0", "--log", str(tmp_path / "log"))
    done = subprocess.run(command(*options), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "tokenizer.json: not a tokenizer: " in " ".join(done.stderr.split())
