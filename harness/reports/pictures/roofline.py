"""
Katas on the roofline of a device: what was measured there, and what was only counted.

A measured entry stands at the work and the least traffic of its case, and at the time it took. A
counted one has the traffic that its kernels were seen to make, and no time.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError, UsageProblem
from harness.base.processes import run_group
from harness.content.kata import Case, Kata
from harness.content.pristine import pristine_stub
from harness.content.submission import NAIVE
from harness.hardware.profiles import Cost, Profile, speed_of_light
from harness.learner.progress import Best
from harness.reports.ladder import Rung
from harness.reports.measured import has_naive

LIMIT_S = 300.0
REFERENCE, YOURS, SLOW = "reference", "yours", "naive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    One implementation of a kata on one case.

    Attributes:
        impl: "reference", "yours", "naive", or the baseline that a threshold names.
        cost: FLOPs of the case; bytes: the least possible where there is a time, else counted.
        least: The bytes that would do.
        dtype: Whose peak counts.
        seconds: What it took on the profile; None where nothing was timed.
        share: Of the speed of light.
        source: Where the figures come from.
    """

    kata: str
    impl: str
    case: str
    dtype: str
    cost: Cost
    least: float
    seconds: float | None
    share: float | None
    source: str

    @property
    def flops_per_s(self) -> float:
        """Work done in a second; NaN where nothing was timed."""
        return self.cost.flops / self.seconds if self.seconds else math.nan

    @property
    def bytes_per_s(self) -> float:
        """Least traffic in a second; NaN where nothing was timed."""
        return self.cost.bytes / self.seconds if self.seconds else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A threshold's value and the median time of the implementation; NaN where it is not kept."""

    value: float
    median_s: float
    source: str


Timings = Mapping[tuple[str, str], Timing]  # by implementation and threshold


def reference_timings(
    results: Iterable[Mapping[str, Any]], kata: Kata, profile: Profile
) -> dict[tuple[str, str], Timing]:
    """What results on real devices, oldest first, say of `kata` on `profile`; the newest counts."""
    found: dict[tuple[str, str], Timing] = {}
    for one in results:
        judged = one["katas"].get(kata.id) if one["profile"] == profile.id else None
        if judged is None or one["impl"] != "solution":
            continue
        for impl, part in ((REFERENCE, judged), (SLOW, judged.get(NAIVE))):
            for value in part["measurements"] if part else ():
                if value["meter"] in ("roofline", "baseline"):
                    found[impl, value["name"]] = Timing(
                        value=value["value"],
                        median_s=value["detail"]["median"],
                        source=f"measured {one['date'][:10]}",
                    )
    return found


def own_timings(
    best: Iterable[Best], kata: Kata, profile: Profile
) -> dict[tuple[str, str], Timing]:
    """The learner's best on `profile`."""
    return {
        (YOURS, one.name): Timing(value=one.value, median_s=math.nan, source="your best")
        for one in best
        if (one.kata, one.profile, one.meter) == (kata.name, profile.id, "roofline")
    }


def timed_entries(kata: Kata, profile: Profile, timings: Timings) -> list[Entry]:
    """
    What was timed of `kata` on `profile`, threshold by threshold.

    A ratio to a baseline gives two times, for both were measured side by side. Where a case has
    a threshold on the roofline as well, the implementation's time is the one taken there.
    """
    limits = {one.name: one for one in kata.speed}
    held = [(key, timing) for key, timing in timings.items() if key[1] in limits]
    known = dict(sorted(held, key=lambda one: limits[one[0][1]].kind != "roofline"))
    cases = {name: limits[name].case for _, name in known}
    costs = dict(zip(cases, costs_of(kata, list(cases.values())), strict=True))
    entries: dict[tuple[str, str], Entry] = {}
    for (impl, name), timing in known.items():
        limit, cost = limits[name], costs[name]
        dtype = limit.dtype or _rate(kata, limit.case)
        ideal_s = speed_of_light(cost, dtype, profile)
        times = {impl: ideal_s / timing.value}
        if limit.kind == "baseline":
            times = {impl: timing.median_s, str(limit.against): timing.median_s * timing.value}
        for who, seconds in times.items():
            entry = Entry(
                kata=kata.name,
                impl=who,
                case=words(limit.case),
                dtype=dtype,
                cost=cost,
                least=cost.bytes,
                seconds=seconds,
                share=ideal_s / seconds,
                source=timing.source,
            )
            entries.setdefault((who, entry.case), entry)
    return list(entries.values())


def wants_counting(kata: Kata, timed: Sequence[Entry]) -> bool:
    """Whether there is a version of `kata` that has no time, and whose traffic can be counted."""
    if _counted_threshold(kata) is None:
        return False
    there = {REFERENCE}
    there |= {YOURS} if is_written(kata) else set()
    there |= {SLOW} if has_naive(kata) else set()
    return not there <= {one.impl for one in timed}


def is_written(kata: Kata) -> bool:
    """Whether the learner's file is more than the stub."""
    return kata.file.is_file() and kata.file.read_bytes() != pristine_stub(kata)


def counted_entries(kata: Kata, rungs: Iterable[Rung], timed: Sequence[Entry]) -> list[Entry]:
    """Versions without a time, at the bytes that a session on the simulators counted."""
    threshold = _counted_threshold(kata)
    assert threshold is not None
    name, case = threshold
    (cost,) = costs_of(kata, [case])
    has_time = {one.impl for one in timed}
    names = {"solution": REFERENCE, "naive": SLOW}
    return [
        Entry(
            kata=kata.name,
            impl=names.get(rung.name, rung.name),
            case=words(case),
            dtype=_rate(kata, case),
            cost=Cost(flops=cost.flops, bytes=rung.values[name], special=cost.special),
            least=cost.bytes,
            seconds=None,
            share=None,
            source="counted, not timed",
        )
        for rung in rungs
        if rung.values.get(name) and names.get(rung.name, rung.name) not in has_time
    ]


def _rate(kata: Kata, case: Case) -> str:
    """The dtype at whose rate `case` computes: that of a threshold by the clock, if it has one."""
    named = next((one.dtype for one in kata.speed if one.dtype), None)
    return named or str(case.get("dtype", "float32"))


def _counted_threshold(kata: Kata) -> tuple[str, Case] | None:
    """The first threshold on bytes moved whose case is known, and that case."""
    return next(
        ((one.name, one.case) for one in kata.cost if one.meter == "bytes_moved" and one.case),
        None,
    )


def words(case: Case) -> str:
    """A case in a line."""
    return ", ".join(f"{name} = {value}" for name, value in case.items())


def check_drawable(kata: Kata) -> None:
    """
    Refuse a kata that has no place on a roofline.

    Raises:
        UsageProblem: none of its thresholds is on the clock or on bytes moved.
    """
    if not kata.speed and _counted_threshold(kata) is None:
        raise UsageProblem(
            f"roofline: expected a kata that is timed, or whose bytes are counted, found "
            f"{kata.name}, which is neither. `kata show NAME` lists the thresholds."
        )


def costs_of(kata: Kata, cases: Sequence[Case]) -> list[Cost]:
    """The oracle's costs, asked in a process of its own: they need the arrays' sizes."""
    if not cases:
        return []
    plain = json.dumps([dict(case) for case in cases])
    command = [sys.executable, "-m", "harness.reports.pictures.roofline", str(kata.folder), plain]
    exit_code, output = run_group(command, LIMIT_S, {}, cwd=kata.root)
    if exit_code != 0:
        raise HarnessError(f"roofline: expected the cost of {kata.name}, found:\n{output}")
    return [Cost(**one) for one in json.loads(output.strip().splitlines()[-1])]


def _answer(folder: str, cases: str) -> str:
    from harness.judge.worksheet import cost_of

    return json.dumps([asdict(cost_of(Path(folder), case)) for case in json.loads(cases)])


if __name__ == "__main__":
    print(_answer(*sys.argv[1:]))  # noqa: T201
