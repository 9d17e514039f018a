"""Results on real devices: made by one command, kept as JSON, shown beside the thresholds."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.files import write_atomically
from harness.kata import Kata
from harness.progress import Check, Measurement
from harness.runner import Outcome, run_kata

SCHEMA = 1


def measure(katas: Iterable[Kata], impl: str = "solution") -> dict[str, Any]:
    """
    Judge `impl` of every kata on this machine's GPU.

    Returns:
        Device, driver, clocks, versions, date, and for each kata its status, its failed checks
        and every threshold on the clock with the samples' quantiles.
    """
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "impl": impl,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": query_device(),
        "katas": {},
    }
    for kata in katas:
        outcome = run_kata(kata, impl=impl, device="cuda")
        results["profile"] = outcome.profile or results.get("profile", "")
        results["versions"] = outcome.versions or results.get("versions", {})
        results["katas"][kata.id] = as_result(outcome)
    results["device_after"] = query_device()
    return results


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
    """Name, driver, clocks and power of the first NVIDIA device; empty where that is not known."""
    fields = ("name", "driver_version", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", "0"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return {}
    return dict(zip(fields, (part.strip() for part in shown.split(",")), strict=False))


def save(results: dict[str, Any], path: Path) -> None:
    """Write results where `load_results` finds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())


def load_results(folder: Path) -> list[dict[str, Any]]:
    """Every file of results under `folder`, oldest first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(found, key=lambda results: str(results["date"]))


def rows(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each threshold measured on each device, for a table."""
    return [
        {
            "kata": kata,
            "profile": one["profile"],
            "date": one["date"][:10],
            "impl": one["impl"],
            "threshold": found["name"],
            "value": found["value"],
            "limit": found["limit"],
            "median_us": found["detail"]["median"] * 1e6 if found["meter"] == "roofline" else None,
            "outcome": found["detail"]["outcome"],
        }
        for one in results
        for kata, result in one["katas"].items()
        for found in result["measurements"]
        if found["meter"] in ("roofline", "baseline")
    ]
