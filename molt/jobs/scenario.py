"""A scenario: one budget over time, the tenants that live under it, the policies to compare.

Rules of this module:

- ``load`` reads the YAML file and every prompt and trace it names, and checks whatever can be checked without
  a ladder. ``Scenario.resolve`` adds the ladder: budgets become bytes, prompts become tokens.
- What comes out is plain values, the same for every world; the files are not needed again.
- Whatever is wrong is one ``InputError`` of one line: file, place, value, and the nearest valid word.
- Paths in a scenario are relative to its file.

``python -m molt.scenario`` prints the JSON schema of scenario files, for editors.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from molt import units
from molt.core.engine_protocol import Request
from molt.core.events import TenantKind
from molt.core.ladder import Rung
from molt.errors import InputError
from molt.formats import yaml_file
from molt.formats.yaml_file import read_text
from molt.jobs.trace import Budget, BudgetStep, Trace, format_budget, parse_budget, read_csv, trace_of
from molt.models.ladder_file import LadderSpec
from molt.models.tokenizer_file import read_tokenizer, text_ids

POLICIES = ("hold", "always_small", "restart", "molt")
"""The policies of a scenario that names none."""

Items = TypeVar("Items", bound=tuple[object, ...])

NAME_CHARS_MAX = 64
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:Class
SEED_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy by name (or ``module:Class``), and its parameters as written; the policy checks those."""

    name: str
    params: Mapping[str, object] = field(default_factory=dict)


# --- what a scenario comes to ---


@dataclass(frozen=True, slots=True)
class ResolvedTenant:
    """One request for one answer, when it comes, and when its client goes away (``None``: never)."""

    name: str
    kind: TenantKind
    arrives_ns: int
    request: Request
    leaves_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ResolvedScenario:
    """Everything a world needs, in plain values.

    ``budgets`` are pairs of time (ns, from 0, strictly rising) and bytes (positive). ``profile`` is the name
    of a shipped profile or the path of a file; the simulated device is ``slowdown`` times slower than that.
    """

    name: str
    ladder: str
    seed: int
    horizon_ns: int
    kill_after_ns: int
    budgets: tuple[tuple[int, int], ...]
    tenants: tuple[ResolvedTenant, ...]
    policies: tuple[PolicySpec, ...]
    profile: str
    slowdown: float


# --- what a scenario file may hold ---


def _policy(value: object) -> PolicySpec:
    if isinstance(value, str):
        return PolicySpec(value)
    if isinstance(value, dict) and len(value) == 1:
        ((name, params),) = value.items()
        if isinstance(params, dict):
            return PolicySpec(name, params)
    raise InputError("a policy is a name, or one name with its parameters: {molt: {cooldown: 2s}}")


def _policy_document(policy: PolicySpec) -> object:
    return {policy.name: dict(policy.params)} if policy.params else policy.name


def _path_text(text: str) -> str:
    if not text.isprintable():
        raise InputError("a path has printable characters only")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise InputError("the prompt is empty")
    return text


def _not_empty(items: Items) -> Items:
    if not items:
        raise InputError("none given; at least one is needed")
    return items


def _positive(duration_ns: int) -> int:
    if duration_ns == 0:
        raise InputError("must be longer than nothing")
    return duration_ns


def _unit_schema(dimension: units.Dimension) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{units.pattern(dimension)}$"})


Duration = Annotated[
    int,
    PlainValidator(units.parse_duration),
    PlainSerializer(units.format_duration),
    _unit_schema(units.DURATION),
]
BudgetText = Annotated[
    Budget,
    PlainValidator(parse_budget),
    PlainSerializer(format_budget),
    WithJsonSchema({"type": "string", "description": "40MiB, 150% of tier0 or 100% of tier1 + 2MiB"}),
]
PolicyEntry = Annotated[
    PolicySpec,
    PlainValidator(_policy),
    PlainSerializer(_policy_document),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": {"type": "object"},
                },
            ]
        }
    ),
]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=NAME_CHARS_MAX)]
PathText = Annotated[str, Field(min_length=1), AfterValidator(_path_text)]


class OneOf(yaml_file.StrictModel):
    """A mapping with exactly one of its keys."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            keys = " or ".join(type(self).model_fields)
            raise InputError(f"exactly one of {keys}, not {' and '.join(given) or 'none'}")
        return self


class StepDocument(yaml_file.StrictModel):
    """A step of a trace."""

    at: Duration
    budget: BudgetText


class TraceDocument(OneOf):
    """The budget over time: steps, or a CSV file with the columns at,budget."""

    steps: tuple[StepDocument, ...] | None = None
    file: PathText | None = None


class PromptDocument(OneOf):
    """What a tenant asks: a text, or a file with it."""

    text: Annotated[str, AfterValidator(_not_blank)] | None = None
    file: PathText | None = None


class TenantDocument(yaml_file.StrictModel):
    """A client that wants one answer, and may go away before it is complete."""

    name: Name
    kind: TenantKind
    arrives: Duration
    leaves: Duration | None = None
    prompt: PromptDocument
    max_tokens: Annotated[int, Field(ge=1)]
    stop: Literal["eos", "never"] = "eos"
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95


class HardwareDocument(yaml_file.StrictModel):
    """The simulated device: a measured profile (a shipped one by name, or a file), made slower."""

    profile: PathText | None = None
    slowdown: Annotated[float, Field(gt=0, le=1e6)] = 1.0


class ScenarioDocument(yaml_file.StrictModel):
    """A Molt scenario."""

    name: Name
    ladder: PathText
    horizon: Annotated[Duration, AfterValidator(_positive)]
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] = 0
    kill_after: Duration = Field(default="500ms", validate_default=True)
    hardware: HardwareDocument = Field(default_factory=HardwareDocument)
    trace: TraceDocument
    policies: Annotated[tuple[PolicyEntry, ...], AfterValidator(_not_empty)] = Field(
        default=POLICIES, validate_default=True
    )
    tenants: Annotated[tuple[TenantDocument, ...], AfterValidator(_not_empty)]


def json_schema() -> dict[str, Any]:
    """The JSON schema of scenario files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ScenarioDocument.model_json_schema(),
    }


# --- reading ---


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario file that was read, with the texts of its prompts (one for each tenant) and its trace."""

    path: Path
    document: ScenarioDocument
    prompts: tuple[str, ...]
    trace: Trace

    @property
    def ladder(self) -> str:
        """The ladder that the file asks for: a name, or the path of a ladder file."""
        return _name_or_path(self.document.ladder, self.path)

    def resolve(
        self,
        spec: LadderSpec,
        known_policies: Iterable[str],
        *,
        seed: int | None = None,
        policies: Sequence[PolicySpec] | None = None,
    ) -> ResolvedScenario:
        """The scenario on a ladder; ``seed`` and ``policies`` take the place of those in the file.

        Raises ``InputError`` for an unknown policy, or a budget or prompt that does not suit the ladder.
        """
        document, ladder = self.document, spec.ladder
        chosen = document.policies if policies is None else tuple(policies)
        if policies is None:
            _check_no_code(chosen, f"{self.path}: policies")
        _check_policies(chosen, known_policies, f"{self.path}: policies" if policies is None else "policies")
        seed = document.seed if seed is None else seed
        return ResolvedScenario(
            name=document.name,
            ladder=ladder.name,
            seed=seed,
            horizon_ns=document.horizon,
            kill_after_ns=document.kill_after,
            budgets=self.trace.on(ladder),
            tenants=self._tenants(spec, seed),
            policies=chosen,
            profile=_name_or_path(document.hardware.profile or ladder.name, self.path),
            slowdown=document.hardware.slowdown,
        )

    def _tenants(self, spec: LadderSpec, seed: int) -> tuple[ResolvedTenant, ...]:
        tokenizer = read_tokenizer(spec.tokenizer)
        shortest = min(spec.ladder.rungs, key=lambda rung: rung.max_positions)
        tenants = []
        for index, (tenant, prompt) in enumerate(zip(self.document.tenants, self.prompts, strict=True)):
            prompt_ids = text_ids(tokenizer, prompt)
            _check_length(tenant, prompt_ids, shortest, f"{self.path}: tenants[{index}]")
            tenants.append(_resolved_tenant(tenant, prompt_ids, seed))
        return tuple(tenants)


def load(path: Path) -> Scenario:
    """The scenario in a YAML file, with the prompts and the trace it names; raises ``InputError``."""
    document = yaml_file.validate(ScenarioDocument, yaml_file.load(path), path)
    trace = _trace(document.trace, path)
    _check_times(document, trace, path)
    _check_unique([tenant.name for tenant in document.tenants], path, "tenants[{}].name")
    _check_unique([policy.name for policy in document.policies], path, "policies[{}]")
    prompts = tuple(
        _prompt(tenant.prompt, path, f"tenants[{index}].prompt")
        for index, tenant in enumerate(document.tenants)
    )
    return Scenario(path, document, prompts, trace)


def _trace(document: TraceDocument, path: Path) -> Trace:
    if document.file is not None:
        return read_csv(_existing(document.file, path, "trace.file"))
    steps = [
        BudgetStep(step.at, step.budget, f"{path}: trace.steps[{index}].")
        for index, step in enumerate(document.steps or ())
    ]
    return trace_of(steps, f"{path}: trace.steps: ")


def _prompt(document: PromptDocument, path: Path, place: str) -> str:
    """The text of a prompt. Of a file, one line end at its end does not count, and CRLF is LF."""
    if document.text is not None:
        return document.text
    assert document.file is not None, "a prompt has a text or a file"
    text = read_text(_existing(document.file, path, f"{place}.file"))
    if not text.strip():
        raise InputError(f"{path}: {place}.file: {yaml_file.show(document.file)}: the prompt is empty")
    return text.replace("\r\n", "\n").removesuffix("\n")


def _existing(name: str, path: Path, place: str) -> Path:
    """The file that a scenario names at ``place``."""
    file = path.parent / name
    if not file.is_file():
        raise InputError(f"{path}: {place}: {yaml_file.show(name)}: no such file ({file})")
    return file


def _name_or_path(value: str, path: Path) -> str:
    """A name as it is; what looks like a path, relative to the folder of the scenario ``path``."""
    is_path = "/" in value or Path(value).suffix in {".yaml", ".yml", ".json"}
    return str(path.parent / value) if is_path else value


# --- checking ---


def _check_times(document: ScenarioDocument, trace: Trace, path: Path) -> None:
    horizon = units.format_duration(document.horizon)
    last = trace.steps[-1]
    if last.at_ns > document.horizon:
        at = units.format_duration(last.at_ns)
        raise InputError(f"{last.where}at: {at}: the horizon, {horizon}, comes before the end of the trace")
    for index, tenant in enumerate(document.tenants):
        if tenant.arrives >= document.horizon:
            arrives = units.format_duration(tenant.arrives)
            raise InputError(f"{path}: tenants[{index}].arrives: {arrives}: the horizon is {horizon}")
        if tenant.leaves is not None and tenant.leaves <= tenant.arrives:
            leaves = units.format_duration(tenant.leaves)
            raise InputError(f"{path}: tenants[{index}].leaves: {leaves}: not after it arrives")


def _check_unique(names: Sequence[str], path: Path, place: str) -> None:
    """Refuse a name that was there before; ``place`` has ``{}`` for its index."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if first.setdefault(name, index) != index:
            where, before = place.format(index), place.format(first[name])
            raise InputError(f"{path}: {where}: {yaml_file.show(name)} a second time (first in {before})")


def _check_no_code(policies: Sequence[PolicySpec], where: str) -> None:
    """A scenario file may come from others: it names installed policies and never code to import."""
    for index, policy in enumerate(policies):
        if _CLASS.fullmatch(policy.name):
            raise InputError(
                f"{where}[{index}]: {yaml_file.show(policy.name)}: a file cannot choose code to run; "
                f"say --policy {policy.name} on the command line"
            )


def _check_policies(policies: Sequence[PolicySpec], known: Iterable[str], where: str) -> None:
    names = tuple(known)
    for index, policy in enumerate(policies):
        if policy.name not in names and not _CLASS.fullmatch(policy.name):
            raise InputError(
                f"{where}[{index}]: {yaml_file.show(policy.name)} is not known; "
                f"{yaml_file.nearest(policy.name, names)}"
            )


def _check_length(tenant: TenantDocument, prompt_ids: Sequence[int], rung: Rung, place: str) -> None:
    if not prompt_ids:
        raise InputError(f"{place}.prompt: comes to no tokens at all")
    tokens = len(prompt_ids) + tenant.max_tokens
    if tokens > rung.max_positions:
        raise InputError(
            f"{place}.max_tokens: {tenant.max_tokens}: with a prompt of {len(prompt_ids)} tokens that is "
            f"{tokens}, longer than the context of {rung.name}, {rung.max_positions} tokens"
        )


# --- resolving ---


def _resolved_tenant(tenant: TenantDocument, prompt_ids: tuple[int, ...], seed: int) -> ResolvedTenant:
    request = Request(
        prompt_ids=prompt_ids,
        max_tokens=tenant.max_tokens,
        stop_at_eos=tenant.stop == "eos",
        temperature=tenant.temperature,
        top_p=tenant.top_p,
        seed=request_seed(seed, tenant.name),
    )
    return ResolvedTenant(tenant.name, tenant.kind, tenant.arrives, request, tenant.leaves)


def request_seed(seed: int, tenant: str) -> int:
    """The seed (63 bits) of one tenant's sampling; other tenants have no influence on it."""
    digest = hashlib.sha256(f"{seed}/{tenant}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
