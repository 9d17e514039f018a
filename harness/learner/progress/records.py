"""The records of a history; one with an impossible value cannot be made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from harness.base.files import utc_text

STATUSES = ("running", "passed", "failed", "crashed", "timed_out", "aborted", "error")
OUTCOMES = ("passed", "failed", "skipped", "ambiguous", "not_graded")
RELATIONS = ("<=", ">=", "==")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """
    One thing that was judged.

    Attributes:
        outcome: One of `OUTCOMES`; any other is a ValueError.
        message: One line.
    """

    name: str
    outcome: str
    message: str = ""

    def __post_init__(self) -> None:
        _expect_one_of("outcome", self.outcome, OUTCOMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """
    A counter or a time, with the threshold it was held against, if any.

    Attributes:
        value: In `unit`, as is `limit`.
        relation: How a good value stands to the limit: one of `RELATIONS`, or a ValueError.
        detail: What JSON can hold.
    """

    name: str
    meter: str
    value: float
    unit: str = ""
    limit: float | None = None
    relation: str = "<="
    passed: bool | None = None
    detail: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _expect_one_of("relation", self.relation, RELATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """
    One run of one implementation of one kata.

    Attributes:
        id: Made at the start; the key under which histories merge.
        impl: "yours", "solution" or a path.
        code_hash: SHA-256 of the file that was judged.
        started_at: UTC, ISO 8601 with microseconds; so is `finished_at`, None while running.
        status: One of `STATUSES`; `reason` says it in words.
        versions: Package to version.
        hints_seen: What `Progress.hints_seen` was at the start; so with `solution_seen`.

    Raises:
        ValueError: The status is unknown, a time is no such text, or there is a time of finishing
            while running or none afterwards.
    """

    id: str
    kata: str
    impl: str
    code_hash: str
    started_at: str
    finished_at: str | None
    status: str
    reason: str
    seed: int
    device: str
    profile: str
    versions: Mapping[str, str]
    duration_s: float
    hints_seen: int
    solution_seen: bool
    checks: tuple[Check, ...]
    measurements: tuple[Measurement, ...]

    def __post_init__(self) -> None:
        _expect_one_of("status", self.status, STATUSES)
        _expect_utc("started_at", self.started_at)
        if self.finished_at is not None:
            _expect_utc("finished_at", self.finished_at)
        if (self.status == "running") != (self.finished_at is None):
            raise ValueError("finished_at: expected a time, and none only while running")


class Outline(NamedTuple):
    """
    An attempt without its checks and measurements: what a long history is read as.

    A tuple, since a hundred thousand of them are made at once. Fields are those of `Attempt`,
    besides:
        only_thresholds: Whether it failed, and only at thresholds. Told for katas that were never
            passed; False for others, where it would say nothing.
    """

    id: str
    kata: str
    started_at: str
    finished_at: str | None
    status: str
    device: str
    hints_seen: int
    solution_seen: bool
    only_thresholds: bool


@dataclass(frozen=True, slots=True)
class Best:
    """The best that a kata was timed at on a profile, in an attempt that passed."""

    kata: str
    profile: str
    name: str
    meter: str
    value: float
    limit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """
    Something besides attempts that happened, such as a hint shown.

    Attributes:
        id: Made when noted; the key under which histories merge.
        at: UTC, ISO 8601 with microseconds; anything else is a ValueError.
    """

    id: str
    at: str
    kind: str
    kata: str
    detail: str = ""

    def __post_init__(self) -> None:
        _expect_utc("at", self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """How many attempts an import added or completed, and how many were here already."""

    added: int
    already_there: int


def _expect_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, found {value!r}")


def _expect_utc(name: str, value: str) -> None:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None or utc_text(moment) != value:
        raise ValueError(
            f"{name}: expected UTC as in 2026-01-31T12:00:00.000000+00:00, found {value}"
        )
