"""
Results on real devices: made by one command, kept as JSON, held against the thresholds.

The reference has to clear each threshold with room to spare, the naive version of a kata, where
there is one among its wrong solutions, has to miss it.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError
from harness.base.files import write_atomically
from harness.base.schema import read_toml
from harness.content.course import part_of
from harness.content.kata import Kata
from harness.content.reached import ON_THE_CLOCK
from harness.content.submission import NAIVE, resolve
from harness.hardware.bridges import bridges
from harness.hardware.environment import cache_folder, first_gpu_uuid
from harness.hardware.packages import altered, installed, unmet_requirements
from harness.hardware.profiles import find_profile
from harness.judge.timing.device_state import READ_LIMIT_S
from harness.learner.progress import Check, Measurement
from harness.running.runner import Outcome, run_kata

SCHEMA = 1
MARGIN = 1.05  # by how much the reference has to clear a threshold
QUANTILES = ("p10", "median", "p90")
HOST = ("host_s", "baseline_host_s")


def measure(
    katas: Iterable[Kata],
    impl: str = "solution",
    *,
    naive: bool = False,
    keep: Callable[[str, dict[str, Any]], None] = lambda kata, results: None,
) -> dict[str, Any]:
    """
    Judge `impl` of every kata on this machine's GPU; with `naive` time its naive version as well.

    Args:
        katas: What is judged, one after the other.
        impl: Which of its implementations.
        naive: Whether wrong solutions called naive are held against the thresholds on the clock.
        keep: Called after each kata with its id and all results so far.

    Returns:
        Device, driver, versions, date, what was installed and what was done to it, and for
        each kata its status, its failed checks and every threshold on the clock with the samples'
        quantiles. Those of the naive version are under "wrong:naive".

    Raises:
        HarnessError: What is installed is not what the project allows: that was not measured.
    """
    _refuse_other_packages()
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "impl": impl,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": query_device(),
        "installed": installed(),
        "bridged": bridges(),
        "altered": altered(),
        "katas": {},
    }
    for kata in katas:
        outcome = run_kata(resolve(kata, impl, cache_folder()), device="cuda")
        results["profile"] = outcome.profile or results.get("profile", "")
        results["versions"] = outcome.versions or results.get("versions", {})
        results["katas"][kata.id] = as_result(outcome)
        if naive and has_naive(kata):
            # it is right, and slow at all that is not timed, too
            slow = run_kata(
                resolve(kata, NAIVE, cache_folder()), device="cuda", extra=["-k", "test_speed"]
            )
            results["katas"][kata.id][NAIVE] = as_result(slow)
        keep(kata.id, results)
    return results


def _refuse_other_packages() -> None:
    unmet = "; ".join(f"{name}: {told}" for name, told in unmet_requirements().items())
    if unmet:
        raise HarnessError(
            f"measure: expected the packages that pyproject.toml allows, found others: {unmet}. "
            "Install what was tested together: pip install -c constraints.txt -e ."
        )


def has_naive(kata: Kata) -> bool:
    """Whether a wrong solution of `kata` is called naive: a file, or an edit of the reference."""
    edits = kata.wrong / "edits.toml"
    return (kata.wrong / "naive.py").is_file() or (edits.is_file() and "naive" in read_toml(edits))


def as_result(outcome: Outcome) -> dict[str, Any]:
    """One kata's outcome as plain data."""
    return {
        "status": outcome.status,
        "reason": outcome.reason,
        "seed": outcome.seed,
        "duration_s": round(outcome.duration_s, 1),
        "passed": sum(check.outcome == "passed" for check in outcome.checks),
        "not_passed": [_not_passed(check) for check in outcome.checks if check.outcome != "passed"],
        "measurements": [_plain(found) for found in outcome.measurements],
        "output": "" if outcome.checks else outcome.output[-2000:],
    }


def _not_passed(check: Check) -> dict[str, str]:
    return {"name": check.name, "outcome": check.outcome, "message": check.message}


def _plain(found: Measurement) -> dict[str, Any]:
    plain = asdict(found)
    plain["detail"] = dict(found.detail)
    return plain


def query_device() -> dict[str, str]:
    """Name and driver of the NVIDIA device that is timed; empty where that is not known."""
    fields = ("name", "driver_version")
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i"]
    try:
        shown = subprocess.run(
            [*command, first_gpu_uuid()],
            capture_output=True,
            text=True,
            check=True,
            timeout=READ_LIMIT_S,
        ).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(fields, (part.strip() for part in shown.split(",")), strict=True))


def save(results: dict[str, Any], path: Path) -> None:
    """Write results where `load_results` finds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())


def kept_results(root: Path) -> list[dict[str, Any]]:
    """The results that the project at `root` ships, oldest first."""
    return load_results(part_of(root, "hardware_profiles/measured"))


def load_results(folder: Path) -> list[dict[str, Any]]:
    """Every file of results under `folder`, oldest first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(found, key=lambda results: str(results["date"]))


def rows(results: Sequence[dict[str, Any]], katas: Mapping[str, Kata]) -> list[dict[str, Any]]:
    """
    One row for each threshold measured on each device, oldest first, for a table.

    Of the same thing measured more than once only the newest is "latest". Its "limit" is that of
    `katas` (by id) as they are now, and its "problem" says why it does not hold; "" where it does.
    """
    found = [row for one in results for row in _rows_of(one)]
    latest = {_measured_thing(row): row for row in found}
    for row in found:
        row["latest"] = latest[_measured_thing(row)] is row
        row["problem"] = ""
        if row["latest"]:
            limit = _limit_now(row, katas.get(row["kata"]))
            row["problem"] = _problem(row, limit)
            row["limit"] = row["limit"] if limit is None else limit
    return found


def reached_on(
    results: Sequence[dict[str, Any]], kata: Kata, profile: str | None = None
) -> tuple[str, dict[str, dict[str, float]]]:
    """
    What the reference and the naive version of `kata` reached at its thresholds on the clock.

    Args:
        results: Of references on real devices, oldest first.
        kata: Whose thresholds.
        profile: On which profile; None stands for the newest of those with the most figures.

    Returns:
        The profile, "" where nobody measured, and by threshold "reference" and "naive".
    """
    found = [
        row
        for one in results
        for row in _rows_of(one)
        if row["kata"] == kata.id and row["impl"] in ("solution", NAIVE)
    ]
    if not found:
        return "", {}
    figures: dict[str, set[tuple[str, str]]] = {}
    for row in reversed(found):
        figures.setdefault(row["profile"], set()).add((row["threshold"], row["impl"]))
    chosen = profile or max(figures, key=lambda one: len(figures[one]))
    if chosen not in figures:
        return "", {}
    reached: dict[str, dict[str, float]] = {}
    for row in sorted(found, key=lambda row: row["impl"] != "solution"):
        if row["profile"] == chosen:
            impl = "reference" if row["impl"] == "solution" else "naive"
            reached.setdefault(row["threshold"], {})[impl] = row["value"]
    return str(chosen), reached


def machines(results: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the rows `found` of `results` come from: date, device, driver, clock, versions."""
    dates = {row["measured_at"] for row in found}
    return [
        f"{one['date'][:16]} {one['profile']}: {one['device'].get('name', 'unknown device')}, "
        f"driver {one['device'].get('driver_version', '?')}, {_clock_words(one)}, "
        + ", ".join(f"{name} {one['versions'][name]}" for name in sorted(one["versions"]))
        for one in results
        if one["date"] in dates
    ]


def _clock_words(results: Mapping[str, Any]) -> str:
    """The SM clocks that the device had while it was timed."""
    measured = [found for one in results["katas"].values() for found in one["measurements"]]
    details = [found["detail"] for found in measured]
    clocks_hz = [detail["sm_clock_hz"] for detail in details if "sm_clock_hz" in detail]
    if not clocks_hz:
        return "SM clock unknown"
    low, high = (f"{clock_hz / 1e6:.0f}" for clock_hz in (min(clocks_hz), max(clocks_hz)))
    return f"SM {low} MHz" if low == high else f"SM {low} to {high} MHz"


def never_timed(found: Iterable[Mapping[str, Any]], katas: Mapping[str, Kata]) -> list[str]:
    """Katas with a threshold on the clock whose reference or naive version no device has timed."""
    timed = {(row["kata"], row["impl"]) for row in found}
    missing = []
    for name, kata in katas.items():
        impls = ["solution", *([NAIVE] if has_naive(kata) else [])]
        if any(one.on != "any" for one in kata.speed):
            missing += [f"{name} {impl}" for impl in impls if (name, impl) not in timed]
    return missing


def _rows_of(results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kata, result in results["katas"].items():
        for impl, judged in ((results["impl"], result), (NAIVE, result.get(NAIVE))):
            for found in judged["measurements"] if judged else ():
                if found["meter"] in ON_THE_CLOCK:
                    yield _row(results, kata, impl, found)


def _row(
    results: Mapping[str, Any], kata: str, impl: str, found: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "kata": kata,
        "profile": results["profile"],
        "date": results["date"][:10],
        "measured_at": results["date"],
        "impl": impl,
        "threshold": found["name"],
        "value": found["value"],
        "limit": found["limit"],
        "times_us": [found["detail"][name] * 1e6 for name in QUANTILES if name in found["detail"]],
        "host_us": [found["detail"][name] * 1e6 for name in HOST if name in found["detail"]],
        "outcome": found["detail"]["outcome"],
    }


def _measured_thing(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["kata"], row["profile"], row["impl"], row["threshold"]


def _limit_now(row: Mapping[str, Any], kata: Kata | None) -> float | None:
    """What kata.toml asks for on that device; None where it asks for no such thing any more."""
    limits = {one.name: one for one in kata.speed} if kata else {}
    asked = limits.get(row["threshold"])
    if asked is None or kata is None:
        return None
    return asked.required(_names_of(kata.root / "hardware_profiles", row["profile"]))


@cache
def _names_of(profiles: Path, profile: str) -> tuple[str, ...]:
    """What thresholds may call a profile; its id alone, where there is no such file any more."""
    known = (profiles / f"{profile}.toml").is_file()
    return find_profile(profiles, profile).names if known else (profile,)


def _problem(row: Mapping[str, Any], limit: float | None) -> str:
    """Why a figure does not hold against the limit as it is now; "" when it does."""
    if limit is None:
        return f"no threshold {row['threshold']!r} in kata.toml any more: measure again"
    if row["outcome"] == "not_graded":
        return "the device was not fit to be timed: measure again"
    if row["impl"] == "solution" and row["value"] < MARGIN * limit:
        return f"the reference does not clear {limit:g} by {MARGIN - 1:.0%}"
    if row["impl"].startswith("wrong:") and row["value"] >= limit:
        return f"{row['impl']} clears {limit:g}: the threshold rejects nothing"
    return ""
