"""Which katas cover which items of the curriculum."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from harness.content.catalog import Curriculum

KINDS = ("concepts", "hands_on", "milestone", "deliverables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """One item of the curriculum and the katas that cover it."""

    id: str
    kind: str
    name: str
    week: int
    katas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Every item asked about, in the curriculum's order."""

    items: tuple[Covered, ...]

    def counts(self, kind: str) -> tuple[int, int]:
        """How many items of `kind` are covered, and how many there are."""
        items = [item for item in self.items if item.kind == kind]
        return sum(bool(item.katas) for item in items), len(items)

    def as_json(self) -> dict[str, Any]:
        """Plain data: the totals by kind, then every item."""
        return {
            "totals": {
                kind: dict(zip(("covered", "all"), self.counts(kind), strict=True))
                for kind in KINDS
            },
            "items": [
                {
                    "id": item.id,
                    "kind": item.kind,
                    "name": item.name,
                    "week": item.week,
                    "katas": list(item.katas),
                }
                for item in self.items
            ],
        }


def coverage_of(curriculum: Curriculum, weeks: Collection[int] | None = None) -> Coverage:
    """Coverage of these weeks, or of every week."""
    by_item: dict[str, list[str]] = {}
    for kata in curriculum.katas.values():
        for item in kata.covers:
            by_item.setdefault(item, []).append(kata.name)
    items = [
        Covered(id=id_, kind=kind, name=name, week=number, katas=tuple(by_item.get(id_, ())))
        for number, one in curriculum.weeks.items()
        if weeks is None or number in weeks
        for kind in KINDS
        for id_, name in getattr(one, kind).items()
    ]
    return Coverage(tuple(items))
