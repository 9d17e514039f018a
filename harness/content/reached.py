"""
What the reference and the naive version of a kata come to at its counted thresholds.

Kept in ``reached.toml`` beside the wrong solutions, so that a limit can be shown with what lies on
either side of it. `kata check NAME --remember` writes it; times are in hardware_profiles/measured.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from harness.base.errors import MetadataError
from harness.base.files import write_atomically
from harness.base.schema import read_toml
from harness.content.kata import Kata
from harness.content.submission import NAIVE

HEADING = "# What was counted, once: for each threshold the reference and the naive version."
NAMES = {"solution": "reference", NAIVE: "naive"}
DRAWN = 0.01  # by so much, of a figure, draws of inputs differ
ON_THE_CLOCK = ("roofline", "baseline")
Reached = Mapping[str, Mapping[str, float]]  # by threshold, then "reference" or "naive"


def reached(kata: Kata) -> Reached:
    """
    What is kept for `kata`, by threshold; nothing where nothing is.

    Raises:
        MetadataError: a value is no number.
    """
    path = kata.wrong / "reached.toml"
    if not path.is_file():
        return {}
    found = read_toml(path)
    for name, values in found.items():
        if not isinstance(values, dict) or not all(
            isinstance(value, (int, float)) for value in values.values()
        ):
            raise MetadataError(
                f"{path}: {name}: expected numbers, found {values!r}. "
                f"Write it anew: kata check {kata.name} --remember"
            )
    return found


def keep_reached(kata: Kata, events: Iterable[Mapping[str, Any]]) -> None:
    """
    Write what the checks `events` of a session measured; of several figures the worst.

    Nothing is written where nothing was counted, and times are left out. A figure that is as
    before but for what another draw of inputs does stays as it was.
    """
    found: dict[str, dict[str, float]] = {}
    for event in events:
        impl = NAMES.get(event["impl"])
        for one in event["measurements"] if impl else ():
            if one["meter"] in ON_THE_CLOCK or impl is None:
                continue
            worse = min if one["relation"] == ">=" else max
            values = found.setdefault(one["name"], {})
            values[impl] = worse(values.get(impl, one["value"]), one["value"])
    if not found:
        return
    for name, earlier in reached(kata).items():
        for impl, before in earlier.items():
            now = found.get(name, {}).get(impl)
            if now is not None and abs(now - before) <= DRAWN * abs(before):
                found[name][impl] = before
    lines = [HEADING]
    for name in sorted(found):
        figures = ", ".join(f"{impl} = {value:.10g}" for impl, value in found[name].items())
        lines.append(f"{json.dumps(name)} = {{ {figures} }}")
    write_atomically(kata.wrong / "reached.toml", "\n".join([*lines, ""]).encode())


def beside(values: Mapping[str, float], *, timed: bool = False) -> str:
    """`` · reference 0.84 · naive 0.05``, to stand behind a limit; "" where nothing is known."""
    return "".join(
        f" · {impl} {value:.3g}" if timed else f" · {impl} {value:,.6g}"
        for impl, value in values.items()
    )
