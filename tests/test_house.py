"""The house is as its documents say."""

import ast
import re
from pathlib import Path

from harness.kata import METERS

ROOT = Path(__file__).parents[1]
HARNESS = ROOT / "harness"


def floors():
    """Floor of each module and package, as CONTRIBUTING.md has it."""
    rows = re.findall(r"^\| (\d) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    named = [(name, int(floor)) for floor, names in rows for name in re.findall(r"`(.+?)`", names)]
    return {name.rstrip("/"): floor for name, floor in named}


def imported(tree):
    """Modules and packages of the harness that are imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "harness":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and "harness." in node.module:
            yield node.module.split(".")[1]


def test_every_module_has_its_floor():
    modules = {path.stem for path in HARNESS.glob("*.py") if not path.stem.startswith("__")}
    packages = {path.parent.name for path in HARNESS.glob("*/__init__.py")}
    assert floors().keys() == modules | packages


def test_a_module_imports_from_its_own_floor_and_below():
    floor_of = floors()
    upward = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in HARNESS.rglob("*.py")
        for module in [path.relative_to(HARNESS).parts[0].removesuffix(".py")]
        if module in floor_of
        for name in imported(ast.parse(path.read_text()))
        if floor_of[name] > floor_of[module]
    }
    assert upward == set()


def test_every_meter_is_told_of():
    _, _, section = (ROOT / "docs" / "contract.md").read_text().partition("## Meters")
    table, _, _ = section.partition("\n## ")
    rows = [line.split("|")[1] for line in table.splitlines() if "|" in line]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told - {"meter"} == set(METERS)
