"""The bodies of the logs that the modelled engine writes: every shipped scenario under every installed policy.

``python -m tests.golden.bodies`` renews ``bodies.json``. Do so on purpose only: a digest that changed means that a
policy decided, or a world behaved, in another way than before. Ladders whose weights are not on this machine keep the
digests that they have.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from molt.core.engine_protocol import EngineKind
from molt.core.view import Policy
from molt.errors import NotFetchedError
from molt.formats.log import FILE_NAME
from molt.jobs.plugins import known_policies
from sim.run import prepare, simulate

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
RECORDED = Path(__file__).with_name("bodies.json")


def names() -> list[str]:
    """Shipped scenarios, as paths below ``scenarios/``."""
    files = (path.relative_to(SCENARIOS) for path in SCENARIOS.rglob("*.yaml"))
    return sorted(path.as_posix() for path in files if path.parts[0] != "ladders")


def digests(name: str) -> dict[str, str]:
    """The sha256 of the log of a scenario, by policy, without its first line: that names machine, versions and commit.

    ``NotFetchedError`` where the ladder is not on this machine.
    """
    job = prepare(SCENARIOS / name, policies=known_policies(), engine=EngineKind.MODELLED)
    with tempfile.TemporaryDirectory() as folder:
        simulate(job, Path(folder))
        return {policy.name: _body(Path(folder), policy) for _, policy in job.policies}


def _body(folder: Path, policy: Policy) -> str:
    _, body = (folder / policy.name / FILE_NAME).read_bytes().split(b"\n", 1)
    return hashlib.sha256(body).hexdigest()


def recorded() -> dict[str, dict[str, str]]:
    """The digests as they are kept, by scenario and policy."""
    found: dict[str, dict[str, str]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def renew() -> None:
    """Write the digests of today."""
    kept = recorded() if RECORDED.exists() else {}
    found = {}
    for name in names():
        try:
            found[name] = digests(name)
        except NotFetchedError as absent:
            print(f"{name}: kept as it was: {absent}", file=sys.stderr)
            if name in kept:
                found[name] = kept[name]
    RECORDED.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
