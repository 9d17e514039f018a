"""What a learner expects of a kernel before it is timed, compared with the roofline."""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.base.errors import HarnessError, UsageProblem
from harness.base.files import from_json
from harness.base.processes import run_group
from harness.content.kata import Kata
from harness.hardware.profiles import Cost, Profile, bound_by, speed_of_light
from harness.learner.progress import Note

LIMIT_S = 120.0
NEAR_INTENSITY = 1.25  # right within this factor
NEAR_TIME = 2.0
REMEMBERED = 10  # predictions that a track record is made of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The work that the threshold `name` is about, and what the roofline says of it."""

    name: str
    case: Mapping[str, Any]
    dtype: str
    cost: Cost
    profile: Profile

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.cost.intensity

    @property
    def bound(self) -> str:
        """What limits it: "memory" or "compute"."""
        found = bound_by(self.cost, self.dtype, self.profile)
        return "compute" if found in ("compute", "special") else "memory"

    @property
    def seconds(self) -> float:
        """At the speed of light."""
        return speed_of_light(self.cost, self.dtype, self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """FLOP per byte, "memory" or "compute", and seconds at the speed of light."""

    intensity: float
    bound: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """
    A prediction compared with the roofline, and which of the three were right.

    `measured` is the learner's best in seconds, which stands beside it; None before it was timed.
    """

    guess: Prediction
    truth: Prediction
    intensity_right: bool
    bound_right: bool
    time_right: bool
    measured: float | None

    @property
    def points(self) -> int:
        """0 to 3."""
        return self.intensity_right + self.bound_right + self.time_right

    @property
    def after(self) -> bool:
        """Whether it was made after the kata had been timed: then it foretells nothing."""
        return self.measured is not None

    @property
    def time_factor(self) -> float:
        """How many times too long or too short the time is; 1 is exact."""
        return max(self.guess.seconds / self.truth.seconds, self.truth.seconds / self.guess.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """How the last predictions went: of `count`, how many were right, and the usual factor."""

    count: int
    intensity_right: int
    bound_right: int
    time_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """
    A part of a prediction beside the roofline: "bytes", "shape", "result" or "test".

    `given` and `truth` are as they would be typed; `after` says that the kata was solved before.
    """

    part: str
    given: str
    truth: str
    right: bool
    after: bool


def parts_record(notes: Iterable[Note]) -> str:
    """What the last "foretold" notes before a first solve come to, in a line; "" without any."""
    found: dict[str, list[bool]] = {}
    for note in notes:
        if note.kind != "foretold":
            continue
        with suppress(ValueError):  # of another release, and kept for good
            one: Foretold = from_json(Foretold, json.loads(note.detail))
            if not one.after:
                found.setdefault(one.part, []).append(one.right)
    last = {part: rights[-REMEMBERED:] for part, rights in sorted(found.items())}
    told = ", ".join(f"{part} {sum(rights)} of {len(rights)}" for part, rights in last.items())
    return f"foretold right: {told}" if told else ""


def track_record(notes: Iterable[Note]) -> TrackRecord | None:
    """What "predicted" notes, oldest first, say of predictions before the first timing, if any."""
    found = list(_predictions(notes))[-REMEMBERED:]
    if not found:
        return None
    return TrackRecord(
        count=len(found),
        intensity_right=sum(one.intensity_right for one in found),
        bound_right=sum(one.bound_right for one in found),
        time_factor=median(one.time_factor for one in found),
    )


def _predictions(notes: Iterable[Note]) -> Iterator[Score]:
    for note in notes:
        if note.kind != "predicted":
            continue
        with suppress(ValueError):  # of another release, and kept for good
            score: Score = from_json(Score, json.loads(note.detail))
            if not score.after and 0 < score.guess.seconds < math.inf:
                yield score


def worksheet(kata: Kata, profile: Profile) -> Sheet:
    """
    What is to be estimated for `kata` on `profile`: its first threshold on the roofline.

    Raises:
        UsageProblem: the kata has none.
    """
    timed = next((one for one in kata.speed if one.kind == "roofline"), None)
    if timed is None:
        raise UsageProblem(
            f"predict: expected a kata that is compared with the roofline, found {kata.name}, "
            "which is not. `kata show NAME` lists the thresholds."
        )
    cost = _cost_of(kata, dict(timed.case))
    dtype = timed.dtype or str(timed.case.get("dtype", "float32"))
    return Sheet(name=timed.name, case=timed.case, dtype=dtype, cost=cost, profile=profile)


def score(guess: Prediction, sheet: Sheet, share: float | None = None) -> Score:
    """
    Hold a guess against the roofline, and beside the clock.

    Args:
        guess: The learner's.
        sheet: What was to be estimated.
        share: Of the speed of light, as measured on the same profile; None before that.
    """
    truth = Prediction(intensity=sheet.intensity, bound=sheet.bound, seconds=sheet.seconds)
    return Score(
        guess=guess,
        truth=truth,
        intensity_right=_near(guess.intensity, truth.intensity, NEAR_INTENSITY),
        bound_right=guess.bound == truth.bound,
        time_right=_near(guess.seconds, truth.seconds, NEAR_TIME),
        measured=None if share is None else truth.seconds / share,
    )


def _near(guess: float, truth: float, factor: float) -> bool:
    return truth / factor <= guess <= truth * factor


def _cost_of(kata: Kata, case: dict[str, Any]) -> Cost:
    """The oracle's cost of a case, asked in a process of its own: it needs the arrays' sizes."""
    command = [sys.executable, "-m", "harness.judge.worksheet", str(kata.folder), json.dumps(case)]
    exit_code, output = run_group(command, LIMIT_S, {}, cwd=kata.root)
    if exit_code != 0:
        raise HarnessError(f"predict: expected the cost of {kata.name}, found:\n{output}")
    found = json.loads(output.strip().splitlines()[-1])
    return Cost(**found)
