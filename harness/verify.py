"""A scorecard held to its word: a sample of what it calls solved is judged again."""

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.catalog import Curriculum
from harness.errors import HarnessError, UsageProblem
from harness.kata import Kata
from harness.runner import Outcome, run_kata
from harness.workspace import Workspace

SCHEMA = 1
HELD, BROKEN, UNKNOWN = "held", "broken", "unknown"
Judge = Callable[..., Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim: "held", "broken" or "unknown", and why."""

    kata: str
    verdict: str
    why: str


def claims_of(path: Path) -> list[dict[str, Any]]:
    """
    The katas that the scorecard at `path` (JSON) calls solved, with their evidence.

    Raises:
        UsageProblem: it is no scorecard, or of another schema.
    """
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        schema, katas = card["schema"], card["katas"]
        claims = [kata for kata in katas if kata["evidence"] is not None]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise UsageProblem(
            f"{path}: expected a scorecard as JSON, found {type(error).__name__}: {error}. "
            "Make one: kata scorecard --format json -o FILE"
        ) from None
    if schema != SCHEMA:
        raise UsageProblem(f"{path}: expected schema {SCHEMA}, found {schema}. Update one of both.")
    return claims


def verify(
    claims: Sequence[dict[str, Any]],
    curriculum: Curriculum,
    workspace: Workspace,
    *,
    devices: Sequence[str],
    sample: int,
    seed: int,
    judge: Judge = run_kata,
) -> list[Finding]:
    """
    Judge a sample of claims again: the same code, found by its hash, on the same seed.

    Args:
        claims: What `claims_of` found.
        curriculum: The katas.
        workspace: Where the code may be kept.
        devices: "cpu" and "cuda", as far as this machine has them.
        sample: How many; fewer claims are judged all.
        seed: Which.
        judge: What judges; a stand-in in tests.
    """
    draw = random.Random(seed)
    chosen = draw.sample(list(claims), min(sample, len(claims)))
    return [_verified(claim, curriculum, workspace, devices, judge) for claim in chosen]


def _verified(
    claim: dict[str, Any],
    curriculum: Curriculum,
    workspace: Workspace,
    devices: Sequence[str],
    judge: Judge,
) -> Finding:
    name, evidence = str(claim["name"]), claim["evidence"]
    kata: Kata | None = curriculum.katas.get(name)
    if kata is None:
        return Finding(kata=name, verdict=UNKNOWN, why="there is no such kata here")
    if evidence["device"] not in devices:
        return Finding(kata=name, verdict=UNKNOWN, why=f"no {evidence['device']} device here")
    try:
        code = workspace.read(evidence["code_hash"])
    except HarnessError:
        short = evidence["code_hash"][:12]
        return Finding(kata=name, verdict=UNKNOWN, why=f"the code {short} is not kept here")
    with tempfile.TemporaryDirectory(prefix="kata-verify-") as folder:
        file = Path(folder) / f"{name}.py"
        file.write_bytes(code)
        outcome = judge(kata, impl=str(file), device=evidence["device"], seed=evidence["seed"])
    held = outcome.status == "passed"
    return Finding(kata=name, verdict=HELD if held else BROKEN, why=outcome.reason)
