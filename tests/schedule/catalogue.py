"""
All entries of the course as data, those among them that stand as katas as these have it.

`catalogue.json` has every entry's week, minutes, difficulty, what it requires and covers. What an
entry requires and its kata does not is listed by

    python -m tests.schedule.catalogue
"""

import json
import sys
from functools import cache
from pathlib import Path

from harness.content.catalog import load_curriculum
from harness.content.kata import Kata

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("catalogue.json")


@cache
def data():
    return json.loads(DATA.read_text(encoding="utf-8"))


@cache
def standing_katas():
    return load_curriculum(ROOT).katas


@cache
def entries():
    """Every entry as a kata, in the order of the weeks; a kata that is none of them comes last."""
    found = {}
    for name, (week, minutes, difficulty, requires, covers) in data()["entries"].items():
        found[name] = standing_katas().get(name) or Kata(
            root=Path("/nowhere"), week=week, name=name, title=name, teaches="",
            covers=tuple(covers), backend="python", functions=(name,), difficulty=difficulty,
            minutes=minutes, requires=tuple(requires), hints=("a", "b", "c"), sources=(),
            forbidden=(), writes=(), edges=(), repeats=False, profile=None, extra=None,
            timeout_s=60, cases=(), vary={}, cost=(), speed=(),
        )  # fmt: skip
    return {**found, **standing_katas()}


def left_out():
    """Of each kata, what its entry requires and it does not."""
    found = {}
    for name, kata in standing_katas().items():
        _, _, _, requires, _ = data()["entries"].get(name, (0, 0, 0, (), ()))
        if missing := [need for need in requires if need not in kata.requires]:
            found[name] = missing
    return found


@cache
def concepts():
    """Concepts, each with the katas that cover it."""
    named = {key for week in load_curriculum(ROOT).weeks.values() for key in week.concepts}
    covering = {}
    for kata in entries().values():
        for item in kata.covers:
            if item in named:
                covering.setdefault(item, []).append(kata.name)
    return covering


if __name__ == "__main__":
    for name, missing in left_out().items():
        sys.stdout.write(f"{name}: {', '.join(missing)}\n")
