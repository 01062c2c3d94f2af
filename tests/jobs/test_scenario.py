"""Scenario files: what they come to, and one clear line for everything that can be wrong with them."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from molt.core.events import TenantKind
from molt.core.ladder import Ladder
from molt.errors import InputError
from molt.jobs import scenario
from molt.jobs.scenario import PolicySpec, ResolvedScenario, Scenario, ScenarioDocument
from tests import small, strategies

SCENARIOS = Path(__file__).parents[2] / "scenarios"
POLICIES = ("always_small", "hold", "molt", "per_request", "restart")

DEMO = """\
name: demo
ladder: small
horizon: 60s
seed: 7
kill_after: 500ms
hardware: {slowdown: 20}
trace:
  steps:
    - at: 0s
      budget: 150% of tier0
    - at: 12s
      budget: 40MiB
policies: [hold, molt: {cooldown: 1s}]
tenants:
  - name: chat
    kind: foreground
    arrives: 0s
    prompt: {text: "Working with branches"}
    max_tokens: 20
"""


@dataclass(frozen=True)
class Spec:
    """As much of a ladder file as a scenario looks at."""

    ladder: Ladder
    tokenizer: Path


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    """The small ladder with a tokenizer of nearly one token a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([DEMO], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return Spec(small.LADDER, path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for scenario files, with a few prompts and traces, good and bad."""
    folder = tmp_path_factory.mktemp("scenarios")
    (folder / "prompt.txt").write_bytes("Grüße,\r\nan alle\r\n".encode())
    (folder / "blank.txt").write_bytes(b" \n")
    (folder / "latin1.txt").write_bytes("Grüße".encode("latin-1"))
    (folder / "long.txt").write_bytes(b"0 1 2 3 4 " * 300)
    (folder / "trace.csv").write_bytes(b"at,budget\n0s,1MiB\n30s,100% of tier1\n")
    (folder / "backwards.csv").write_bytes(b"at,budget\n0s,1MiB\n3s,2MiB\n2s,2MiB\n")
    return folder


def _load(folder: Path, text: str, name: str = "demo.yaml") -> Scenario:
    path = folder / name
    path.write_bytes(text.encode())
    return scenario.load(path)


def _changed(*changes: tuple[str, str]) -> str:
    text = DEMO
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


# --- what a scenario comes to ---


def test_a_scenario_comes_to_plain_values(folder: Path, spec: Spec) -> None:
    resolved = _load(folder, DEMO).resolve(spec, POLICIES)
    (chat,) = resolved.tenants
    assert dataclasses.replace(resolved, tenants=()) == ResolvedScenario(
        name="demo",
        ladder="small",
        seed=7,
        horizon_ns=60 * small.S,
        kill_after_ns=500 * small.MS,
        budgets=((0, 27 * small.MIB * 3 // 2), (12 * small.S, 40 * small.MIB)),
        tenants=(),
        policies=(PolicySpec("hold"), PolicySpec("molt", {"cooldown": "1s"})),
        profile="small",
        slowdown=20.0,
    )
    assert (chat.name, chat.kind, chat.arrives_ns) == ("chat", TenantKind.FOREGROUND, 0)
    assert chat.request.stop_at_eos
    assert (chat.request.max_tokens, chat.request.temperature, chat.request.top_p) == (20, 0.8, 0.95)
    decoded = Tokenizer.from_file(str(spec.tokenizer)).decode(list(chat.request.prompt_ids))
    assert decoded.replace(" ", "") == "WorkingĠwithĠbranches"


def test_what_may_be_left_out_has_a_default(folder: Path, spec: Spec) -> None:
    text = _changed(
        ("seed: 7\n", ""),
        ("kill_after: 500ms\n", ""),
        ("hardware: {slowdown: 20}\n", ""),
        ("policies: [hold, molt: {cooldown: 1s}]\n", ""),
    )
    resolved = _load(folder, text).resolve(spec, POLICIES)
    assert (resolved.seed, resolved.kill_after_ns, resolved.slowdown) == (0, 500 * small.MS, 1.0)
    assert [policy.name for policy in resolved.policies] == ["hold", "always_small", "restart", "molt"]


def test_paths_are_relative_to_the_scenario_and_names_stay_names(folder: Path, spec: Spec) -> None:
    text = _changed(
        ("ladder: small", "ladder: mine/ladder.yaml"), ("{slowdown: 20}", "{profile: laptop.json}")
    )
    loaded = _load(folder, text)
    assert loaded.ladder == str(folder / "mine/ladder.yaml")
    assert loaded.resolve(spec, POLICIES).profile == str(folder / "laptop.json")
    assert (
        _load(folder, _changed(("{slowdown: 20}", "{profile: laptop}"))).resolve(spec, POLICIES).profile
        == "laptop"
    )
    assert _load(folder, DEMO).ladder == "small"


def test_prompts_and_traces_may_be_files(folder: Path, spec: Spec) -> None:
    text = _changed(
        (DEMO[DEMO.index("trace:") : DEMO.index("policies:")], "trace: {file: trace.csv}\n"),
        ('{text: "Working with branches"}', "{file: prompt.txt}"),
    )
    loaded = _load(folder, text)
    assert loaded.prompts == ("Grüße,\nan alle",)
    tier1 = spec.ladder.rung("tier1").resident_bytes
    assert loaded.resolve(spec, POLICIES).budgets == ((0, small.MIB), (30 * small.S, tier1))


def test_the_command_line_may_overrule_seed_and_policies(folder: Path, spec: Spec) -> None:
    loaded = _load(folder, DEMO)
    overruled = loaded.resolve(spec, POLICIES, seed=8, policies=[PolicySpec("restart")])
    assert (overruled.seed, overruled.policies) == (8, (PolicySpec("restart"),))
    assert overruled.tenants[0].request.seed != loaded.resolve(spec, POLICIES).tenants[0].request.seed


def test_a_tenants_seed_depends_on_nobody_else() -> None:
    assert scenario.request_seed(7, "chat") == 8548464097633955428
    seeds = {scenario.request_seed(seed, name) for seed in (7, 8) for name in ("chat", "digest")}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_only_the_command_line_may_name_a_class(folder: Path, spec: Spec) -> None:
    mine = PolicySpec("my_package.mine:Mine")
    assert _load(folder, DEMO).resolve(spec, POLICIES, policies=[mine]).policies == (mine,)
    with pytest.raises(InputError, match="cannot choose code to run"):
        _load(folder, _changed(("[hold,", "[my_package.mine:Mine,"))).resolve(spec, POLICIES)


# --- what is wrong with a scenario ---

STEPS = DEMO[DEMO.index("  steps:") : DEMO.index("policies:")]
TENANTS = DEMO[DEMO.index("tenants:") :]
PROMPT = '{text: "Working with branches"}'

BROKEN = {
    # case: (what stands in the demo, what stands there instead, how the message goes on behind the file)
    "unknown key": ("seed: 7", "sede: 7", "line 4: sede: unknown key; did you mean 'seed'?"),
    "unknown key of a tenant": (
        "max_tokens",
        "maxtokens",
        "line 19: tenants[0].maxtokens: unknown key; did you mean 'max_tokens'?; 1 more wrong in this file",
    ),
    "unknown key of the hardware": (
        "slowdown",
        "slowdwon",
        "line 6: hardware.slowdwon: unknown key; did you mean 'slowdown'?",
    ),
    "duplicate key": ("seed: 7", "seed: 7\nseed: 8", "line 5: key 'seed' a second time (first on line 4)"),
    "missing key": ("ladder: small\n", "", "line 1: ladder: is missing"),
    "missing unit": ("60s", "60", "line 3: horizon: 60: a duration needs a unit, write for example 60s"),
    "leading zero": ("seed: 7", "seed: 012", "line 4: 012: a leading zero; write 12, or '012' if it is text"),
    "leading zero of a duration": ("60s", "012s", "line 3: horizon: '012s': write 12s"),
    "sexagesimal": ("60s", "1:30", "line 3: horizon: '1:30': a duration has no colon, write for example 90s"),
    "NO": (
        "kind: foreground",
        "kind: NO",
        "line 16: tenants[0].kind: 'NO' is not known; valid: foreground, batch",
    ),
    "NO number": ("seed: 7", "seed: NO", "line 4: seed: 'NO': "),
    "2G": ("40MiB", "2G", "line 12: trace.steps[1].budget: '2G': no unit 'G', write 2GiB or 2GB"),
    "thousands separator": (
        "40MiB",
        "1,024",
        "line 12: trace.steps[1].budget: '1,024': a size has no separators",
    ),
    "unit in the wrong case": (
        "40MiB",
        "40mb",
        "line 12: trace.steps[1].budget: '40mb': no unit 'mb', write 40MiB or 40MB",
    ),
    "NaN": ("slowdown: 20", "slowdown: .nan", "line 6: .nan is not a finite number"),
    "NaN as a word": ("slowdown: 20", "slowdown: nan", "line 6: hardware.slowdown: 'nan': "),
    "infinity": ("slowdown: 20", "slowdown: .inf", "line 6: .inf is not a finite number"),
    "number too large": ("slowdown: 20", "slowdown: 1e999", "line 6: 1e999 is not a finite number"),
    "no slowdown": ("slowdown: 20", "slowdown: 0", "line 6: hardware.slowdown: 0: "),
    "fraction of a token": ("max_tokens: 20", "max_tokens: 1.5", "line 19: tenants[0].max_tokens: 1.5: "),
    "number in quotes": ("max_tokens: 20", 'max_tokens: "20"', "line 19: tenants[0].max_tokens: '20': "),
    "truth for a number": ("seed: 7", "seed: true", "line 4: seed: True: "),
    "negative seed": ("seed: 7", "seed: -1", "line 4: seed: -1: "),
    "no horizon": ("60s", "0s", "line 3: horizon: '0s': must be longer than nothing"),
    "negative time": ("at: 12s", "at: -12s", "line 11: trace.steps[1].at: '-12s': a duration has no sign"),
    "equal times": ("at: 12s", "at: 0s", "trace.steps[1].at: 0s does not come after the step at 0s"),
    "unsorted times": (
        "at: 0s",
        "at: 0s\n      budget: 1MiB\n    - at: 20s",
        "trace.steps[2].at: 12s does not come after the step at 20s",
    ),
    "horizon before the trace": (
        "60s",
        "10s",
        "trace.steps[1].at: 12s: the horizon, 10s, comes before the end of the trace",
    ),
    "zero budget": ("40MiB", "0MiB", "line 12: trace.steps[1].budget: '0MiB': a budget is more than nothing"),
    "negative budget": ("40MiB", "-40MiB", "line 12: trace.steps[1].budget: '-40MiB': a size has no sign"),
    "negative budget on the ladder": (
        "40MiB",
        "10% of tier0 - 30MiB",
        "trace.steps[1].budget: '10% of tier0 - 30MiB' is -27.3MiB; a budget is more than nothing",
    ),
    "absent budget": (
        "at: 0s",
        "at: 1s",
        "trace.steps[0].at: absent budget before 1s; the first step is at 0s",
    ),
    "no steps": (STEPS, "  steps: []\n", "trace.steps: no steps; a trace begins with a step at 0s"),
    "no trace": (STEPS, "  {}\n", "line 7: trace: exactly one of steps or file, not none"),
    "two traces": (
        "  steps:",
        "  file: trace.csv\n  steps:",
        "line 7: trace: exactly one of steps or file, not steps and file",
    ),
    "trace file is missing": (
        STEPS,
        "  file: traces/none.csv\n",
        "trace.file: 'traces/none.csv': no such file ({folder}/traces/none.csv)",
    ),
    "trace file runs backwards": (
        STEPS,
        "  file: backwards.csv\n",
        "{folder}/backwards.csv: line 4: at: 2s does not come after the step at 3s",
    ),
    "budget of an unknown rung": (
        "150% of tier0",
        "150% of teir0",
        "trace.steps[0].budget: ladder small has no rung 'teir0'; did you mean 'tier0'?",
    ),
    "budget without a rung": (
        "150% of tier0",
        "150%",
        "line 10: trace.steps[0].budget: '150%': not a budget, write for example 150% of tier0",
    ),
    "no tenants": (TENANTS, "tenants: []\n", "line 14: tenants: none given; at least one is needed"),
    "two of a name": (
        TENANTS,
        TENANTS + TENANTS[TENANTS.index("  - name") :],
        "tenants[1].name: 'chat' a second time (first in tenants[0].name)",
    ),
    "name in capitals": ("name: chat", "name: Chat", "line 15: tenants[0].name: 'Chat': "),
    "unknown kind": (
        "kind: foreground",
        "kind: foregruond",
        "line 16: tenants[0].kind: 'foregruond' is not known; did you mean 'foreground'?",
    ),
    "arrival after the horizon": (
        "arrives: 0s",
        "arrives: 60s",
        "tenants[0].arrives: 60s: the horizon is 60s",
    ),
    "unknown policy": ("[hold,", "[hodl,", "policies[0]: 'hodl' is not known; did you mean 'hold'?"),
    "no policies": (
        "[hold, molt: {cooldown: 1s}]",
        "[]",
        "line 13: policies: none given; at least one is needed",
    ),
    "policy twice": ("[hold,", "[molt,", "policies[1]: 'molt' a second time (first in policies[0])"),
    "policy with a number": (
        "{cooldown: 1s}",
        "3",
        "line 13: policies[1]: a policy is a name, or one name with its parameters",
    ),
    "policies as text": ("[hold, molt: {cooldown: 1s}]", "hold", "line 13: policies: 'hold': "),
    "empty prompt": (PROMPT, '{text: " "}', "line 18: tenants[0].prompt.text: ' ': the prompt is empty"),
    "empty prompt file": (
        PROMPT,
        "{file: blank.txt}",
        "tenants[0].prompt.file: 'blank.txt': the prompt is empty",
    ),
    "no prompt": (PROMPT, "{}", "line 18: tenants[0].prompt: exactly one of text or file, not none"),
    "two prompts": (
        PROMPT,
        "{text: a, file: prompt.txt}",
        "line 18: tenants[0].prompt: exactly one of text or file, not text and file",
    ),
    "prompt as text": (
        PROMPT,
        "Working with branches",
        "line 18: tenants[0].prompt: 'Working with branches': ",
    ),
    "prompt file is missing": (
        PROMPT,
        "{file: none.txt}",
        "tenants[0].prompt.file: 'none.txt': no such file ({folder}/none.txt)",
    ),
    "prompt file is a folder": (
        PROMPT,
        "{file: .}",
        "tenants[0].prompt.file: '.': no such file ({folder})",
    ),
    "prompt file is not UTF-8": (
        PROMPT,
        "{file: latin1.txt}",
        "{folder}/latin1.txt: line 1: not UTF-8 (byte 0xfc)",
    ),
    "path that is none": (
        PROMPT,
        '{file: "a\\0b"}',
        "line 18: tenants[0].prompt.file: 'a\\x00b': a path has printable characters only",
    ),
    "prompt longer than the context": (
        PROMPT,
        "{file: long.txt}",
        "tenants[0].max_tokens: 20: with a prompt of 2700 tokens that is 2720, longer than the context",
    ),
    "answer longer than the context": (
        "max_tokens: 20",
        "max_tokens: 2040",
        "tenants[0].max_tokens: 2040: with a prompt of 16 tokens that is 2056, longer than the context",
    ),
    "no answer": ("max_tokens: 20", "max_tokens: 0", "line 19: tenants[0].max_tokens: 0: "),
    "too hot": (
        "max_tokens: 20",
        "max_tokens: 20\n    temperature: 2.5",
        "line 20: tenants[0].temperature: 2.5: ",
    ),
    "unknown end": (
        "max_tokens: 20",
        "max_tokens: 20\n    stop: nevr",
        "line 20: tenants[0].stop: 'nevr' is not known; did you mean 'never'?",
    ),
    "object of another language": (
        "demo",
        "!!python/object/apply:os.system [ls]",
        "line 1: tag tag:yaml.org,2002:python/object/apply:os.system: only plain values are read",
    ),
    "anchor": ("demo", "&a demo", "line 1: anchors"),
    "second document": ("tenants:", "---\ntenants:", "line 14: a second document"),
    "list": (DEMO, "[1, 2]", "line 1: [1, 2]: "),
    "nothing": (DEMO, "\n", "the file is empty"),
    "not YAML": ("demo", "demo: {", "line 1: not YAML: "),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_scenario_is_refused_in_one_line(case: str, folder: Path, spec: Spec) -> None:
    old, new, message = BROKEN[case]
    with pytest.raises(InputError) as caught:
        _load(folder, _changed((old, new))).resolve(spec, POLICIES)
    line = str(caught.value)
    expected = message.replace("{folder}", str(folder))
    assert line.startswith(
        expected if message.startswith("{folder}") else f"{folder / 'demo.yaml'}: {expected}"
    )
    assert line.isprintable()


def test_a_policy_of_the_command_line_is_not_blamed_on_the_file(folder: Path, spec: Spec) -> None:
    with pytest.raises(InputError) as caught:
        _load(folder, DEMO).resolve(spec, POLICIES, policies=[PolicySpec("hodl")])
    assert str(caught.value) == "policies[0]: 'hodl' is not known; did you mean 'hold'?"


def test_what_is_no_tokenizer_is_refused_in_one_line(folder: Path, spec: Spec) -> None:
    for path in (folder / "none.json", folder / "prompt.txt"):
        with pytest.raises(InputError) as caught:
            _load(folder, DEMO).resolve(dataclasses.replace(spec, tokenizer=path), POLICIES)
        assert str(caught.value).startswith(f"{path}: not a tokenizer: ")
        assert str(caught.value).isprintable()


# --- whatever comes ---


def _dumped(document: ScenarioDocument) -> str:
    """As YAML in block style, with text in quotes (what the library leaves unquoted is not always read back)."""
    sink = io.StringIO()
    YAML().dump(_quoted(document.model_dump(mode="json", exclude_none=True)), sink)
    return sink.getvalue()


def _quoted(value: object) -> object:
    match value:
        case str():
            return DoubleQuotedScalarString(value)
        case list():
            return [_quoted(item) for item in value]
        case dict():
            return {key: _quoted(item) for key, item in value.items()}
    return value


@settings(max_examples=50)
@given(strategies.scenario_documents())
def test_a_scenario_written_as_yaml_is_read_back(folder: Path, document: ScenarioDocument) -> None:
    assert _load(folder, _dumped(document), "drawn.yaml").document == document


@settings(max_examples=25)
@given(strategies.scenario_documents(), st.integers(0, 2**32))
def test_a_scenario_resolves_alike_every_time(
    folder: Path, spec: Spec, document: ScenarioDocument, seed: int
) -> None:
    loaded = _load(folder, _dumped(document), "drawn.yaml")
    try:
        first = loaded.resolve(spec, POLICIES, seed=seed)
    except InputError as error:
        assert "more than nothing" in str(error)  # noqa: PT017
        return
    assert first == loaded.resolve(spec, POLICIES, seed=seed)
    assert [tenant.name for tenant in first.tenants] == [tenant.name for tenant in document.tenants]
    assert [policy.name for policy in first.policies] == [policy.name for policy in document.policies]
    assert first.budgets[0][0] == 0
    assert all(budget_bytes > 0 for _, budget_bytes in first.budgets)


@settings(max_examples=60)
@given(
    st.binary(max_size=80) | strategies.damaged(DEMO).map(lambda text: text.encode(errors="surrogatepass"))
)
def test_any_file_is_a_scenario_or_refused_in_one_line(folder: Path, spec: Spec, content: bytes) -> None:
    path = folder / "any.yaml"
    path.write_bytes(content)
    try:
        scenario.load(path).resolve(spec, POLICIES)
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


# --- what ships ---


def test_the_schema_for_editors_is_the_one_of_the_code() -> None:
    shipped = (SCENARIOS / "scenario.schema.json").read_text(encoding="utf-8")
    assert shipped == json.dumps(scenario.json_schema(), indent=2) + "\n", "python -m molt.scenario writes it"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_scenario_suits_a_ladder_like_pico(path: Path) -> None:
    tokenizer = SCENARIOS.parent / "molt" / "models" / "pico" / "weights" / "tokenizer.json"
    loaded = scenario.load(path)
    resolved = loaded.resolve(Spec(small.LADDER, tokenizer), POLICIES)
    assert (resolved.name, loaded.ladder) == (path.stem, "pico")
    for tenant in resolved.tenants:
        assert len(tenant.request.prompt_ids) >= 300
        assert not tenant.request.stop_at_eos, "real and modelled engines are to agree token for token"


def test_the_shipped_files_are_all_of_use() -> None:
    paths = [path for path in SCENARIOS.rglob("*.yaml") if path.parent.name != "ladders"]
    named = set()
    for path in paths:
        document = scenario.load(path).document
        files = [tenant.prompt.file for tenant in document.tenants] + [document.trace.file]
        named |= {(path.parent / file).resolve().relative_to(SCENARIOS).as_posix() for file in files if file}
    present = {
        path.relative_to(SCENARIOS).as_posix()
        for folder in ("prompts", "traces")
        for path in (SCENARIOS / folder).iterdir()
        if path.name != "README.md"
    }
    assert named == present
