"""What was measured of a kata on real devices: the naive version, the limit, the reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.content.kata import Kata
from harness.content.submission import NAIVE
from harness.reports.measured import rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """
    A threshold on the clock, and what was reached on one device.

    Attributes:
        roofline: Values are shares of the speed of light; ratios to a baseline otherwise.
        reference, naive: The newest values; None where nothing was measured.
        median_us: Of the reference, in microseconds.
    """

    profile: str
    name: str
    roofline: bool
    limit: float
    reference: float | None
    naive: float | None
    median_us: float | None
    date: str

    def width(self, value: float | None) -> float:
        """The length of a bar for `value`, in percent of the room there is."""
        most = max(self.reference or 0.0, self.naive or 0.0, self.limit) * 1.1
        return 100 * (value or 0.0) / (1.0 if self.roofline else most)


def gates_of(
    results: Sequence[Mapping[str, Any]], katas: Mapping[str, Kata]
) -> dict[str, list[Gate]]:
    """The gates of each kata by its name, device by device; only what holds as katas are now."""
    by_id = {kata.id: kata for kata in katas.values()}
    latest: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for row in rows([dict(one) for one in results], by_id):
        kata = by_id.get(row["kata"])
        known = {one.name for one in kata.speed} if kata else set()
        if kata and row["latest"] and row["threshold"] in known and not row["problem"]:
            key = kata.name, row["profile"], row["threshold"]
            latest.setdefault(key, {})[row["impl"]] = row
    found: dict[str, list[Gate]] = {}
    for (name, profile, threshold), impls in sorted(latest.items()):
        kinds = {one.name: one.kind for one in katas[name].speed}
        newest = max(impls.values(), key=lambda row: str(row["measured_at"]))
        reference, naive = impls.get("solution"), impls.get(NAIVE)
        times = reference["times_us"] if reference else []
        found.setdefault(name, []).append(
            Gate(
                profile=profile,
                name=threshold,
                roofline=kinds[threshold] == "roofline",
                limit=newest["limit"],
                reference=reference["value"] if reference else None,
                naive=naive["value"] if naive else None,
                median_us=times[1] if len(times) > 1 else None,
                date=newest["date"],
            )
        )
    return found
