"""The house is as its documents say."""

import ast
import re
from pathlib import Path

from harness.content.kata import METERS

ROOT = Path(__file__).parents[1]
HARNESS = ROOT / "harness"


def floors():
    """Floor of each room, as CONTRIBUTING.md has it."""
    rows = re.findall(r"^\| (\d) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {room: int(floor) for floor, rooms in rows for room in re.findall(r"`(\w+)/`", rooms)}


def imported(tree):
    """Rooms of the harness that are imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "harness":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and "harness." in node.module:
            yield node.module.split(".")[1]


def test_every_room_has_its_floor():
    assert floors().keys() == {path.parent.name for path in HARNESS.glob("*/__init__.py")}


def test_what_lies_outside_the_rooms_is_what_katas_import():
    assert {path.name for path in HARNESS.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "arrays.py",
    }


def test_a_room_imports_only_from_the_floors_below():
    floor_of = floors()
    upward = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in HARNESS.rglob("*.py")
        for room in [path.relative_to(HARNESS).parts[0]]
        if room in floor_of
        for other in imported(ast.parse(path.read_text()))
        if other in floor_of and other != room and floor_of[other] >= floor_of[room]
    }
    assert upward == set()


def test_every_meter_is_told_of():
    _, _, section = (ROOT / "docs" / "contract.md").read_text().partition("## Meters")
    table, _, _ = section.partition("\n## ")
    rows = [line.split("|")[1] for line in table.splitlines() if "|" in line]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told - {"meter"} == set(METERS)
