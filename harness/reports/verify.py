"""A scorecard held to its word: a sample of what it calls solved is judged again."""

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError, UsageProblem
from harness.base.files import sha256
from harness.content.catalog import Curriculum
from harness.content.kata import Kata
from harness.content.submission import resolve
from harness.learner.workspace import Workspace
from harness.reports.scorecard.plain import SCHEMA
from harness.running.runner import Outcome, run_kata

HELD, BROKEN, UNKNOWN = "held", "broken", "unknown"
Judge = Callable[..., Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    That a kata was solved: the code by its SHA-256, and what it was judged on.

    `seed` and `drawn`, the number of cases drawn besides those listed, tell its inputs.
    """

    kata: str
    code_hash: str
    device: str
    seed: int
    drawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim: "held", "broken" or "unknown", and why."""

    kata: str
    verdict: str
    why: str


def claims_of(path: Path) -> list[Claim]:
    """
    What the scorecard at `path` (JSON) calls solved.

    Raises:
        UsageProblem: it is no scorecard, or of another schema.
    """
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        schema = card["schema"]
        claims = [_claim(kata) for kata in card["katas"] if kata["evidence"] is not None]
    except (OSError, RecursionError, ValueError, KeyError, TypeError) as error:
        raise UsageProblem(
            f"{path}: expected a scorecard as JSON, found {type(error).__name__}: {error}. "
            "Make one: kata scorecard --format json -o FILE"
        ) from None
    if schema != SCHEMA:
        raise UsageProblem(
            f"{path}: expected schema {SCHEMA}, found {schema}. Update the older of the two."
        )
    return claims


def _claim(kata: dict[str, Any]) -> Claim:
    evidence = kata["evidence"]
    return Claim(
        kata=str(kata["name"]),
        code_hash=str(evidence["code_hash"]),
        device=str(evidence["device"]),
        seed=int(evidence["seed"]),
        drawn=int(evidence["drawn"]),
    )


def verify(
    claims: Sequence[Claim],
    curriculum: Curriculum,
    workspace: Workspace,
    *,
    devices: Sequence[str],
    sample: int,
    seed: int,
    judge: Judge = run_kata,
) -> list[Finding]:
    """
    Judge a sample of claims again: the same code, found by its hash, on the same inputs.

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
    claim: Claim,
    curriculum: Curriculum,
    workspace: Workspace,
    devices: Sequence[str],
    judge: Judge,
) -> Finding:
    def finding(verdict: str, why: str) -> Finding:
        return Finding(kata=claim.kata, verdict=verdict, why=why)

    kata: Kata | None = curriculum.katas.get(claim.kata)
    if kata is None:
        return finding(UNKNOWN, "there is no such kata here")
    if claim.device not in devices:
        return finding(UNKNOWN, f"no {claim.device} device here")
    if kata.solution.is_file() and claim.code_hash == sha256(kata.solution):
        return finding(BROKEN, "the code is the reference")
    # a whole hash: any copy would answer to the start of one
    if claim.code_hash not in {entry.sha256 for entry in workspace.versions(claim.kata)}:
        return finding(UNKNOWN, f"the code {claim.code_hash[:12]} is not kept here")
    try:
        code = workspace.read(claim.code_hash)
    except HarnessError as error:
        return finding(UNKNOWN, error.message)
    with tempfile.TemporaryDirectory(prefix="kata-verify-") as folder:
        file = Path(folder) / f"{claim.kata}.py"
        file.write_bytes(code)
        outcome = judge(
            resolve(kata, str(file), Path(folder)),
            device=claim.device,
            seed=claim.seed,
            extra=[f"--vary={claim.drawn}"],
        )
    return finding(HELD if outcome.status == "passed" else BROKEN, outcome.reason)
