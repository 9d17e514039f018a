"""The layers of the harness, and its documents, are as they say."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from harness.content.kata import METERS

ROOT = Path(__file__).parents[1]
HARNESS = ROOT / "harness"


def layers():
    """Layer of each package, as CONTRIBUTING.md has it."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {
        package: int(layer) for layer, names in rows for package in re.findall(r"`(\w+)/`", names)
    }


def imported(tree):
    """Packages of the harness that are imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "harness":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and "harness." in node.module:
            yield node.module.split(".")[1]


def test_every_package_has_its_layer():
    assert layers().keys() == {path.parent.name for path in HARNESS.glob("*/__init__.py")}


def test_what_lies_outside_the_packages_is_what_katas_import():
    assert {path.name for path in HARNESS.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "arrays.py",
        "cuda.py",
        "cuda_host.py",
        "gluon.py",
        "nvrtc.py",
        "tensor_maps.py",
    }


def test_a_package_imports_only_from_the_layers_below():
    layer_of = layers()
    upward = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in HARNESS.rglob("*.py")
        for package in [path.relative_to(HARNESS).parts[0]]
        if package in layer_of
        for other in imported(ast.parse(path.read_text()))
        if other in layer_of and other != package and layer_of[other] >= layer_of[package]
    }
    assert upward == set()


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of_modules():
    """Each module, and those that it imports anywhere: in functions and for types as well."""
    paths = {module_name(path): path for path in HARNESS.rglob("*.py")}
    found = {}
    for name, path in paths.items():
        asked = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                asked += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                asked += [one if one in paths else node.module for one in inside]
        found[name] = {one for one in asked if one in paths and one != name}
    return found


def test_no_two_modules_import_each_other_by_whatever_way():
    graph = imports_of_modules()
    assert "harness.judge.trial" in graph["harness.plugin.fixtures"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_meter_is_told_of():
    _, _, section = (ROOT / "docs" / "contract.md").read_text().partition("## Meters")
    table, _, _ = section.partition("\n## ")
    rows = [line.split("|")[1] for line in table.splitlines() if "|" in line]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told - {"meter"} == set(METERS)
