"""What is missing is told, and installed when asked for."""

import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import HarnessError
from harness.content.catalog import load_curriculum
from harness.hardware import packages

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def kata(mini, monkeypatch):
    """A kata with an extra of two packages, one for other machines."""
    needs = [
        "click>=8",
        'nowhere[more]>=1; extra == "odd"',
        "elsewhere; sys_platform == 'none' and extra == 'odd'",
        'other; extra == "even"',
    ]
    monkeypatch.setattr(packages, "requires", lambda _: needs)
    extras = SimpleNamespace(get_all=lambda _: ["odd", "even"])
    monkeypatch.setattr(packages, "metadata", lambda _: extras)
    return replace(load_curriculum(mini).kata("doubled"), extra="odd")


@pytest.fixture
def pip(monkeypatch):
    """What pip was asked for; `pip.end` is how it ends."""
    calls = SimpleNamespace(asked=[], end=(0, ""))

    def run(command, **_):
        calls.asked.append(command)
        code, words = calls.end
        return subprocess.CompletedProcess(command, code, "", words)

    monkeypatch.setattr(packages.subprocess, "run", run)
    return calls


def test_an_extra_is_installed_by_its_requirements_and_the_constraints(kata, pip):
    assert packages.missing_extra(kata).startswith("doubled needs nowhere: ")
    constraints = kata.root / "constraints.txt"
    constraints.touch()
    packages.install_extra(kata)
    (command,) = pip.asked
    assert command[1:4] == ["-m", "pip", "install"]
    assert command[-3:] == ["-c", str(constraints), "nowhere[more]>=1"]


def test_pips_last_words_are_the_reason(kata, pip):
    pip.end = (1, "ERROR: one\nERROR: No matching distribution found for nowhere>=1\n")
    with pytest.raises(HarnessError, match="extra odd, found: ERROR: No matching distribution"):
        packages.install_extra(kata)


def test_an_extra_that_there_is_not_is_named(kata, pip):
    with pytest.raises(HarnessError, match="expected one of odd, even, found 'none'"):
        packages.install_extra(replace(kata, extra="none"))
    assert pip.asked == []


def test_all_extras_are_every_one():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (everything,) = extras.pop("all")
    named = re.fullmatch(r"gpu-katas\[(.*)\]", everything)[1]
    assert set(named.split(",")) == extras.keys() - {"dev"}


@pytest.mark.parametrize("backend", ["triton", "gluon", "cuda"])
def test_without_triton_its_katas_say_in_a_line_where_they_run(kata, monkeypatch, backend):
    monkeypatch.setattr(packages, "_installed", lambda name: name != "triton")
    monkeypatch.setattr(packages.sys, "platform", "darwin")
    told = packages.missing_for(replace(kata, backend=backend, extra=None))
    assert told.startswith("doubled needs Triton, which runs on Linux: judge it in WSL2")
    assert "--on USER@HOST" in told
    monkeypatch.setattr(packages.sys, "platform", "linux")
    told = packages.missing_for(replace(kata, backend=backend, extra=None))
    assert told == "doubled needs triton: pip install -e ."
    assert packages.missing_for(replace(kata, backend="numba", extra=None)) is None
